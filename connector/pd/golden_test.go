package pd

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

type golden struct {
	Requests []struct {
		PP  int `json:"pp_rank"`
		TP  int `json:"tp_rank"`
		Hex string
	}
	Clocks []struct {
		Counter float64 `json:"perf_counter"`
		Hex     string
	} `json:"clock_replies"`
	Hashes []struct {
		Name    string
		Factors struct {
			Version string `json:"vllm_version"`
			Model   string
			DType   string
			KVHeads int    `json:"num_kv_heads"`
			Head    int    `json:"head_size"`
			Layers  int    `json:"num_hidden_layers"`
			Backend string `json:"attn_backend_name"`
			Cache   string `json:"cache_dtype"`
			HMA     bool   `json:"is_hma_enabled"`
			Mode    string `json:"transfer_mode"`
		}
		SHA string `json:"sha256"`
	} `json:"compat_hashes"`
	Payloads []struct {
		Name  string
		Inner string `json:"agent_metadata_bytes_hex"`
		Outer string `json:"handshake_payload_hex"`
	}
	Notifications []struct{ Name, Text, Hex string }
	Params        struct {
		Router  json.RawMessage `json:"router_to_prefill"`
		Prefill json.RawMessage `json:"prefill_response_and_decode_request"`
	} `json:"kv_transfer_params"`
}

func loadGolden(t testing.TB) *golden {
	t.Helper()
	data, err := os.ReadFile("testdata/nixl_handshake.json")
	require.NoError(t, err)
	g := &golden{}
	require.NoError(t, json.Unmarshal(data, g))
	require.NotEmpty(t, g.Payloads)
	return g
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func TestGoldenMessages(t *testing.T) {
	g := loadGolden(t)
	for _, r := range g.Requests {
		require.Equal(t, unhex(t, r.Hex), appendRequest(nil, r.PP, r.TP))
		pp, tp, known, err := parseRequest(unhex(t, r.Hex))
		require.NoError(t, err)
		require.Equal(t, []any{r.PP, r.TP, true}, []any{pp, tp, known})
	}
	for _, c := range g.Clocks {
		require.Equal(t, unhex(t, c.Hex), appendFloat(nil, c.Counter))
	}
	for _, p := range g.Payloads {
		m, err := ParseAgentMetadata(unhex(t, p.Inner))
		require.NoError(t, err, p.Name)
		require.Equal(t, p.Inner, hex.EncodeToString(m.Append(nil)), p.Name)
		h, err := ParseHandshake(unhex(t, p.Outer))
		require.NoError(t, err, p.Name)
		require.Equal(t, p.Inner, hex.EncodeToString(h.Metadata), p.Name)
		require.Equal(t, p.Outer, hex.EncodeToString(h.Append(nil)), p.Name)
	}
	for _, c := range g.Hashes {
		f := c.Factors
		if f.Mode != modePull {
			continue
		}
		m := Model{Name: f.Model, DType: f.DType, KVHeads: f.KVHeads, HeadSize: f.Head, Layers: f.Layers, AttnBackend: f.Backend, CacheDType: f.Cache, NoHybrid: !f.HMA, Version: f.Version}
		require.Equal(t, c.SHA, m.Hash(), c.Name)
	}
}

// Python's json escapes what is not ASCII.
func TestHashEscapes(t *testing.T) {
	require.Equal(t, `"a\"b\\\n\u00e9\ud83d\ude00/"`, pyString("a\"b\\\né😀/"))
}

func TestGoldenParams(t *testing.T) {
	g := loadGolden(t)
	router, err := json.Marshal(ForPrefill())
	require.NoError(t, err)
	require.JSONEq(t, string(g.Params.Router), string(router))
	p, err := ParseParams(g.Params.Router)
	require.NoError(t, err)
	require.True(t, p.DoRemoteDecode)
	require.ErrorIs(t, p.Check(), ErrParams)

	p, err = ParseParams(g.Params.Prefill)
	require.NoError(t, err)
	require.NoError(t, p.Check())
	again, err := json.Marshal(p)
	require.NoError(t, err)
	require.JSONEq(t, string(g.Params.Prefill), string(again))

	for _, key := range []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"} {
		var m map[string]any
		require.NoError(t, json.Unmarshal(g.Params.Prefill, &m))
		delete(m, key)
		data, err := json.Marshal(m)
		require.NoError(t, err)
		p, err := ParseParams(data)
		require.NoError(t, err)
		require.ErrorContains(t, p.Check(), key)
	}
	p, err = ParseParams([]byte("null"))
	require.NoError(t, err)
	require.Nil(t, p)
	require.ErrorIs(t, p.Check(), ErrParams)
}

// What a peer of another version adds is ignored; what it lacks is told.
func TestUnknownAndMissingFields(t *testing.T) {
	g := loadGolden(t)
	h, err := ParseHandshake(unhex(t, g.Payloads[0].Outer))
	require.NoError(t, err)
	h.Direct = []byte{0x90}
	with, err := ParseHandshake(h.Append(nil))
	require.NoError(t, err)
	require.Equal(t, h.Direct, with.Direct)

	b := appendMap(nil, 3)
	b = appendList(appendMap(appendString(b, "new_field"), 1), []string{"a"}, appendString)
	b = append(b, 0xc0)
	b = appendString(appendString(b, keyHash), "x")
	b = appendBin(appendString(b, keyMeta), []byte("y"))
	got, err := ParseHandshake(b)
	require.NoError(t, err)
	require.Equal(t, "x", got.Compatibility)

	_, err = ParseHandshake(appendString(appendString(appendMap(nil, 1), keyHash), "x"))
	require.ErrorIs(t, err, ErrMessage)
}

func FuzzParseAgentMetadata(f *testing.F) {
	for _, p := range loadGolden(f).Payloads {
		f.Add(unhex(f, p.Inner))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseAgentMetadata(data)
		if err != nil {
			return
		}
		again, err := ParseAgentMetadata(m.Append(nil))
		require.NoError(t, err)
		require.Equal(t, m.Append(nil), again.Append(nil))
	})
}

func FuzzParseHandshake(f *testing.F) {
	for _, p := range loadGolden(f).Payloads {
		f.Add(unhex(f, p.Outer))
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = ParseHandshake(data)
		_, _, _, _ = parseRequest(data)
	})
}

// No cut of a message is taken for one.
func TestTruncated(t *testing.T) {
	for _, p := range loadGolden(t).Payloads {
		for _, whole := range []string{p.Inner, p.Outer} {
			data := unhex(t, whole)
			for n := range data {
				_, err := ParseAgentMetadata(data[:n])
				require.ErrorIs(t, err, ErrMessage)
				_, err = ParseHandshake(data[:n])
				require.ErrorIs(t, err, ErrMessage)
			}
		}
	}
}
