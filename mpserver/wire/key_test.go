package wire

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldenKeys returns the keys of the golden requests, as frames and as JSON.
func goldenKeys(t testing.TB) (frames [][]byte, values []json.RawMessage) {
	t.Helper()
	for _, q := range loadGolden(t).Requests {
		codecs := arguments[q.Op]
		if len(codecs) > 0 && strings.Contains(string(q.Payloads[0]), "token_ids") {
			frames = append(frames, unhex(t, q.Frames[2]))
			values = append(values, q.Payloads[0])
		}
	}
	require.NotEmpty(t, frames)
	return frames, values
}

// keyJSON writes a key as the golden file shows it.
func keyJSON(t *testing.T, k *Key) string {
	t.Helper()
	m := map[string]any{
		"model_name": k.Model, "world_size": k.WorldSize, "worker_id": nil, "start": k.Start, "end": k.End,
		"request_id": k.RequestID, "cache_salt": k.Salt, "request_configs": nil, "num_kv_readers": k.NumKVReaders,
	}
	if k.HasWorker {
		m["worker_id"] = k.WorkerID
	}
	if k.Configs != nil {
		m["request_configs"] = plain(t, k.Configs)
	}
	r := reader{b: append(appendArrayHead(nil, k.TokenCount), k.Tokens...)}
	m["token_ids"] = r.ints(nil)
	require.NoError(t, r.done())
	out, err := json.Marshal(m)
	require.NoError(t, err)
	return string(out)
}

// plain turns a document of maps, lists and scalars into what JSON has.
func plain(t *testing.T, b []byte) any {
	t.Helper()
	var conv func(v any) any
	conv = func(v any) any {
		switch v := v.(type) {
		case []entry:
			m := map[string]any{}
			for _, e := range v {
				m[e.key] = conv(e.value)
			}
			return m
		case []any:
			for i := range v {
				v[i] = conv(v[i])
			}
			return v
		case frame: // a float
			f, err := DecodeFloat(v)
			require.NoError(t, err)
			return f
		default:
			return v
		}
	}
	return conv(tree(t, b))
}

func TestGoldenKeys(t *testing.T) {
	frames, values := goldenKeys(t)
	for i, frame := range frames {
		var k Key
		require.NoError(t, DecodeKey(frame, &k, nil))
		require.JSONEq(t, string(values[i]), keyJSON(t, &k))
	}
}

// keyMap is a key that keyDoc varies.
var keyMap = []entry{
	{"model_name", "m"},
	{"world_size", 2},
	{"worker_id", 1},
	{"token_ids", []any{1, 2, 300}},
	{"start", 0},
	{"end", 3},
	{"request_id", "r"},
	{"cache_salt", "s"},
	{"request_configs", []entry{{"a", 1}}},
	{"num_kv_readers", 4},
}

func TestKeyIsResetBetweenDecodes(t *testing.T) {
	var k Key
	require.NoError(t, DecodeKey(doc(keyMap), &k, nil))
	require.Equal(t, "s", k.Salt)
	require.True(t, k.HasWorker)
	bare := with(keyMap[:7:7], "worker_id", nil)
	require.NoError(t, DecodeKey(doc(bare), &k, nil))
	want := Key{Model: "m", WorldSize: 2, Tokens: []byte{1, 2, mpUint16, 1, 44}, TokenCount: 3, End: 3, RequestID: "r"}
	require.Equal(t, want, k)
}

func TestKeyErrorsNameTheField(t *testing.T) {
	f := func(m []entry, want error, where string) {
		t.Helper()
		err := DecodeKey(doc(m), new(Key), nil)
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, where)
	}
	f(with(keyMap, "world_size", "2"), ErrType, "key.world_size: wrong type: got a string, want an integer")
	f(with(keyMap, "worker_id", true), ErrType, "key.worker_id")
	f(with(keyMap, "start", frame{mpUint64, 128, 0, 0, 0, 0, 0, 0, 0}), ErrRange, "key.start: integer out of range: 9223372036854775808")
	f(with(keyMap, "cache_salt", "a@b"), ErrSalt, "'@'")
	f(with(keyMap, "cache_salt", strings.Repeat("é", 129)), ErrSalt, "129 code points")
	f(with(keyMap, "model_name", frame{mpFixStr | 1, 0xff}), ErrUTF8, "key.model_name")
	f(with(keyMap, "token_ids", []any{1, nil}), ErrType, "key.token_ids: token 1: wrong type: got nil")
	f(with(keyMap, "token_ids", frame{mpArray32, 255, 255, 255, 255}), ErrTruncated, "array of 4294967295 in")
	f(with(keyMap, "request_configs", []any{}), ErrType, "key.request_configs")
	f(keyMap[1:], ErrMissing, "key.model_name")
	f(keyMap[:6], ErrMissing, "key.request_id")
}

