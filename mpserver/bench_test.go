package mpserver

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// benchTokens is the prompt of the lookup benchmarks: 128 chunks.
const benchTokens = 32768

// benchServer is a server without a loop: handlers are called directly.
func benchServer(b *testing.B) (*Server, *request, []byte) {
	b.Helper()
	s, err := New(Options{HTTPPort: -1, L1: L1Options{SizeBytes: 64 << 20}})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	<-s.arena.Grown()
	lay, err := s.engineDrivenLayout(&wire.EngineDrivenContext{Model: testModel, WorldSize: 1, BlockSize: 16, NumLayers: 1, HiddenDim: 8, DType: "uint8"})
	require.NoError(b, err)
	_, err = s.instances.register(&instance{id: 1, layout: lay, engine: true}, time.Now())
	require.NoError(b, err)

	tokens := prompt(1, benchTokens)
	tokens[0] = 70000 // five bytes on the wire, to be changed in place
	k := scheduler(keyOf("bench", tokens))
	frame := keyFrame(k)
	// Everything is resident: a lookup walks all 128 chunks.
	pr, _, err := s.hasher.Prompt(k.Tokens, k.TokenCount)
	require.NoError(b, err)
	rank, _ := wire.KVRank(1, 0)
	res, err := s.cache.Reserve(b.Context(), l1cache.ReserveRequest{Scope: lay.scope("", 0), Rank: rank, Hashes: pr.Chunks(), SizeBytes: 4096})
	require.NoError(b, err)
	require.Equal(b, benchTokens/256, res.Publish(nil))
	r := &request{client: &client{}, op: wire.OpLookup, row: &table[wire.OpLookup], payloads: [][]byte{frame, intFrame(1)}}
	return s, r, frame
}

// firstToken finds the token that benchServer left to be changed.
func firstToken(b *testing.B, frame []byte) []byte {
	b.Helper()
	for i := range frame {
		if frame[i] == 0xce && binary.BigEndian.Uint32(frame[i+1:]) == 70000 {
			return frame[i+1 : i+5]
		}
	}
	b.Fatal("the first token is not where it was put")
	return nil
}

// BenchmarkLookup is decode, hash and index of a LOOKUP with 32k tokens, and
// the end of its session: a prompt seen before that hits fully, and one that
// is new from its first token on.
func BenchmarkLookup(b *testing.B) {
	b.Run("seen-hit", func(b *testing.B) {
		s, r, _ := benchServer(b)
		b.ReportAllocs()
		for b.Loop() {
			if out := handleLookup(s, nil, r); out.reason != "" {
				b.Fatal(out.reason)
			}
			if n, _, _ := s.sessions.status("bench", time.Now()); n != benchTokens/256 {
				b.Fatalf("hit %d chunks", n)
			}
			s.sessions.mu.Lock()
			s.sessions.lru.Purge() // what END_SESSION and its grace come to
			s.sessions.unlock()
		}
	})
	b.Run("fresh-miss", func(b *testing.B) {
		s, r, frame := benchServer(b)
		tok := firstToken(b, frame)
		b.ReportAllocs()
		i := uint32(0)
		for b.Loop() {
			i++
			binary.BigEndian.PutUint32(tok, 1<<20+i)
			if out := handleLookup(s, nil, r); out.reason != "" {
				b.Fatal(out.reason)
			}
			s.sessions.end("bench", time.Now())
		}
	})
}
