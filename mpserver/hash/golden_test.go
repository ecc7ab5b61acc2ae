package hash

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// golden is testdata/chunk_hashes.json: vectors computed with lmcache 0.5.6
// and with vLLM 0.33's hashing module.
type golden struct {
	ChunkHashes struct {
		LCG     []uint64          `json:"lcg_600_tokens"`
		None    map[string]any    `json:"none_hash"`
		Blake3  map[string]string `json:"worked_blake3"`
		CBOR    map[string]string `json:"worked_sha256_cbor"`
		Vectors []struct {
			Algorithm string   `json:"algorithm"`
			Seed      string   `json:"seed"`
			ChunkSize int      `json:"chunk_size"`
			Tokens    string   `json:"tokens"`
			NumChunks int      `json:"num_chunks"`
			Index     []int    `json:"index"`
			Hash      []string `json:"hash"`
		} `json:"vectors"`
	} `json:"chunk_hashes"`
}

func loadGolden(t testing.TB) *golden {
	t.Helper()
	data, err := os.ReadFile("testdata/chunk_hashes.json")
	require.NoError(t, err)
	g := new(golden)
	require.NoError(t, json.Unmarshal(data, g))
	require.NotEmpty(t, g.ChunkHashes.Vectors)
	return g
}

// tokens builds the token list that the vectors call name.
func (g *golden) tokens(t testing.TB, name string) []uint64 {
	t.Helper()
	switch name {
	case "range_0_600":
		return upTo(600)
	case "zeros_600":
		return make([]uint64, 600)
	case "lcg_600":
		return g.ChunkHashes.LCG
	case "big_values_48":
		var out []uint64
		for range 12 {
			out = append(out, 4294967295, 2147483648, 65536, 255)
		}
		return out
	}
	t.Fatalf("unknown token list %q", name)
	return nil
}

// upTo is 0, 1, ... n-1.
func upTo(n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(i)
	}
	return out
}

func newHasher(t testing.TB, o Options) *Hasher {
	t.Helper()
	h, err := New(o)
	require.NoError(t, err)
	return h
}

func TestGoldenVectors(t *testing.T) {
	g := loadGolden(t)
	for _, v := range g.ChunkHashes.Vectors {
		name := fmt.Sprintf("%s-%s-%d-%s", v.Algorithm, v.Seed, v.ChunkSize, v.Tokens)
		t.Run(name, func(t *testing.T) {
			o := Options{Algorithm: v.Algorithm, ChunkSize: v.ChunkSize, PythonHashSeed: v.Seed}
			if v.Seed == vllmSeed {
				o.PythonHashSeed = ""
			}
			h := newHasher(t, o)
			tokens := g.tokens(t, v.Tokens)
			body := encode(tokens)
			p, n, err := h.Prompt(append(body, 0xc1), len(tokens))
			require.NoError(t, err)
			require.NoError(t, p.Err())
			if n != len(body) {
				t.Errorf("consumed: got %d, want %d", n, len(body))
			}
			require.Len(t, p.Chunks(), v.NumChunks)
			for i, at := range v.Index {
				if got := hex.EncodeToString(p.Chunks()[at][:]); got != v.Hash[i] {
					t.Errorf("chunk %d: got %s, want %s", at, got, v.Hash[i])
				}
			}
		})
	}
}

func TestGoldenNoneHash(t *testing.T) {
	g := loadGolden(t)
	f := func(o Options, want any) {
		t.Helper()
		o.ChunkSize = 16
		none := newHasher(t, o).NoneHash()
		if got := hex.EncodeToString(none[:]); got != want {
			t.Errorf("none hash of %+v: got %s, want %v", o, got, want)
		}
	}
	f(Options{}, g.ChunkHashes.Blake3["none_hash"])
	f(Options{Algorithm: Blake3, PythonHashSeed: "0"}, g.ChunkHashes.None["blake3"])
	f(Options{Algorithm: SHA256CBOR}, g.ChunkHashes.None["sha256_cbor (vllm 0.33.0 default seed)"])
	f(Options{Algorithm: SHA256CBOR, PythonHashSeed: "0"}, g.ChunkHashes.None["sha256_cbor (PYTHONHASHSEED=0)"])
}

func TestNewRefuses(t *testing.T) {
	f := func(o Options, want error) {
		t.Helper()
		if _, err := New(o); err == nil {
			t.Errorf("New(%+v): accepted", o)
		} else {
			require.ErrorIs(t, err, want)
		}
	}
	f(Options{Algorithm: "md5", ChunkSize: 16}, ErrUnknownAlgorithm)
	f(Options{Algorithm: "BLAKE3", ChunkSize: 16}, ErrUnknownAlgorithm)
	f(Options{Algorithm: "builtin", ChunkSize: 16}, ErrUnknownAlgorithm)
	f(Options{ChunkSize: 0}, ErrBadChunkSize)
	f(Options{ChunkSize: -1}, ErrBadChunkSize)
	f(Options{ChunkSize: MaxChunkSize + 1}, ErrBadChunkSize)
}
