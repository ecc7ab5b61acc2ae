package wire

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
)

// DecodeInt reads an argument or reply that is declared exactly int. The
// reference converts whatever it finds there with Python's int(): a bool, a
// float (toward zero), digits in a string or in bytes. So does this, within 64
// signed bits.
func DecodeInt(frame []byte) (int64, error) {
	r := reader{b: frame}
	var v int64
	switch r.peek() {
	case kindBool:
		if r.bool() {
			v = 1
		}
	case kindFloat:
		f := r.float()
		// As floats the bounds are -2^63 and 2^63; NaN fails both comparisons.
		if !(f >= math.MinInt64 && f < math.MaxInt64) {
			r.fail(fmt.Errorf("%w: %g", ErrRange, f))
		}
		v = int64(f)
	case kindStr:
		v = r.parseInt(r.str())
	case kindBin:
		v = r.parseInt(r.bin())
	default:
		v = r.int()
	}
	return v, r.done()
}

// parseInt reads decimal digits as int() does: surrounding white space, a sign
// and single underscores between digits are allowed.
func (r *reader) parseInt(s []byte) int64 {
	if r.err != nil {
		return 0
	}
	s = bytes.TrimSpace(s)
	digits := bytes.ReplaceAll(s, []byte("_"), nil)
	if bytes.Contains(s, []byte("__")) || bytes.HasSuffix(s, []byte("_")) ||
		bytes.HasPrefix(bytes.TrimLeft(s, "+-"), []byte("_")) {
		digits = nil
	}
	v, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil {
		r.fail(fmt.Errorf("%w: %s is not an integer of 64 signed bits", ErrType, clip(s)))
	}
	return v
}

// DecodeBool reads an argument or reply that is declared exactly bool. The
// reference takes the truth of whatever it finds there: nil, zero and anything
// empty are false, all else is true. So does this.
func DecodeBool(frame []byte) (bool, error) {
	r := reader{b: frame}
	v := true
	switch k := r.peek(); k {
	case kindBool:
		v = r.bool()
	case kindInt:
		n, _ := r.rawInt()
		v = n != 0
	case kindFloat:
		v = r.float() != 0
	case kindNil:
		v = !r.isNil()
	case kindStr:
		v = len(r.str()) > 0
	case kindBin:
		v = len(r.bin()) > 0
	case kindArray, kindMap:
		body := r.skip()
		v = len(body) > 0 && !emptyContainer(body)
	default:
		r.skip()
	}
	return v, r.done()
}

// emptyContainer reports whether an array or map in any of its forms is empty.
func emptyContainer(body []byte) bool {
	c := classes[body[0]]
	if c.extra == 0 {
		return c.fixed == 0
	}
	return bigEndian(body[1:1+c.extra]) == 0
}

// DecodeOptInt reads an int or nil (ok is false). Unlike [DecodeInt] it
// converts nothing.
func DecodeOptInt(frame []byte) (v int64, ok bool, err error) {
	r := reader{b: frame}
	if !r.isNil() {
		v, ok = r.int(), true
	}
	if err = r.done(); err != nil {
		return 0, false, err
	}
	return v, ok, nil
}

// DecodeString reads a string.
func DecodeString(frame []byte) (string, error) {
	r := reader{b: frame}
	s := r.str()
	if err := r.done(); err != nil {
		return "", err
	}
	return string(s), nil
}

// DecodeBytes reads bytes. The result is a view into the frame.
func DecodeBytes(frame []byte) ([]byte, error) {
	r := reader{b: frame}
	p := r.bin()
	if err := r.done(); err != nil {
		return nil, err
	}
	return p, nil
}

// DecodeFloat reads a float; an integer is one too.
func DecodeFloat(frame []byte) (float64, error) {
	r := reader{b: frame}
	v := r.float()
	return v, r.done()
}

// DecodeStrings reads an array of strings.
func DecodeStrings(frame []byte) ([]string, error) {
	r := reader{b: frame}
	n := r.array()
	var v []string
	for i := 0; i < n && r.err == nil; i++ {
		v = append(v, string(r.str()))
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	return v, nil
}

// DecodeBlockIDs reads block ids, one list for each group, into dst, whose
// lists it reuses. It returns the groups read, or nil with an error.
func DecodeBlockIDs(frame []byte, dst [][]int64) ([][]int64, error) {
	r := reader{b: frame}
	groups := r.array()
	all := dst[:cap(dst)]
	dst = dst[:0]
	for g := 0; g < groups && r.err == nil; g++ {
		var ids []int64
		if g < len(all) {
			ids = all[g]
		}
		dst = append(dst, r.ints(ids[:0]))
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	return dst, nil
}

// ints consumes an array of integers into dst.
func (r *reader) ints(dst []int64) []int64 {
	n := r.array()
	for i := 0; i < n && r.err == nil; i++ {
		dst = append(dst, r.int())
	}
	return dst
}
