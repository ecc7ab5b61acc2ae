package torchpickle

// The pickle operations that lists of tensors use in protocols 2 to 5
// (pickletools of CPython 3.13; wire-protocol 12.3). Everything else is
// refused.
const (
	opMark            = '('
	opStop            = '.'
	opAppend          = 'a'
	opAppends         = 'e'
	opBinBytes        = 'B'
	opShortBinBytes   = 'C'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opBinPersID       = 'Q'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opBinUnicode      = 'X'
	opEmptyDict       = '}'
	opEmptyList       = ']'
	opEmptyTuple      = ')'
	opGlobal          = 'c'
	opNone            = 'N'
	opReduce          = 'R'
	opSetItem         = 's'
	opSetItems        = 'u'
	opTuple           = 't'
	opProto           = 0x80
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
)

// Protocols that [Parse] accepts.
const (
	minProtocol = 2
	maxProtocol = 5
)
