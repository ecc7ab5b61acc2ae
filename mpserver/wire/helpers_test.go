package wire

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// entry is one key and value of a map in the order of the wire.
type entry struct {
	key   string
	value any
}

// doc writes any msgpack document, right or wrong; raw bytes of type frame are
// taken as they are.
type frame []byte

func doc(v any) []byte {
	switch v := v.(type) {
	case frame:
		return v
	case nil:
		return AppendNil(nil)
	case bool:
		return AppendBool(nil, v)
	case int:
		return AppendInt(nil, int64(v))
	case string:
		return AppendString(nil, v)
	case []byte:
		return AppendBytes(nil, v)
	case []any:
		out := appendArrayHead(nil, len(v))
		for _, e := range v {
			out = append(out, doc(e)...)
		}
		return out
	case []entry:
		out := appendMapHead(nil, len(v))
		for _, e := range v {
			out = append(AppendString(out, e.key), doc(e.value)...)
		}
		return out
	}
	panic(fmt.Sprintf("doc: %T", v))
}

// with returns a map with one value replaced or added.
func with(m []entry, key string, value any) []entry {
	out := append([]entry(nil), m...)
	for i := range out {
		if out[i].key == key {
			out[i].value = value
			return out
		}
	}
	return append(out, entry{key, value})
}

// get returns a value of a map.
func get(t *testing.T, m []entry, key string) any {
	t.Helper()
	for _, e := range m {
		if e.key == key {
			return e.value
		}
	}
	require.Fail(t, "no such key", key)
	return nil
}

// tree decodes any document into what doc takes.
func tree(t testing.TB, b []byte) any {
	t.Helper()
	r := reader{b: b}
	v := r.tree()
	require.NoError(t, r.done())
	return v
}

func (r *reader) tree() any {
	switch r.peek() {
	case kindMap:
		var m []entry
		for n := r.fields(); n > 0 && r.err == nil; n-- {
			key := string(r.key())
			m = append(m, entry{key, r.tree()})
		}
		return m
	case kindArray:
		v := []any{}
		for n := r.array(); n > 0 && r.err == nil; n-- {
			v = append(v, r.tree())
		}
		return v
	case kindStr:
		return string(r.str())
	case kindBin:
		return append([]byte{}, r.bin()...)
	case kindInt:
		return int(r.int())
	case kindBool:
		return r.bool()
	case kindNil:
		r.isNil()
		return nil
	default:
		return frame(r.skip())
	}
}
