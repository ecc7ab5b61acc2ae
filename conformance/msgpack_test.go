package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// decode reads one msgpack document into int64, uint64, float64, bool, nil,
// string, []byte, []any and map[string]any. It is written apart from package
// wire on purpose: what checks the server shares no code with it.
func decode(data []byte) (v any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("not msgpack: %v", r)
		}
	}()
	d := decoder{data}
	v = d.value()
	if len(d.rest) > 0 {
		return nil, errors.New("bytes behind the document")
	}
	return v, nil
}

// decoder panics on data that ends early; decode turns that into an error.
type decoder struct{ rest []byte }

func (d *decoder) take(n int) []byte {
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

// number reads an unsigned big-endian number of 1, 2, 4 or 8 bytes.
func (d *decoder) number(size int) uint64 {
	var b [8]byte
	copy(b[8-size:], d.take(size))
	return binary.BigEndian.Uint64(b[:])
}

func (d *decoder) value() any {
	switch c := d.take(1)[0]; {
	case c < 0x80:
		return int64(c)
	case c < 0x90:
		return d.mapping(int(c & 0x0f))
	case c < 0xa0:
		return d.array(int(c & 0x0f))
	case c < 0xc0:
		return string(d.take(int(c & 0x1f)))
	case c >= 0xe0:
		return int64(int8(c))
	case c == 0xc0:
		return nil
	case c == 0xc2, c == 0xc3:
		return c == 0xc3
	case c >= 0xc4 && c <= 0xc6:
		return d.take(int(d.number(1 << (c - 0xc4))))
	case c == 0xcb:
		return math.Float64frombits(d.number(8))
	case c >= 0xcc && c <= 0xce:
		return int64(d.number(1 << (c - 0xcc)))
	case c == 0xcf:
		return d.number(8)
	case c >= 0xd0 && c <= 0xd3:
		bits := 8 << (c - 0xd0)
		return int64(d.number(bits/8)<<(64-bits)) >> (64 - bits)
	case c >= 0xd9 && c <= 0xdb:
		return string(d.take(int(d.number(1 << (c - 0xd9)))))
	case c == 0xdc, c == 0xdd:
		return d.array(int(d.number(2 << (c - 0xdc))))
	case c == 0xde, c == 0xdf:
		return d.mapping(int(d.number(2 << (c - 0xde))))
	default:
		panic(fmt.Sprintf("first byte %#x", c))
	}
}

func (d *decoder) array(n int) []any {
	var out []any
	for range n {
		out = append(out, d.value())
	}
	return out
}

func (d *decoder) mapping(n int) map[string]any {
	out := map[string]any{}
	for range n {
		k := d.value().(string)
		out[k] = d.value()
	}
	return out
}
