package wire

import "encoding/binary"

// Lead bytes of msgpack (github.com/msgpack/msgpack/blob/master/spec.md).
const (
	mpFixMap   = 0x80
	mpFixArray = 0x90
	mpFixStr   = 0xa0
	mpNil      = 0xc0
	mpFalse    = 0xc2
	mpTrue     = 0xc3
	mpBin8     = 0xc4
	mpBin16    = 0xc5
	mpBin32    = 0xc6
	mpExt8     = 0xc7
	mpExt16    = 0xc8
	mpExt32    = 0xc9
	mpFloat32  = 0xca
	mpFloat64  = 0xcb
	mpUint8    = 0xcc
	mpUint16   = 0xcd
	mpUint32   = 0xce
	mpUint64   = 0xcf
	mpInt8     = 0xd0
	mpInt16    = 0xd1
	mpInt32    = 0xd2
	mpInt64    = 0xd3
	mpFixExt1  = 0xd4
	mpFixExt16 = 0xd8
	mpStr8     = 0xd9
	mpStr16    = 0xda
	mpStr32    = 0xdb
	mpArray16  = 0xdc
	mpArray32  = 0xdd
	mpMap16    = 0xde
	mpMap32    = 0xdf
	mpNegFix   = 0xe0
)

// kind is the msgpack family of a document.
type kind uint8

const (
	kindNone kind = iota // the reserved byte 0xc1
	kindNil
	kindBool
	kindInt
	kindFloat
	kindStr
	kindBin
	kindArray
	kindMap
	kindExt
)

// class describes a lead byte: the family, how many bytes of length or value
// follow it, and the length that it holds itself.
type class struct {
	kind  kind
	extra uint8 // bytes of value (int, float) or of length (all others)
	fixed uint8 // length of a fix form; meaningful when extra is 0
}

var classes = func() (c [256]class) {
	for b := range c {
		switch {
		case b < mpFixMap || b >= mpNegFix:
			c[b] = class{kind: kindInt}
		case b < mpFixArray:
			c[b] = class{kind: kindMap, fixed: uint8(b & 0x0f)}
		case b < mpFixStr:
			c[b] = class{kind: kindArray, fixed: uint8(b & 0x0f)}
		case b < mpNil:
			c[b] = class{kind: kindStr, fixed: uint8(b & 0x1f)}
		}
	}
	c[mpNil] = class{kind: kindNil}
	c[mpFalse], c[mpTrue] = class{kind: kindBool}, class{kind: kindBool}
	for i := range 3 {
		w := uint8(1) << i
		c[mpBin8+i] = class{kind: kindBin, extra: w}
		c[mpExt8+i] = class{kind: kindExt, extra: w}
		c[mpStr8+i] = class{kind: kindStr, extra: w}
	}
	for i := range 4 {
		c[mpUint8+i] = class{kind: kindInt, extra: 1 << i}
		c[mpInt8+i] = class{kind: kindInt, extra: 1 << i}
	}
	for i := range 5 {
		c[mpFixExt1+i] = class{kind: kindExt, fixed: 1 << i}
	}
	c[mpFloat32], c[mpFloat64] = class{kind: kindFloat, extra: 4}, class{kind: kindFloat, extra: 8}
	c[mpArray16], c[mpArray32] = class{kind: kindArray, extra: 2}, class{kind: kindArray, extra: 4}
	c[mpMap16], c[mpMap32] = class{kind: kindMap, extra: 2}, class{kind: kindMap, extra: 4}
	return c
}()

// bigEndian reads an unsigned integer of 0, 1, 2, 4 or 8 bytes.
func bigEndian(p []byte) uint64 {
	switch len(p) {
	case 0:
		return 0
	case 1:
		return uint64(p[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(p))
	case 4:
		return uint64(binary.BigEndian.Uint32(p))
	default:
		return binary.BigEndian.Uint64(p)
	}
}
