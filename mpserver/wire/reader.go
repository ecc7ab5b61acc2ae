package wire

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// reader consumes one msgpack document from the front of b. The first failure
// sticks in err and leaves nothing to read, so that a decoder may run on and
// check once at its end; loops over a declared length check err.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) failType(want string) {
	if r.err == nil && len(r.b) == 0 {
		r.fail(fmt.Errorf("%w where %s was expected", ErrTruncated, want))
	} else if r.err == nil {
		r.fail(fmt.Errorf("%w: got %s, want %s", ErrType, leadName(r.b[0]), want))
	}
}

// done returns the sticky error, or [ErrTrailing] when bytes are left.
func (r *reader) done() error {
	if r.err == nil && len(r.b) > 0 {
		return fmt.Errorf("%w: %d", ErrTrailing, len(r.b))
	}
	return r.err
}

// peek returns the family of the next value, kindNone at the end.
func (r *reader) peek() kind {
	if len(r.b) == 0 {
		return kindNone
	}
	return classes[r.b[0]].kind
}

// head consumes the lead byte and the length of a value of kind k and returns
// the length.
func (r *reader) head(k kind, want string) int {
	if r.peek() != k {
		r.failType(want)
		return 0
	}
	c := classes[r.b[0]]
	n := int(c.fixed)
	if c.extra > 0 {
		if len(r.b) <= int(c.extra) {
			r.fail(ErrTruncated)
			return 0
		}
		n = int(bigEndian(r.b[1 : 1+c.extra]))
	}
	r.b = r.b[1+c.extra:]
	return n
}

// take consumes n bytes.
func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail(ErrTruncated)
		return nil
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

// isNil consumes a nil if one is next.
func (r *reader) isNil() bool {
	if r.peek() != kindNil {
		return false
	}
	r.b = r.b[1:]
	return true
}

func (r *reader) bool() bool {
	if r.peek() != kindBool {
		r.failType("a bool")
		return false
	}
	v := r.b[0] == mpTrue
	r.b = r.b[1:]
	return v
}

// rawInt consumes an integer of any width. Its value is v as an unsigned
// number, or its two's complement when negative is true.
func (r *reader) rawInt() (v uint64, negative bool) {
	if r.peek() != kindInt {
		r.failType("an integer")
		return 0, false
	}
	b := r.b[0]
	w := int(classes[b].extra)
	if w == 0 {
		r.b = r.b[1:]
		return uint64(int64(int8(b))), b >= mpNegFix
	}
	if len(r.b) <= w {
		r.fail(ErrTruncated)
		return 0, false
	}
	v = bigEndian(r.b[1 : 1+w])
	r.b = r.b[1+w:]
	if b >= mpInt8 {
		shift := 64 - 8*w
		v = uint64(int64(v<<shift) >> shift) // sign extension
		negative = int64(v) < 0
	}
	return v, negative
}

// int consumes an integer that fits 64 signed bits.
func (r *reader) int() int64 {
	v, negative := r.rawInt()
	if !negative && v > math.MaxInt64 {
		r.fail(fmt.Errorf("%w: %d does not fit 64 signed bits", ErrRange, v))
		return 0
	}
	return int64(v)
}

// count consumes an integer that must not be negative.
func (r *reader) count() int64 {
	v := r.int()
	if v < 0 {
		r.fail(fmt.Errorf("%w: %d, want 0 or more", ErrRange, v))
		return 0
	}
	return v
}

// float consumes a float or an integer.
func (r *reader) float() float64 {
	switch r.peek() {
	case kindInt:
		v, negative := r.rawInt()
		if negative {
			return float64(int64(v))
		}
		return float64(v)
	case kindFloat:
		w := classes[r.b[0]].extra
		if len(r.b) <= int(w) {
			r.fail(ErrTruncated)
			return 0
		}
		v := bigEndian(r.b[1 : 1+w])
		r.b = r.b[1+w:]
		if w == 4 {
			return float64(math.Float32frombits(uint32(v)))
		}
		return math.Float64frombits(v)
	default:
		r.failType("a number")
		return 0
	}
}

// str consumes a string and returns its bytes, which are valid UTF-8.
func (r *reader) str() []byte {
	s := r.take(r.head(kindStr, "a string"))
	if !utf8.Valid(s) {
		r.fail(ErrUTF8)
		return nil
	}
	return s
}

// set consumes a string into dst, without an allocation when it is there already.
func (r *reader) set(dst *string) {
	if s := r.str(); r.err == nil && string(s) != *dst {
		*dst = string(s)
	}
}

// key consumes the key of a map entry. Like msgspec it wants a string and does
// not look whether that is valid UTF-8.
func (r *reader) key() []byte { return r.take(r.head(kindStr, "a string key")) }

func (r *reader) bin() []byte { return r.take(r.head(kindBin, "bytes")) }

// array consumes the head of an array. Each element takes a byte at least, so a
// longer one than the frame has bytes is refused.
func (r *reader) array() int {
	n := r.head(kindArray, "an array")
	if n > len(r.b) {
		r.fail(fmt.Errorf("%w: array of %d in %d bytes", ErrTruncated, n, len(r.b)))
		return 0
	}
	return n
}

// fields consumes the head of a map; see array.
func (r *reader) fields() int {
	n := r.head(kindMap, "a map")
	if n > len(r.b)/2 {
		r.fail(fmt.Errorf("%w: map of %d in %d bytes", ErrTruncated, n, len(r.b)))
		return 0
	}
	return n
}

// ext consumes an extension and returns its type code and data.
func (r *reader) ext() (code int8, data []byte) {
	n := r.head(kindExt, "an extension")
	p := r.take(1)
	if r.err != nil {
		return 0, nil
	}
	return int8(p[0]), r.take(n)
}

// skip consumes one value of any kind, nested ones included. It counts what is
// still to come instead of recursing, so depth costs nothing. It returns the
// bytes of the value.
func (r *reader) skip() []byte {
	start := r.b
	for pending := 1; pending > 0 && r.err == nil; pending-- {
		if len(r.b) == 0 {
			r.fail(ErrTruncated)
			break
		}
		c := classes[r.b[0]]
		switch c.kind {
		case kindArray:
			pending += r.array()
		case kindMap:
			pending += 2 * r.fields()
		case kindStr, kindBin:
			r.take(r.head(c.kind, ""))
		case kindExt:
			r.ext()
		case kindNone:
			r.failType("a value")
		default:
			r.take(1 + int(c.extra))
		}
	}
	if r.err != nil {
		return nil
	}
	return start[:len(start)-len(r.b)]
}
