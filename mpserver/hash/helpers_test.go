package hash

import "encoding/binary"

// encode writes tokens as a client does: each in its shortest form.
func encode(tokens []uint64) (dst []byte) {
	for _, v := range tokens {
		switch {
		case v < 0x80:
			dst = append(dst, byte(v))
		case v <= 0xff:
			dst = append(dst, u8Lead, byte(v))
		case v <= 0xffff:
			dst = binary.BigEndian.AppendUint16(append(dst, u16Lead), uint16(v))
		case v <= 0xffffffff:
			dst = binary.BigEndian.AppendUint32(append(dst, u32Lead), uint32(v))
		default:
			dst = binary.BigEndian.AppendUint64(append(dst, u64Lead), v)
		}
	}
	return dst
}
