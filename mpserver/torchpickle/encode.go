package torchpickle

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
)

// Encoder writes lists of tensors of one dtype and shape as a pickle that
// pickle.loads of a process with torch accepts. It is immutable and may be
// shared.
//
// The form is protocol 4 without frames and memo, so that each tensor is a
// fixed head, its bytes, and a fixed tail. Types without a storage class of
// their own (fp8, uint16 and so on) travel in a ByteStorage under
// _rebuild_tensor_v3: the UntypedStorage that torch itself writes there is
// something torch (2.15) cannot load.
type Encoder struct {
	head, tail []byte
	chunkBytes int
}

// maxChunkBytes keeps sizes of lists within int.
const maxChunkBytes = 1 << 40

// NewEncoder makes an encoder of contiguous tensors. The error wraps
// [ErrShape].
func NewEncoder(d torchdtype.DType, shape []int64) (*Encoder, error) {
	n, ok := numBytes(shape, d.Size)
	if !ok || n > maxChunkBytes || len(shape) > maxDims || d.Size <= 0 {
		return nil, fmt.Errorf("encode tensors of %v and %q: %w", shape, d.Name, ErrShape)
	}
	stride := make([]int64, len(shape))
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		stride[i] = step
		step *= max(1, shape[i])
	}
	blob := appendStorageHead(nil, d, n)
	e := &Encoder{chunkBytes: int(n)}

	h := appendGlobal(nil, "torch._utils", rebuildName(d))
	h = append(h, opMark)
	h = appendGlobal(h, "torch.storage", "_load_from_bytes")
	e.head = append(appendBytesHead(h, uint64(len(blob))+uint64(n)), blob...)

	t := append([]byte{opTuple1, opReduce}, opBinInt1, 0)
	t = appendTuple(t, shape)
	t = appendTuple(t, stride)
	t = append(t, opNewFalse)
	t = appendGlobal(t, "collections", "OrderedDict")
	t = append(t, opEmptyTuple, opReduce)
	if d.V3() {
		t = appendGlobal(t, "torch", d.Name)
	}
	t = append(t, opTuple, opReduce)
	e.tail = t
	return e, nil
}

// The list around the tensors: appended in batches, as pickle.dumps does, so
// that a reader's stack stays small.
var (
	listHead  = []byte{opProto, 4, opEmptyList, opMark}
	listBatch = []byte{opAppends, opMark}
	listTail  = []byte{opAppends, opStop}
)

// batchItems is pickle's _BATCHSIZE.
const batchItems = 1000

// ChunkBytes is the size of one tensor's elements in bytes.
func (e *Encoder) ChunkBytes() int { return e.chunkBytes }

// Size is the length in bytes of a pickled list of n tensors.
func (e *Encoder) Size(n int) int {
	batches := max(0, n-1) / batchItems
	return len(listHead) + len(listTail) + batches*len(listBatch) + n*(len(e.head)+e.chunkBytes+len(e.tail))
}

// Append appends the pickle of a list with one tensor for each chunk and
// returns the extended slice. Each chunk is copied once and not kept; dst
// grows at most once. Every chunk must have [Encoder.ChunkBytes] bytes: it
// panics otherwise, since the pickle would lie about its sizes.
func (e *Encoder) Append(dst []byte, chunks [][]byte) []byte {
	dst = slices.Grow(dst, e.Size(len(chunks)))
	dst = append(dst, listHead...)
	for i, c := range chunks {
		if len(c) != e.chunkBytes {
			panic(fmt.Sprintf("torchpickle: chunk %d has %d bytes, the encoder's have %d", i, len(c), e.chunkBytes))
		}
		if i > 0 && i%batchItems == 0 {
			dst = append(dst, listBatch...)
		}
		dst = append(dst, e.head...)
		dst = append(dst, c...)
		dst = append(dst, e.tail...)
	}
	return append(dst, listTail...)
}

// Pieces appends what [Encoder.Append] would write as pieces to be written one
// behind the other. The chunks are among them, not copied; the others belong
// to the encoder. None of them may be modified. It panics as Append does.
func (e *Encoder) Pieces(dst, chunks [][]byte) [][]byte {
	dst = append(slices.Grow(dst, 3*len(chunks)+2), listHead)
	for i, c := range chunks {
		if len(c) != e.chunkBytes {
			panic(fmt.Sprintf("torchpickle: chunk %d has %d bytes, the encoder's have %d", i, len(c), e.chunkBytes))
		}
		if i > 0 && i%batchItems == 0 {
			dst = append(dst, listBatch)
		}
		dst = append(dst, e.head, c, e.tail)
	}
	return append(dst, listTail)
}

