package torchpickle

import "github.com/lmcache-go/lmcache-go/internal/torchdtype"

// kind says what a value is.
type kind uint8

const (
	kindNone        kind = iota
	kindBool             // a: 0 or 1
	kindInt              // a
	kindBig              // an int wider than 64 bits; src[a:b], little endian
	kindText             // src[a:b]
	kindBytes            // src[a:b]
	kindDecoded          // bytes made from text (protocol 2); a: index into parser.decoded
	kindTuple            // cells[a:a+b]
	kindList             // a: index into machine.lists
	kindDict             // a: index into machine.dicts
	kindOrderedDict      // always empty
	kindGlobal           // a: one of the global constants, b: index into dtypes where it has one
	kindStorage          // a: index into parser.storages
	kindTensor           // a: index into parser.tensors
)

// String names a kind in errors.
func (k kind) String() string {
	switch k {
	case kindNone:
		return "None"
	case kindBool:
		return "bool"
	case kindInt, kindBig:
		return "int"
	case kindText:
		return "str"
	case kindBytes, kindDecoded:
		return "bytes"
	case kindTuple:
		return "tuple"
	case kindList:
		return "list"
	case kindDict:
		return "dict"
	case kindOrderedDict:
		return "OrderedDict"
	case kindGlobal:
		return "global"
	case kindStorage:
		return "storage"
	case kindTensor:
		return "tensor"
	}
	return "unknown"
}

// value is one Python object. It holds offsets and indexes, no pointers, so
// that machines can be pooled without keeping anybody's message alive.
type value struct {
	a, b int64
	kind kind
}

// dict holds what is asked about a dictionary later; nothing else of it is
// kept.
type dict struct {
	entries      int
	version      int64 // "protocol_version"
	littleEndian bool  // "little_endian"
}

// storage is a loaded torch storage.
type storage struct {
	dtype torchdtype.DType // element type that its class implies; zero for UntypedStorage
	data  []byte
}

// tensorRecord is a rebuilt tensor before the result is made.
type tensorRecord struct {
	dtype  torchdtype.DType
	data   []byte
	offset int64
	first  int // shape at ints[first:first+dims], stride right behind
	dims   int
}
