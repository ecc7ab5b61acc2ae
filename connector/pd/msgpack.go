package pd

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// The smallest encodings, as msgspec chooses them.

func appendUint(b []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(b, byte(v))
	case v < 1<<8:
		return append(b, 0xcc, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
	}
}

func appendInt(b []byte, v int64) []byte {
	switch {
	case v >= 0:
		return appendUint(b, uint64(v))
	case v >= -32:
		return append(b, byte(v))
	case v >= math.MinInt8:
		return append(b, 0xd0, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
	}
}

// appendHead writes the head of a string, binary, array or map: fix (below
// limit), then the codes of 8, 16 and 32 bit lengths, 0 where there is none.
func appendHead(b []byte, n, limit int, fix, c8, c16, c32 byte) []byte {
	switch {
	case n < limit:
		return append(b, fix|byte(n))
	case n < 1<<8 && c8 != 0:
		return append(b, c8, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, c16), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(b, c32), uint32(n))
	}
}

func appendMap(b []byte, n int) []byte   { return appendHead(b, n, 16, 0x80, 0, 0xde, 0xdf) }
func appendArray(b []byte, n int) []byte { return appendHead(b, n, 16, 0x90, 0, 0xdc, 0xdd) }

func appendString(b []byte, s string) []byte {
	return append(appendHead(b, len(s), 32, 0xa0, 0xd9, 0xda, 0xdb), s...)
}

func appendBin(b, v []byte) []byte {
	return append(appendHead(b, len(v), 0, 0, 0xc4, 0xc5, 0xc6), v...)
}

func appendFloat(b []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
}

func appendList[T any](b []byte, list []T, each func([]byte, T) []byte) []byte {
	b = appendArray(b, len(list))
	for _, v := range list {
		b = each(b, v)
	}
	return b
}

// reader reads one document; the first error sticks.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrMessage, fmt.Sprintf(format, args...))
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.fail("it ends early")
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

// number takes a big-endian number of n bytes.
func (r *reader) number(n int) uint64 {
	var v uint64
	for _, c := range r.take(n) {
		v = v<<8 | uint64(c)
	}
	return v
}

func (r *reader) lead() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0xc1 // never used by msgpack
}

// nil takes a nil when there is one.
func (r *reader) nil() bool {
	if len(r.b) > 0 && r.b[0] == 0xc0 {
		r.b = r.b[1:]
		return true
	}
	return false
}

func (r *reader) int() int64 {
	c := r.lead()
	switch {
	case c < 0x80:
		return int64(c)
	case c >= 0xe0:
		return int64(int8(c))
	case c >= 0xcc && c <= 0xcf:
		v := r.number(1 << (c - 0xcc))
		if v > math.MaxInt64 {
			r.fail("%d is too large", v)
			return 0
		}
		return int64(v)
	case c >= 0xd0 && c <= 0xd3:
		n := 1 << (c - 0xd0)
		shift := 64 - 8*n
		return int64(r.number(n)<<shift) >> shift
	}
	r.fail("byte %#x where an integer was expected", c)
	return 0
}

// address takes an unsigned number of 64 bits.
func (r *reader) address() uint64 {
	if len(r.b) > 0 && r.b[0] == 0xcf {
		r.b = r.b[1:]
		return r.number(8)
	}
	v := r.int()
	if v < 0 {
		r.fail("negative address %d", v)
	}
	return uint64(v)
}

func (r *reader) size() int {
	v := r.int()
	if v < math.MinInt32 || v > math.MaxInt32 {
		r.fail("%d is out of range", v)
		return 0
	}
	return int(v)
}

func (r *reader) float() float64 {
	switch c := r.lead(); c {
	case 0xcb:
		return math.Float64frombits(r.number(8))
	case 0xca:
		return float64(math.Float32frombits(uint32(r.number(4))))
	default:
		r.fail("byte %#x where a float was expected", c)
		return 0
	}
}

// length takes a head; codes as in appendHead.
func (r *reader) length(what string, limit int, fix, c8, c16, c32 byte) int {
	c := r.lead()
	n := 0
	switch {
	case limit > 0 && c&^byte(limit-1) == fix:
		n = int(c) & (limit - 1)
	case c == c8 && c8 != 0:
		n = int(r.number(1))
	case c == c16:
		n = int(r.number(2))
	case c == c32:
		n = int(r.number(4))
	default:
		r.fail("byte %#x where %s was expected", c, what)
	}
	if n > len(r.b) { // every element takes a byte at least
		r.fail("%s of %d, in %d bytes", what, n, len(r.b))
		return 0
	}
	return n
}

func (r *reader) mapLen() int   { return r.length("a map", 16, 0x80, 0, 0xde, 0xdf) }
func (r *reader) arrayLen() int { return r.length("an array", 16, 0x90, 0, 0xdc, 0xdd) }

func (r *reader) string() string {
	s := string(r.take(r.length("a string", 32, 0xa0, 0xd9, 0xda, 0xdb)))
	if !utf8.ValidString(s) {
		r.fail("a string is not UTF-8")
	}
	return s
}

func (r *reader) bin() []byte { return r.take(r.length("bytes", 0, 0, 0xc4, 0xc5, 0xc6)) }

func readList[T any](r *reader, each func() T) []T {
	n := r.arrayLen()
	if r.err != nil {
		return nil
	}
	list := make([]T, 0, n)
	for i := 0; i < n && r.err == nil; i++ {
		list = append(list, each())
	}
	return list
}

// skip takes any value, however deep.
func (r *reader) skip() {
	for left := 1; left > 0 && r.err == nil; left-- {
		if len(r.b) == 0 {
			r.fail("it ends early")
			return
		}
		switch c := r.b[0]; {
		case c < 0x80 || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
			r.b = r.b[1:]
		case c&0xf0 == 0x80 || c == 0xde || c == 0xdf:
			left += 2 * r.mapLen()
		case c&0xf0 == 0x90 || c == 0xdc || c == 0xdd:
			left += r.arrayLen()
		case c&0xe0 == 0xa0 || c >= 0xd9 && c <= 0xdb:
			r.take(r.length("a string", 32, 0xa0, 0xd9, 0xda, 0xdb))
		case c >= 0xc4 && c <= 0xc6:
			r.bin()
		case c == 0xca || c == 0xcb:
			r.float()
		case c >= 0xcc && c <= 0xd3:
			r.take(1)
			r.number(1 << ((c - 0xcc) & 3))
		case c >= 0xc7 && c <= 0xc9: // extensions
			r.take(1)
			n := int(r.number(1 << (c - 0xc7)))
			r.take(1 + n)
		case c >= 0xd4 && c <= 0xd8:
			r.take(2 + 1<<(c-0xd4))
		default:
			r.fail("byte %#x", c)
		}
	}
}

// fields reads a map with string keys; each is called with the reader at the
// value and says whether it took it.
func (r *reader) fields(each func(key string) bool) {
	for n := r.mapLen(); n > 0 && r.err == nil; n-- {
		if key := r.string(); r.err == nil && !each(key) {
			r.skip()
		}
	}
}

// end returns the error, or one about what is left.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes behind its end", len(r.b))
	}
	return r.err
}