func TestKeyScanner(t *testing.T) {
	body := doc(keyMap)
	var k Key
	calls := 0
	scan := func(rest []byte, count int) (int, error) {
		calls++
		require.Equal(t, 3, count)
		require.Equal(t, []byte{1, 2, mpUint16, 1, 44}, rest[:5])
		return SkipTokens(rest, count)
	}
	require.NoError(t, DecodeKey(body, &k, scan))
	require.Equal(t, 1, calls)

	// The scanner's own error comes through.
	mine := errors.New("mine")
	require.ErrorIs(t, DecodeKey(body, &k, func([]byte, int) (int, error) { return 0, mine }), mine)
	// One that consumes too little or too much is caught by what follows.
	require.Error(t, DecodeKey(body, &k, func([]byte, int) (int, error) { return 1, nil }))
	require.ErrorIs(t, DecodeKey(body, &k, func([]byte, int) (int, error) { return 1 << 20, nil }), ErrTruncated)
	// Repeated: the last one counts.
	require.NoError(t, DecodeKey(doc(append(keyMap[:len(keyMap):len(keyMap)], entry{"token_ids", []any{9}})), &k, nil))
	require.Equal(t, 1, k.TokenCount)
	require.Equal(t, []byte{9}, k.Tokens)
}

func TestDeepConfigs(t *testing.T) {
	// A million arrays in each other: no recursion, no allocation.
	deep := append(make([]byte, 0, 1<<20), []byte(strings.Repeat("\x91", 1<<20-1))...)
	deep = append(deep, mpNil)
	m := with(keyMap, "request_configs", []entry{{"a", frame(deep)}})
	var k Key
	require.NoError(t, DecodeKey(doc(m), &k, nil))
	require.Len(t, k.Configs, len(deep)+3)
}

func TestDecodeKeyAllocations(t *testing.T) {
	frames, _ := goldenKeys(t)
	for _, frame := range frames {
		var k Key
		require.NoError(t, DecodeKey(frame, &k, nil))
		if got := testing.AllocsPerRun(100, func() { _ = DecodeKey(frame, &k, nil) }); got != 0 {
			t.Errorf("decoding the same key again: got %g allocations, want 0", got)
		}
		if got := testing.AllocsPerRun(100, func() { k = Key{}; _ = DecodeKey(frame, &k, nil) }); got > 3 {
			t.Errorf("decoding a new key: got %g allocations, want one for each string", got)
		}
	}
}

func TestSameRequest(t *testing.T) {
	var a, b Key
	require.NoError(t, DecodeKey(doc(keyMap), &a, nil))
	require.NoError(t, DecodeKey(doc(with(keyMap, "num_kv_readers", 9)), &b, nil))
	require.True(t, a.SameRequest(&b))
	for _, e := range []entry{
		{"model_name", "n"},
		{"world_size", 3},
		{"worker_id", nil},
		{"worker_id", 0},
		{"token_ids", []any{1, 2, 301}},
		{"token_ids", []any{1, 2}},
		{"start", 1},
		{"end", 2},
		{"request_id", "q"},
		{"cache_salt", ""},
	} {
		require.NoError(t, DecodeKey(doc(with(keyMap, e.key, e.value)), &b, nil))
		require.False(t, a.SameRequest(&b), "%v", e)
	}
}

func TestAppendTokens(t *testing.T) {
	k := Key{Tokens: AppendTokens(nil, []uint32{0, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1}), TokenCount: 8}
	n, err := SkipTokens(k.Tokens, 8)
	require.NoError(t, err)
	require.Equal(t, len(k.Tokens), n)
	require.Equal(t, 1+1+2+2+3+3+5+5, n)
	var back Key
	require.NoError(t, DecodeKey(AppendKey(nil, &k), &back, nil))
	require.Equal(t, k, back)
}
