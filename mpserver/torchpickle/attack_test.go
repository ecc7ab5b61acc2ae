package torchpickle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Pieces of hand-made pickles.

func cat(parts ...any) []byte {
	var out []byte
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			out = append(out, p...)
		case []byte:
			out = append(out, p...)
		case int: // an operation or a small operand
			out = append(out, byte(p))
		case rune: // an operation written as a character
			out = append(out, byte(p))
		default:
			panic("a pickle made of something else")
		}
	}
	return out
}

func u32(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
func u64(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

func times(n int, parts ...any) []byte { return bytes.Repeat(cat(parts...), n) }

func global(module, name string) []byte { return appendGlobal(nil, module, name) }

func ints(vals ...int64) []byte { return appendTuple(nil, vals) }

func binBytes(b []byte) []byte { return append(appendBytesHead(nil, uint64(len(b))), b...) }

// blob is torch.save's form of a storage of uint8.
func blob(raw []byte) []byte { return append(storageHead("uint8", len(raw)), raw...) }

func storageHead(dtype string, n int) []byte {
	for _, d := range dtypes {
		if d.Name == dtype {
			return appendStorageHead(nil, d, int64(n))
		}
	}
	panic("no dtype " + dtype)
}

// load is a call of _load_from_bytes.
func load(b []byte) []byte {
	return cat(global("torch.storage", "_load_from_bytes"), binBytes(b), opTuple1, opReduce)
}

var (
	start    = cat(opProto, 4)
	hooks    = cat(global("collections", "OrderedDict"), opEmptyTuple, opReduce)
	rebuild2 = global("torch._utils", "_rebuild_tensor_v2")
	rebuild3 = global("torch._utils", "_rebuild_tensor_v3")
)

// tensor2 is a rebuilt tensor with the given pieces of its arguments.
func tensor2(storage, offset, size, stride []byte) []byte {
	return cat(rebuild2, opMark, storage, offset, size, stride, opNewFalse, hooks, opTuple, opReduce)
}

func list(items ...any) []byte {
	return cat(start, opEmptyList, opMark, cat(items...), opAppends, opStop)
}

func good4() []byte {
	return tensor2(load(blob([]byte{1, 2, 3, 4})), appendInt(nil, 0), ints(4), ints(1))
}

func TestHandMadePickleIsGood(t *testing.T) {
	got, err := Parse(list(good4(), good4()))
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Equal(t, []byte{1, 2, 3, 4}, contents(t, &got[1]))
}

// TestRefusals: each input is wrong in one way and must end in the named error.
func TestRefusals(t *testing.T) {
	long := strings.Repeat("x", 70)
	zero := appendInt(nil, 0)
	st := load(blob([]byte{1, 2, 3, 4}))
	big := func(n int64) []byte { return appendInt(nil, n) }
	negative := cat(opBinInt, u32(math.MaxUint32))
	dtype := global("torch", "float8_e4m3fn")
	odd := blob([]byte{1, 2, 3, 4})
	swap := func(old, repl string) []byte {
		require.Contains(t, string(odd), old)
		return load(bytes.Replace(odd, []byte(old), []byte(repl), 1))
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"nothing":           {nil, ErrMalformed},
		"one byte":          {cat(opProto), ErrMalformed},
		"no proto":          {cat(opEmptyList, opStop), ErrMalformed},
		"protocol 1":        {cat(opProto, 1, opEmptyList, opStop), ErrMalformed},
		"protocol 6":        {cat(opProto, 6, opEmptyList, opStop), ErrMalformed},
		"no stop":           {cat(start, opEmptyList), ErrMalformed},
		"empty stack":       {cat(start, opStop), ErrMalformed},
		"two values":        {cat(start, opEmptyList, opEmptyList, opStop), ErrMalformed},
		"open mark":         {cat(start, opEmptyList, opMark, opStop), ErrMalformed},
		"trailing byte":     {cat(list(good4()), 0), ErrMalformed},
		"not a list":        {cat(start, good4(), opStop), ErrMalformed},
		"list of None":      {list(opNone), ErrMalformed},
		"list in itself":    {cat(start, opEmptyList, opMemoize, opBinGet, 0, opAppend, opStop), ErrMalformed},
		"unknown operation": {cat(start, 0x00, opStop), ErrForbidden},
		"second proto":      {cat(start, opProto, 4, opEmptyList, opStop), ErrForbidden},
		"float":             {cat(start, 'G', u64(0), opStop), ErrForbidden},
		"build":             {cat(start, opEmptyList, opNone, 'b', opStop), ErrForbidden},
		"newobj":            {cat(start, opEmptyList, opEmptyTuple, 0x81, opStop), ErrForbidden},
		"inst":              {cat(start, opMark, "ios\nsystem\n", opStop), ErrForbidden},
		"obj":               {cat(start, opMark, opNone, 'o', opStop), ErrForbidden},
		"ext":               {cat(start, 0x82, 1, opStop), ErrForbidden},
		"text persistent":   {cat(start, "P1\n", opStop), ErrForbidden},
		"out of band":       {cat(start, 0x97, opStop), ErrForbidden},

		"os.system":             {cat(start, global("os", "system"), "\x8c\x04true", opTuple1, opReduce, opStop), ErrForbidden},
		"os.system protocol2":   {cat(opProto, 2, "cos\nsystem\n", opStop), ErrForbidden},
		"eval":                  {cat(start, global("builtins", "eval"), opStop), ErrForbidden},
		"torch.load":            {cat(start, global("torch", "load"), opStop), ErrForbidden},
		"dotted name":           {cat(start, global("torch.storage", "_load_from_bytes.__globals__"), opStop), ErrForbidden},
		"dotted dtype":          {cat(start, global("torch", "float16.to_real"), opStop), ErrForbidden},
		"long name":             {cat(start, global(long, "x"), opStop), ErrForbidden},
		"endless name":          {cat(start, opGlobal, times(1<<16, "a")), ErrForbidden},
		"name cut":              {cat(start, opGlobal, "torch\nfl"), ErrForbidden},
		"global of ints":        {cat(start, zero, zero, opStackGlobal, opStop), ErrMalformed},
		"storage class outside": {cat(start, global("torch", "ByteStorage"), opStop), ErrForbidden},
		"call of a dtype":       {cat(start, dtype, opEmptyTuple, opReduce, opStop), ErrForbidden},
		"call of text":          {cat(start, "\x8c\x01x", opEmptyTuple, opReduce, opStop), ErrForbidden},
		"call with a list":      {cat(start, rebuild2, opEmptyList, opReduce, opStop), ErrForbidden},
		"filled OrderedDict":    {cat(start, global("collections", "OrderedDict"), opEmptyList, opTuple1, opReduce, opStop), ErrForbidden},
		"items into hooks":      {cat(start, hooks, opNone, opNone, opSetItem, opStop), ErrMalformed},
		"encode to utf8":        {cat(start, global("_codecs", "encode"), "\x8c\x01x", "\x8c\x04utf8", opTuple2, opReduce, opStop), ErrForbidden},
		"encode of bytes":       {cat(start, global("_codecs", "encode"), "C\x01x", "\x8c\x06latin1", opTuple2, opReduce, opStop), ErrForbidden},
		"wide text":             {cat(start, global("_codecs", "encode"), "\x8c\x02\xc4\x80", "\x8c\x06latin1", opTuple2, opReduce, opStop), ErrMalformed},
		"cut text":              {cat(start, global("_codecs", "encode"), "\x8c\x01\xc3", "\x8c\x06latin1", opTuple2, opReduce, opStop), ErrMalformed},
		"persistent outside":    {cat(start, opNone, opBinPersID, opStop), ErrForbidden},

		"pop below mark":    {cat(start, opEmptyTuple, rebuild2, opMark, opReduce, opStop), ErrMalformed},
		"tuple of nothing":  {cat(start, opTuple2, opStop), ErrMalformed},
		"tuple no mark":     {cat(start, opTuple, opStop), ErrMalformed},
		"appends no mark":   {cat(start, opEmptyList, opAppends, opStop), ErrMalformed},
		"append below mark": {cat(start, opEmptyList, opMark, opNone, opAppend, opStop), ErrMalformed},
		"append to tuple":   {cat(start, opEmptyTuple, opNone, opAppend, opStop), ErrMalformed},
		"odd items":         {cat(start, opEmptyDict, opMark, opNone, opSetItems, opStop), ErrMalformed},
		"memo of nothing":   {cat(start, opMemoize, opStop), ErrMalformed},
		"memo below mark":   {cat(start, opNone, opMark, opMemoize, opStop), ErrMalformed},
		"memo gap":          {cat(start, opNone, opBinPut, 1, opStop), ErrMalformed},
		"memo far":          {cat(start, opNone, opLongBinPut, u32(math.MaxUint32), opStop), ErrMalformed},
		"memo unset":        {cat(start, opBinGet, 0, opStop), ErrMalformed},
		"memo unset far":    {cat(start, opLongBinGet, u32(math.MaxUint32), opStop), ErrMalformed},

		"bytes 4 GiB": {cat(start, opBinBytes, u32(math.MaxUint32), "x"), ErrMalformed},
		"bytes 2^64":  {cat(start, opBinBytes8, u64(math.MaxUint64), "x"), ErrMalformed},
		"bytes 2^63":  {cat(start, opBinBytes8, u64(1<<63), "x"), ErrMalformed},
		"text 4 GiB":  {cat(start, opBinUnicode, u32(math.MaxUint32), "x"), ErrMalformed},
		"text 2^64":   {cat(start, opBinUnicode8, u64(math.MaxUint64), "x"), ErrMalformed},
		"short bytes": {cat(start, opShortBinBytes, 255, "x"), ErrMalformed},
		"short text":  {cat(start, opShortBinUnicode, 255, "x"), ErrMalformed},
		"long int":    {cat(start, opLong1, 255, "x"), ErrMalformed},
		"frame 2^64":  {cat(start, opFrame, u64(math.MaxUint64), opEmptyList, opStop), ErrMalformed},
		"operand cut": {cat(start, opBinInt, 1, 2), ErrMalformed},

		"marks":      {cat(start, times(maxMarks+1, opMark)), ErrLimit},
		"stack":      {cat(start, times(maxStack+1, opNone)), ErrLimit},
		"lists":      {cat(start, times(maxLists+1, opEmptyList)), ErrLimit},
		"dicts":      {cat(start, times(maxDicts+1, opEmptyDict)), ErrLimit},
		"dimensions": {list(tensor2(st, zero, ints(make([]int64, 17)...), ints(make([]int64, 17)...))), ErrLimit},

		"v2 of nothing":     {cat(start, rebuild2, opEmptyTuple, opReduce, opStop), ErrMalformed},
		"v2 storage None":   {list(tensor2(cat(opNone), zero, ints(4), ints(1))), ErrMalformed},
		"offset text":       {list(tensor2(st, cat("\x8c\x010"), ints(4), ints(1))), ErrMalformed},
		"offset wide":       {list(tensor2(st, cat(opLong1, 9, times(9, 1)), ints(4), ints(1))), ErrMalformed},
		"offset negative":   {list(tensor2(st, negative, ints(4), ints(1))), ErrBounds},
		"offset one":        {list(tensor2(st, big(1), ints(4), ints(1))), ErrBounds},
		"offset 2^63-1":     {list(tensor2(st, big(math.MaxInt64), ints(1), ints(1))), ErrBounds},
		"size list":         {list(tensor2(st, zero, cat(opEmptyList), ints(1))), ErrMalformed},
		"size of bool":      {list(tensor2(st, zero, cat(opNewTrue, opTuple1), ints(1))), ErrMalformed},
		"size negative":     {list(tensor2(st, zero, cat(negative, opTuple1), ints(1))), ErrBounds},
		"size five":         {list(tensor2(st, zero, ints(5), ints(1))), ErrBounds},
		"size product":      {list(tensor2(st, zero, ints(1<<40, 1<<40), ints(0, 0))), ErrBounds},
		"stride negative":   {list(tensor2(st, zero, ints(2), cat(negative, opTuple1))), ErrBounds},
		"stride two":        {list(tensor2(st, zero, ints(4), ints(2))), ErrBounds},
		"stride wraps":      {list(tensor2(st, zero, ints(5, 2), ints(1<<62, 1))), ErrBounds},
		"stride sum wraps":  {list(tensor2(st, big(2), ints(2, 2), ints(math.MaxInt64, math.MaxInt64))), ErrBounds},
		"size and stride":   {list(tensor2(st, zero, ints(4), ints(1, 1))), ErrMalformed},
		"grad None":         {list(cat(rebuild2, opMark, st, zero, ints(4), ints(1), opNone, hooks, opTuple, opReduce)), ErrMalformed},
		"hooks list":        {list(cat(rebuild2, opMark, st, zero, ints(4), ints(1), opNewFalse, opEmptyList, opTuple, opReduce)), ErrForbidden},
		"v3 no dtype":       {list(cat(rebuild3, opMark, st, zero, ints(4), ints(1), opNewFalse, hooks, opTuple, opReduce)), ErrMalformed},
		"v3 dtype text":     {list(cat(rebuild3, opMark, st, zero, ints(4), ints(1), opNewFalse, hooks, "\x8c\x01x", opTuple, opReduce)), ErrMalformed},
		"v3 dtype function": {list(cat(rebuild3, opMark, st, zero, ints(4), ints(1), opNewFalse, hooks, rebuild2, opTuple, opReduce)), ErrMalformed},
		"v3 size":           {list(cat(rebuild3, opMark, st, zero, ints(5), ints(1), opNewFalse, hooks, dtype, opTuple, opReduce)), ErrBounds},
		"v3 wide dtype":     {list(cat(rebuild3, opMark, st, zero, ints(3), ints(1), opNewFalse, hooks, global("torch", "uint16"), opTuple, opReduce)), ErrBounds},
		"load of None":      {cat(start, global("torch.storage", "_load_from_bytes"), opNone, opTuple1, opReduce, opStop), ErrMalformed},
		"load of text":      {cat(start, global("torch.storage", "_load_from_bytes"), "\x8c\x01x", opTuple1, opReduce, opStop), ErrMalformed},
		"load of empty":     {cat(start, load(nil), opStop), ErrMalformed},
		"load of a zip":     {cat(start, load([]byte("PK\x03\x04")), opStop), ErrMalformed},
		"load of a pickle":  {cat(start, load(list(good4())), opStop), ErrForbidden},
		"magic only":        {cat(start, load(odd[:15]), opStop), ErrMalformed},
		"other magic":       {cat(start, swap("\x6c\xfc", "\x6d\xfc"), opStop), ErrMalformed},
		"other version":     {cat(start, swap("M\xe9\x03.", "M\xea\x03."), opStop), ErrMalformed},
		"big endian":        {cat(start, swap("\x88X", "\x89X"), opStop), ErrMalformed},
		"cuda":              {cat(start, swap("\x03\x00\x00\x00cpu", "\x04\x00\x00\x00cuda"), opStop), ErrForbidden},
		"not a storage":     {cat(start, swap("storage", "module\x00"), opStop), ErrMalformed},
		"other class":       {cat(start, swap("torch\nByteStorage", "torch\nByteTensor"), opStop), ErrForbidden},
		"function as class": {cat(start, swap("torch\nByteStorage", "os\nsystem"), opStop), ErrForbidden},
		"outer name inside": {cat(start, swap("torch\nByteStorage", "torch.storage\n_load_from_bytes"), opStop), ErrForbidden},
		"class is text":     {cat(start, swap("ctorch\nByteStorage\n", "\x8c\x01x"), opStop), ErrMalformed},
		"numel three":       {cat(start, swap("K\x04N", "K\x03N"), opStop), ErrMalformed},
		"numel negative":    {cat(start, swap("K\x04N", "J\xff\xff\xff\xffN"), opStop), ErrMalformed},
		"numel wide":        {cat(start, swap("K\x04N", "\x8a\x09123456789N"), opStop), ErrMalformed},
		"view metadata":     {cat(start, swap("K\x04Nt", "K\x04K\x00t"), opStop), ErrForbidden},
		"two ids":           {cat(start, swap("NtQ", "NtQQ"), opStop), ErrForbidden},
		"no id":             {cat(start, swap("NtQ.", "Nt."), opStop), ErrMalformed},
		"keys differ":       {cat(start, swap("]X\x01\x00\x00\x000a", "]X\x01\x00\x00\x001a"), opStop), ErrMalformed},
		"keys empty":        {cat(start, swap("]X\x01\x00\x00\x000a", "]"), opStop), ErrMalformed},
		"id in the keys":    {cat(start, swap("0a.", "0aQ."), opStop), ErrForbidden},
		"bytes missing":     {cat(start, load(odd[:len(odd)-1]), opStop), ErrMalformed},
		"bytes too many":    {cat(start, load(cat(odd, 0)), opStop), ErrMalformed},
		"count missing":     {cat(start, load(odd[:len(odd)-5]), opStop), ErrMalformed},
		"count huge":        {cat(start, load(cat(storageHead("float64", 1<<40), "x")), opStop), ErrMalformed},
		"count wraps":       {cat(start, load(cat(bytes.TrimSuffix(storageHead("float64", 0), u64(0)), u64(1<<61))), opStop), ErrMalformed},
	} {
		got, err := Parse(c.data)
		if err == nil {
			t.Errorf("%s: parsed as %d tensors", name, len(got))
			continue
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

// TestAccepted: unusual but right.
func TestAccepted(t *testing.T) {
	st := load(blob([]byte{1, 2, 3, 4}))
	zero := appendInt(nil, 0)
	f := func(data, want []byte) {
		t.Helper()
		got, err := Parse(data)
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, want, contents(t, &got[0]))
	}
	f(list(cat(rebuild2, opMark, st, zero, ints(4), ints(1), opNewTrue, hooks, opEmptyDict, opTuple, opReduce)), []byte{1, 2, 3, 4})
	f(list(cat(rebuild2, opMark, st, zero, ints(4), ints(1), opNewTrue, opNone, opNone, opTuple, opReduce)), []byte{1, 2, 3, 4})
	f(list(tensor2(st, cat(opLong1, 0), ints(2), ints(3))), []byte{1, 4})
	f(list(tensor2(st, appendInt(nil, 1000), ints(0, 3), ints(3, 1))), []byte{})
}

func TestLong1(t *testing.T) {
	for _, c := range []struct {
		bytes []byte
		want  int64
	}{
		{nil, 0},
		{[]byte{0x7f}, 127},
		{[]byte{0x80}, -128},
		{[]byte{0xff, 0xff}, -1},
		{[]byte{0, 0, 0, 0, 0, 0, 0, 0x80}, math.MinInt64},
		{[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, math.MaxInt64},
		{[]byte{0xff, 0xff, 0xff, 0x7f}, math.MaxInt32},
	} {
		p := parsers.Get().(*parser)
		p.left = newBudget(100)
		p.outer.begin(cat(start, opLong1, len(c.bytes), c.bytes, opStop), 0)
		v, err := p.outer.run()
		require.NoError(t, err)
		require.Equal(t, value{kind: kindInt, a: c.want}, v)
		p.release()
	}
}

// TestBombs: inputs that ask for much more work or memory than their size.
// Each must end in ErrLimit, and none may allocate more than a small multiple
// of its size.
func TestBombs(t *testing.T) {
	zero := appendInt(nil, 0)
	remember := func(index int, what []byte) []byte { return cat(what, opLongBinPut, u32(uint32(index))) }
	// half a MiB of a storage's header that does nothing
	slow := bytes.Replace(blob([]byte{1}), []byte("}("), cat(opEmptyDict, times(1<<18, opBinPut, 0), opMark), 1)
	text := bytes.Repeat([]byte{'a'}, 1<<20)
	args := cat(opMark, load(blob(pattern(16, 1))), zero, ints(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
		ints(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), opNewFalse, hooks, opTuple)
	// head leaves an open list with two values remembered
	head := func(a, b []byte) []byte { return cat(start, remember(0, a), remember(1, b), opTuple2, opMemoize) }
	_, err := Parse(list(tensor2(load(slow), zero, ints(1), ints(1))))
	require.NoError(t, err, "once, the slow storage is fine")
	for name, data := range map[string][]byte{
		"memo":  cat(start, opNone, times(1<<20, opMemoize), opStop),
		"cells": cat(start, opNone, times(1<<20, opTuple1), opStop),
		"items": cat(start, opEmptyList, times(1<<16+1, opNone, opAppend), opStop),
		"loading again": cat(head(global("torch.storage", "_load_from_bytes"), cat(binBytes(slow), opTuple1)),
			times(1000, opBinGet, 0, opBinGet, 1, opReduce)),
		"decoding again": cat(head(global("_codecs", "encode"), cat(opBinUnicode, u32(1<<20), text, "\x8c\x06latin1", opTuple2)),
			times(1000, opBinGet, 0, opBinGet, 1, opReduce)),
		"rebuilding again": cat(head(rebuild2, args), times(4000, opBinGet, 0, opBinGet, 1, opReduce)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(data)
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, ErrLimit, name)
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(40*len(data)+1<<20); got > most {
			t.Errorf("%s: %d bytes allocated for an input of %d", name, got, len(data))
		}
	}
}
