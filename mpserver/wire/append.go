package wire

import (
	"encoding/binary"
	"math"
)

// AppendNil appends a nil. Replies never hold one: None is the missing frame.
func AppendNil(dst []byte) []byte { return append(dst, mpNil) }

// AppendBool appends a bool.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, mpTrue)
	}
	return append(dst, mpFalse)
}

// AppendInt appends an integer in its shortest form.
func AppendInt(dst []byte, v int64) []byte {
	switch {
	case v >= 0:
		return AppendUint(dst, uint64(v))
	case v >= -32:
		return append(dst, byte(v))
	case v >= math.MinInt8:
		return append(dst, mpInt8, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, mpInt16), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, mpInt32), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(dst, mpInt64), uint64(v))
	}
}

// AppendUint appends an unsigned integer in its shortest form.
func AppendUint(dst []byte, v uint64) []byte {
	switch {
	case v < mpFixMap:
		return append(dst, byte(v))
	case v <= math.MaxUint8:
		return append(dst, mpUint8, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, mpUint16), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, mpUint32), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(dst, mpUint64), v)
	}
}

// AppendFloat appends a 64-bit float.
func AppendFloat(dst []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, mpFloat64), math.Float64bits(v))
}

// AppendString appends a string, which should be valid UTF-8.
func AppendString(dst []byte, s string) []byte {
	if n := len(s); n < 32 {
		dst = append(dst, mpFixStr|byte(n))
	} else {
		dst = appendLength(dst, mpStr8, n)
	}
	return append(dst, s...)
}

// AppendBytes appends a byte string; nil is the empty one. It must be shorter
// than 4 GiB.
func AppendBytes(dst, p []byte) []byte { return append(AppendBytesHead(dst, len(p)), p...) }

// AppendBytesHead appends what stands before a byte string of n bytes, which
// the caller writes right behind it.
func AppendBytesHead(dst []byte, n int) []byte { return appendLength(dst, mpBin8, n) }

// AppendStrings appends an array of strings (the reply to get_experimental).
func AppendStrings(dst []byte, v []string) []byte {
	dst = appendArrayHead(dst, len(v))
	for _, s := range v {
		dst = AppendString(dst, s)
	}
	return dst
}

// AppendInts appends an array of integers.
func AppendInts[T int | int64](dst []byte, v []T) []byte {
	dst = appendArrayHead(dst, len(v))
	for _, n := range v {
		dst = AppendInt(dst, int64(n))
	}
	return dst
}

// AppendBlockIDs appends block ids, one array for each group.
func AppendBlockIDs(dst []byte, groups [][]int64) []byte {
	dst = appendArrayHead(dst, len(groups))
	for _, ids := range groups {
		dst = AppendInts(dst, ids)
	}
	return dst
}

// appendLength appends a length behind lead8, or behind its 16- and 32-bit
// siblings, which follow it in the msgpack table.
func appendLength(dst []byte, lead8 byte, n int) []byte {
	switch {
	case n <= math.MaxUint8:
		return append(dst, lead8, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, lead8+1), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(dst, lead8+2), uint32(n))
	}
}

func appendArrayHead(dst []byte, n int) []byte {
	if n < 16 {
		return append(dst, mpFixArray|byte(n))
	}
	return appendLength16(dst, mpArray16, n)
}

func appendMapHead(dst []byte, n int) []byte {
	if n < 16 {
		return append(dst, mpFixMap|byte(n))
	}
	return appendLength16(dst, mpMap16, n)
}

// appendLength16 is appendLength for the families without an 8-bit form.
func appendLength16(dst []byte, lead16 byte, n int) []byte {
	if n <= math.MaxUint16 {
		return binary.BigEndian.AppendUint16(append(dst, lead16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, lead16+1), uint32(n))
}

// appendExtHead appends the head of an extension of n bytes.
func appendExtHead(dst []byte, code int8, n int) []byte {
	switch n {
	case 1, 2, 4, 8, 16:
		lead := byte(mpFixExt1)
		for w := n; w > 1; w >>= 1 {
			lead++
		}
		return append(dst, lead, byte(code))
	}
	return append(appendLength(dst, mpExt8, n), byte(code))
}
