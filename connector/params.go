package connector

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Keys of kv_transfer_params that the connector reads (lmcache 0.5.6,
// integration/vllm/lmcache_mp_connector.py).
const (
	paramPrefix      = "lmcache."
	paramMaxOffload  = "lmcache.max_offload_tokens"
	paramCachedStats = "cached_token_stats"
)

// params is what kv_transfer_params of a request come to.
type params struct {
	configs    []byte // msgpack of every lmcache.* key, nil without any
	maxOffload int    // tokens that may be stored; -1 for all
	wantStats  bool
}

// parseParams reads kv_transfer_params. What is not understood is left to the
// server, which ignores it.
func parseParams(p map[string]json.RawMessage) (params, error) {
	out := params{maxOffload: -1}
	var keys []string
	for k := range p {
		if strings.HasPrefix(k, paramPrefix) {
			keys = append(keys, k)
		}
	}
	_, out.wantStats = p[paramCachedStats]
	if raw, ok := p[paramMaxOffload]; ok {
		n := 0
		if err := json.Unmarshal(raw, &n); err != nil || n < 0 {
			return out, fmt.Errorf("%w: %s must be a number of tokens, got %.40s", ErrConfig, paramMaxOffload, raw)
		}
		out.maxOffload = n
	}
	if len(keys) == 0 {
		return out, nil
	}
	slices.Sort(keys)
	b := appendHead(nil, len(keys), 0x80, 0xde)
	for _, k := range keys {
		d := json.NewDecoder(strings.NewReader(string(p[k])))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			return out, fmt.Errorf("%w: %s: %w", ErrConfig, k, err)
		}
		b = appendValue(wire.AppendString(b, k), v)
	}
	out.configs = b
	return out, nil
}

// appendHead appends the head of a map or an array of n elements.
func appendHead(dst []byte, n int, fix, wide byte) []byte {
	switch {
	case n < 16:
		return append(dst, fix|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, wide), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, wide+1), uint32(n))
}

// appendValue appends a JSON value as msgpack.
func appendValue(dst []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		return wire.AppendBool(dst, v)
	case string:
		return wire.AppendString(dst, v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return wire.AppendInt(dst, n)
		}
		f, _ := v.Float64() // beyond its range: infinity, as in Python
		return wire.AppendFloat(dst, f)
	case []any:
		dst = appendHead(dst, len(v), 0x90, 0xdc)
		for _, e := range v {
			dst = appendValue(dst, e)
		}
		return dst
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		dst = appendHead(dst, len(v), 0x80, 0xde)
		for _, k := range keys {
			dst = appendValue(wire.AppendString(dst, k), v[k])
		}
		return dst
	}
	return wire.AppendNil(dst)
}
