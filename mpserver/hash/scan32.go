package hash

import "encoding/binary"

// gather32 reads n integers from the front of body and writes each to out as a
// big-endian uint32, which is the form that blake3 hashes. It returns the bytes
// they take, and whether one did not fit 32 unsigned bits (its low bits are
// written then).
//
// Token ids come as one to five bytes in no regular order, so a branch on the
// width is mispredicted half of the time. The main loop computes widths instead:
// the lead bytes of 8-, 16- and 32-bit integers are 0xcc to 0xce, and 8<<(lead&3)
// is the number of value bits behind them. The next lead byte comes out of the
// same eight bytes, so that a load serves two tokens. Everything else, bytes near
// the end included, takes the slow step.
func gather32(body []byte, n int, out []byte) (consumed int, wide bool, err error) {
	out = out[:4*n]
	i := 0
	for len(out) > 0 {
		if len(out) >= 8 && i+16 <= len(body) {
			x := binary.BigEndian.Uint64(body[i:])
			lead0 := byte(x >> 56)
			bits0 := uint(8) << (lead0 & 3)
			lead1 := byte(x << ((8 + bits0) & 63) >> 56)
			bits1 := uint(8) << (lead1 & 3)
			if lead0-u8Lead <= u32Lead-u8Lead && lead1-u8Lead <= u32Lead-u8Lead {
				second := i + int((8+bits0)>>3)
				y := binary.BigEndian.Uint64(body[second:])
				v0 := x << 8 >> ((64 - bits0) & 63)
				v1 := y << 8 >> ((64 - bits1) & 63)
				binary.BigEndian.PutUint64(out, v0<<32|v1)
				i = second + int((8+bits1)>>3)
				out = out[8:]
				continue
			}
			if lead0 < fixMapLead {
				binary.BigEndian.PutUint32(out, uint32(lead0))
				i++
				out = out[4:]
				continue
			}
		}
		v, negative, width, err := readInt(body[i:])
		if err != nil {
			return 0, false, err
		}
		wide = wide || negative || v > 0xffffffff
		binary.BigEndian.PutUint32(out, uint32(v))
		i += width
		out = out[4:]
	}
	return i, wide, nil
}
