package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// ridBytes is the length of every request id, so that it can be patched.
const ridBytes = 24

// markToken is a token id in the 5-byte form, to be patched with any other of
// that form (65536 and above).
const markToken = 70000

// keyTemplate is an encoded key whose request id and one token are patched in
// place.
type keyTemplate struct {
	frame   []byte
	rid, at int // offsets of the request id and of the token's 4 bytes
}

// baseTokens are ids spread over a vocabulary, as real prompts are: most take
// 5 bytes, some 3. The token at mark takes 5.
func baseTokens(n, mark int) []uint32 {
	rng := rand.New(rand.NewPCG(99, 99))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32N(vocabulary)
	}
	tokens[mark] = markToken
	return tokens
}

// newKeyTemplate encodes a key of tokens for one worker, or for all when
// worker is negative; the token at mark will be patched.
func newKeyTemplate(model string, tokens []uint32, worker, start, end, mark int) (*keyTemplate, error) {
	rid := bytes.Repeat([]byte{'r'}, ridBytes)
	k := wire.Key{
		Model: model, WorldSize: 1, WorkerID: max(0, worker), HasWorker: worker >= 0,
		Tokens: wire.AppendTokens(nil, tokens), TokenCount: len(tokens),
		Start: start, End: end, RequestID: string(rid), NumKVReaders: 1,
	}
	t := &keyTemplate{frame: wire.AppendKey(nil, &k)}
	first := bytes.Index(t.frame, k.Tokens)
	t.at = first + len(wire.AppendTokens(nil, tokens[:mark])) + 1
	t.rid = bytes.LastIndex(t.frame, rid)
	if first < 0 || t.rid < 0 || t.frame[t.at-1] != 0xce || binary.BigEndian.Uint32(t.frame[t.at:]) != markToken {
		return nil, fmt.Errorf("the encoded key does not hold what is to be patched")
	}
	return t, nil
}

// make returns the frame for one request, valid until the next call.
func (t *keyTemplate) make(rid *[ridBytes]byte, token uint32) []byte {
	copy(t.frame[t.rid:], rid[:])
	binary.BigEndian.PutUint32(t.frame[t.at:], token)
	return t.frame
}

// promptToken makes the chunks of a prompt, from the patched token's on,
// different from those of every other prompt.
func promptToken(client int, seq uint64, salt int) uint32 {
	return uint32(65536 + (uint64(salt)*7919+uint64(client)*1000003+seq)%(1<<31))
}
