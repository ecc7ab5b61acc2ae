package hash

import "encoding/binary"

// Lead bytes of msgpack integers; everything below fixMapLead is a positive
// fixint, everything from negFixLead up a negative one.
const (
	fixMapLead = 0x80
	u8Lead     = 0xcc
	u16Lead    = 0xcd
	u32Lead    = 0xce
	u64Lead    = 0xcf
	i8Lead     = 0xd0
	i16Lead    = 0xd1
	i32Lead    = 0xd2
	i64Lead    = 0xd3
	negFixLead = 0xe0
)

// intWidth is the encoded length in bytes of the integer that starts with a
// lead byte; 0 for a lead byte that does not start an integer.
var intWidth = func() (w [256]uint8) {
	for b := range w {
		switch {
		case b < fixMapLead || b >= negFixLead:
			w[b] = 1
		case b == u8Lead || b == i8Lead:
			w[b] = 2
		case b == u16Lead || b == i16Lead:
			w[b] = 3
		case b == u32Lead || b == i32Lead:
			w[b] = 5
		case b == u64Lead || b == i64Lead:
			w[b] = 9
		}
	}
	return w
}()

// skipInts returns the bytes that n integers at the front of body take.
func skipInts(body []byte, n int) (int, error) {
	i := 0
	for range n {
		if i >= len(body) {
			return 0, ErrTruncated
		}
		w := int(intWidth[body[i]])
		if w == 0 {
			return 0, ErrNotInteger
		}
		i += w
	}
	if i > len(body) {
		return 0, ErrTruncated
	}
	return i, nil
}

// readInt decodes the integer at the front of body: its magnitude as msgpack
// has it, and whether it is negative (then v is its two's complement).
func readInt(body []byte) (v uint64, negative bool, width int, err error) {
	if len(body) == 0 {
		return 0, false, 0, ErrTruncated
	}
	b := body[0]
	width = int(intWidth[b])
	switch {
	case width == 0:
		return 0, false, 0, ErrNotInteger
	case width > len(body):
		return 0, false, 0, ErrTruncated
	case b < fixMapLead:
		return uint64(b), false, 1, nil
	case b >= negFixLead:
		return uint64(int64(int8(b))), true, 1, nil
	}
	p := body[1:width]
	switch b {
	case u8Lead:
		v = uint64(p[0])
	case u16Lead:
		v = uint64(binary.BigEndian.Uint16(p))
	case u32Lead:
		v = uint64(binary.BigEndian.Uint32(p))
	case u64Lead:
		v = binary.BigEndian.Uint64(p)
	case i8Lead:
		v = uint64(int64(int8(p[0])))
	case i16Lead:
		v = uint64(int64(int16(binary.BigEndian.Uint16(p))))
	case i32Lead:
		v = uint64(int64(int32(binary.BigEndian.Uint32(p))))
	default:
		v = binary.BigEndian.Uint64(p)
	}
	return v, b >= i8Lead && int64(v) < 0, width, nil
}
