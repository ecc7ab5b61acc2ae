package wire

import "fmt"

// Slot is where in the shared memory segment an object lies, or is to be
// written: the context maps of prepare_store and prepare_retrieve hold them.
type Slot struct {
	// Offset is in bytes from the start of the segment, Length the exact bytes
	// of the object: the product of Shape and the element size.
	Offset, Length int64
	Shape          []int64
	// DType is a canonical torch name ("float16", never "half").
	DType string
}

var slotNames = []string{"offset", "length", "shape", "dtype"}

func appendSlots(dst []byte, slots []Slot) []byte {
	dst = appendArrayHead(dst, len(slots))
	for i := range slots {
		s := &slots[i]
		dst = appendMapHead(dst, len(slotNames))
		dst = AppendInt(AppendString(dst, "offset"), s.Offset)
		dst = AppendInt(AppendString(dst, "length"), s.Length)
		dst = AppendInts(AppendString(dst, "shape"), s.Shape)
		dst = AppendString(AppendString(dst, "dtype"), s.DType)
	}
	return dst
}

// slotList consumes an array of slots.
func (r *reader) slotList(dst []Slot) []Slot {
	r.list("slots", func(int) {
		var s Slot
		r.object("slot", slotNames, 1<<4-1, func(i int) {
			switch i {
			case 0:
				s.Offset = r.count()
			case 1:
				s.Length = r.count()
			case 2:
				s.Shape = r.ints(nil)
			case 3:
				r.set(&s.DType)
			}
		})
		dst = append(dst, s)
	})
	return dst
}

// AppendPrepareStore appends the reply to prepare_store. With present the
// context holds the slots and, for each, the position of its chunk in the
// range asked for; none of both say that nothing is to be written. Without
// present the context is empty: the answer in pickle mode, and a failure.
func AppendPrepareStore(dst []byte, slots []Slot, chunkIndices []int, present bool) []byte {
	dst = AppendString(appendMapHead(dst, 1), "context")
	if !present {
		return appendMapHead(dst, 0)
	}
	dst = appendSlots(AppendString(appendMapHead(dst, 2), "slots"), slots)
	return AppendInts(AppendString(dst, "chunk_indices"), chunkIndices)
}

// PrepareStoreReply is the reply to prepare_store.
type PrepareStoreReply struct {
	// Present says that the server gave out slots, perhaps none because nothing
	// is missing. Otherwise the bytes are to be sent with the commit.
	Present bool
	Slots   []Slot
	// ChunkIndices holds for each slot the position of its chunk in the range.
	ChunkIndices []int
}

var (
	prepareStoreNames        = []string{"context"}
	prepareStoreContextNames = []string{"slots", "chunk_indices"}
)

// DecodePrepareStore reads the reply to prepare_store.
func DecodePrepareStore(frame []byte) (*PrepareStoreReply, error) {
	r := reader{b: frame}
	p := &PrepareStoreReply{}
	r.object("reply", prepareStoreNames, 0, func(int) {
		*p = PrepareStoreReply{}
		r.object("context", prepareStoreContextNames, 0, func(i int) {
			if i == 0 {
				p.Present, p.Slots = true, r.slotList(nil)
				return
			}
			p.ChunkIndices = nil
			r.list("chunk_indices", func(int) { p.ChunkIndices = append(p.ChunkIndices, int(r.count())) })
		})
	})
	if err := r.done(); err != nil {
		return nil, err
	}
	if len(p.Slots) != len(p.ChunkIndices) {
		return nil, fmt.Errorf("%w: %d slots and %d chunk indices", ErrValue, len(p.Slots), len(p.ChunkIndices))
	}
	return p, nil
}

// AppendPrepareRetrieve appends the reply to prepare_retrieve. data is the
// pickle of a hit in pickle mode, nil otherwise; with shm the context holds the
// slots of all chunks of the range. A miss is (false, nil, nil, false).
func AppendPrepareRetrieve(dst []byte, ok bool, data []byte, slots []Slot, shm bool) []byte {
	dst = append(AppendPrepareRetrieveHead(dst, ok, len(data)), data...)
	if !shm {
		return AppendPrepareRetrieveTail(dst)
	}
	dst = AppendString(dst, "context")
	return appendSlots(AppendString(appendMapHead(dst, 1), "slots"), slots)
}

// AppendPrepareRetrieveHead appends the reply to prepare_retrieve up to the
// data. The caller writes exactly dataLen bytes behind it, so that a large
// pickle is made in place, and then [AppendPrepareRetrieveTail]. dataLen must
// be below 4 GiB.
func AppendPrepareRetrieveHead(dst []byte, ok bool, dataLen int) []byte {
	dst = AppendBool(AppendString(appendMapHead(dst, 3), "success"), ok)
	return AppendBytesHead(AppendString(dst, "data"), dataLen)
}

// AppendPrepareRetrieveTail ends what [AppendPrepareRetrieveHead] began: an
// empty context, since data and slots exclude each other.
func AppendPrepareRetrieveTail(dst []byte) []byte {
	return appendMapHead(AppendString(dst, "context"), 0)
}

// PrepareRetrieveReply is the reply to prepare_retrieve. A hit has either Data
// or Slots.
type PrepareRetrieveReply struct {
	Success bool
	// Data is a view into the frame.
	Data  []byte
	Slots []Slot
}

var (
	prepareRetrieveNames        = []string{"success", "data", "context"}
	prepareRetrieveContextNames = []string{"slots"}
)

// DecodePrepareRetrieve reads the reply to prepare_retrieve.
func DecodePrepareRetrieve(frame []byte) (*PrepareRetrieveReply, error) {
	r := reader{b: frame}
	p := &PrepareRetrieveReply{}
	r.object("reply", prepareRetrieveNames, 1, func(i int) {
		switch i {
		case 0:
			p.Success = r.bool()
		case 1:
			p.Data = r.bin()
		case 2:
			p.Slots = nil
			r.object("context", prepareRetrieveContextNames, 0, func(int) { p.Slots = r.slotList(nil) })
		}
	})
	if err := r.done(); err != nil {
		return nil, err
	}
	return p, nil
}

// AppendStoreReply appends the reply to store and retrieve: a handle of the
// event that marks completion (empty: complete) and whether it will succeed.
func AppendStoreReply(dst, event []byte, ok bool) []byte {
	return AppendBool(AppendBytes(appendArrayHead(dst, 2), event), ok)
}

// DecodeStoreReply reads what [AppendStoreReply] writes. The event is a view
// into the frame.
func DecodeStoreReply(frame []byte) (event []byte, ok bool, err error) {
	r := reader{b: frame}
	if n := r.array(); r.err == nil && n != 2 {
		r.fail(fmt.Errorf("%w: array of %d, want 2", ErrValue, n))
	}
	event, ok = r.bin(), r.bool()
	if err = r.done(); err != nil {
		return nil, false, err
	}
	return event, ok, nil
}