func rebuildName(d torchdtype.DType) string {
	if d.V3() {
		return "_rebuild_tensor_v3"
	}
	return "_rebuild_tensor_v2"
}

// appendStorageHead appends torch.save's legacy form of a storage up to the
// raw bytes, of which there will be n.
func appendStorageHead(dst []byte, d torchdtype.DType, n int64) []byte {
	class, numel := d.Storage, n/int64(d.Size)
	if d.V3() {
		class, numel = "ByteStorage", n
	}
	dst = append(dst, opProto, 2, opLong1, byte(len(legacyMagic)))
	dst = append(dst, legacyMagic...)
	dst = append(dst, opStop)

	dst = append(dst, opProto, 2)
	dst = append(appendInt(dst, legacyVersion), opStop)

	dst = append(dst, opProto, 2, opEmptyDict, opMark)
	dst = appendInt(appendUnicode(dst, "protocol_version"), legacyVersion)
	dst = append(appendUnicode(dst, "little_endian"), opNewTrue)
	dst = append(appendUnicode(dst, "type_sizes"), opEmptyDict, opMark)
	dst = appendInt(appendUnicode(dst, "short"), 2)
	dst = appendInt(appendUnicode(dst, "int"), 4)
	dst = appendInt(appendUnicode(dst, "long"), 4)
	dst = append(dst, opSetItems, opSetItems, opStop)

	const key = "0"
	dst = append(dst, opProto, 2, opMark)
	dst = appendUnicode(dst, "storage")
	dst = append(dst, opGlobal)
	dst = append(dst, "torch\n"...)
	dst = append(dst, class...)
	dst = append(dst, '\n')
	dst = appendUnicode(dst, key)
	dst = appendUnicode(dst, "cpu")
	dst = appendInt(dst, numel)
	dst = append(dst, opNone, opTuple, opBinPersID, opStop)

	dst = append(dst, opProto, 2, opEmptyList)
	dst = append(appendUnicode(dst, key), opAppend, opStop)
	return binary.LittleEndian.AppendUint64(dst, uint64(numel))
}

// appendGlobal pushes a global by name, protocol 4.
func appendGlobal(dst []byte, module, name string) []byte {
	for _, s := range []string{module, name} {
		dst = append(dst, opShortBinUnicode, byte(len(s)))
		dst = append(dst, s...)
	}
	return append(dst, opStackGlobal)
}

// appendUnicode pushes text, protocol 2.
func appendUnicode(dst []byte, s string) []byte {
	dst = binary.LittleEndian.AppendUint32(append(dst, opBinUnicode), uint32(len(s)))
	return append(dst, s...)
}

// appendBytesHead announces n bytes.
func appendBytesHead(dst []byte, n uint64) []byte {
	if n < 1<<32 {
		return binary.LittleEndian.AppendUint32(append(dst, opBinBytes), uint32(n))
	}
	return binary.LittleEndian.AppendUint64(append(dst, opBinBytes8), n)
}

// appendTuple pushes a tuple of non-negative ints.
func appendTuple(dst []byte, vals []int64) []byte {
	dst = append(dst, opMark)
	for _, v := range vals {
		dst = appendInt(dst, v)
	}
	return append(dst, opTuple)
}

// appendInt pushes a non-negative int in the shortest form.
func appendInt(dst []byte, v int64) []byte {
	switch {
	case v < 1<<8:
		return append(dst, opBinInt1, byte(v))
	case v < 1<<16:
		return binary.LittleEndian.AppendUint16(append(dst, opBinInt2), uint16(v))
	case v < 1<<31:
		return binary.LittleEndian.AppendUint32(append(dst, opBinInt), uint32(v))
	}
	n := bits.Len64(uint64(v))/8 + 1 // room for the sign bit
	dst = append(dst, opLong1, byte(n))
	for i := range n {
		dst = append(dst, byte(uint64(v)>>(8*i)))
	}
	return dst
}
