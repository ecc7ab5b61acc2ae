package wire

// Kinds and media of a [KVEventRecord] (lmcache 0.5.6,
// v1/multiprocess/custom_types.py).
const (
	KVEventStored  = "stored"
	KVEventRemoved = "removed"
	KVMediumCPU    = "CPU"
)

// KVEventCapability is the name in the reply to get_experimental that makes
// clients call subscribe_kv_events.
const KVEventCapability = "kv_event_stream"

// MaxKVEvents is the most events a client may ask for in a batch.
const MaxKVEvents = 1024

// KVEventBatch is one item of the stream that subscribe_kv_events opens.
type KVEventBatch struct {
	// Enabled is false in the last batch of a server that has no stream.
	Enabled bool
	// Incarnation is the start of the server in nanoseconds.
	Incarnation int64
	// NextCursor is the cursor to go on with: the last seq seen.
	NextCursor int64
	// Lost says that events before this batch are not in the log any more.
	Lost   bool
	Events []KVEventRecord
}

// KVEventRecord is one change of the cache.
type KVEventRecord struct {
	// Seq counts from 1.
	Seq    int64
	Kind   string
	Medium string
	Model  string
	// BlockHashes are views into the frame when decoded, and so is ParentHash,
	// which is nil for a first chunk.
	BlockHashes [][]byte
	ParentHash  []byte
	// TokenIDs are the tokens of a stored chunk.
	TokenIDs []uint32
}

// AppendKVEventBatch appends a batch.
func AppendKVEventBatch(dst []byte, b *KVEventBatch) []byte {
	dst = appendMapHead(dst, len(batchNames))
	dst = AppendBool(AppendString(dst, "enabled"), b.Enabled)
	dst = AppendInt(AppendString(dst, "incarnation"), b.Incarnation)
	dst = AppendInt(AppendString(dst, "next_cursor"), b.NextCursor)
	dst = AppendBool(AppendString(dst, "lost"), b.Lost)
	dst = appendArrayHead(AppendString(dst, "events"), len(b.Events))
	for i := range b.Events {
		dst = appendKVEvent(dst, &b.Events[i])
	}
	return dst
}

func appendKVEvent(dst []byte, e *KVEventRecord) []byte {
	dst = appendMapHead(dst, len(eventNames))
	dst = AppendInt(AppendString(dst, "seq"), e.Seq)
	dst = AppendString(AppendString(dst, "kind"), e.Kind)
	dst = AppendString(AppendString(dst, "medium"), e.Medium)
	dst = AppendString(AppendString(dst, "model_name"), e.Model)
	dst = appendArrayHead(AppendString(dst, "block_hashes"), len(e.BlockHashes))
	for _, h := range e.BlockHashes {
		dst = AppendBytes(dst, h)
	}
	dst = appendOptBytes(AppendString(dst, "parent_block_hash"), e.ParentHash)
	dst = appendArrayHead(AppendString(dst, "token_ids"), len(e.TokenIDs))
	return AppendTokens(dst, e.TokenIDs)
}

var (
	batchNames = []string{"enabled", "incarnation", "next_cursor", "lost", "events"}
	eventNames = []string{
		"seq", "kind", "medium", "model_name", "block_hashes", "parent_block_hash", "token_ids",
	}
)

// DecodeKVEventBatch reads a batch.
func DecodeKVEventBatch(frame []byte) (*KVEventBatch, error) {
	r := reader{b: frame}
	b := &KVEventBatch{}
	r.object("batch", batchNames, 1<<5-1, func(i int) {
		switch i {
		case 0:
			b.Enabled = r.bool()
		case 1:
			b.Incarnation = r.int()
		case 2:
			b.NextCursor = r.int()
		case 3:
			b.Lost = r.bool()
		case 4:
			b.Events = nil
			r.list("events", func(int) { b.Events = append(b.Events, r.kvEvent()) })
		}
	})
	if err := r.done(); err != nil {
		return nil, err
	}
	return b, nil
}

func (r *reader) kvEvent() KVEventRecord {
	var e KVEventRecord
	r.object("event", eventNames, 1<<7-1, func(i int) {
		switch i {
		case 0:
			e.Seq = r.int()
		case 1:
			r.set(&e.Kind)
		case 2:
			r.set(&e.Medium)
		case 3:
			r.set(&e.Model)
		case 4:
			e.BlockHashes = nil
			r.list("block_hashes", func(int) { e.BlockHashes = append(e.BlockHashes, r.bin()) })
		case 5:
			e.ParentHash = nil
			if !r.isNil() {
				e.ParentHash = r.bin()
			}
		case 6:
			e.TokenIDs = nil
			r.list("token_ids", func(int) { e.TokenIDs = append(e.TokenIDs, r.u32()) })
		}
	})
	return e
}
