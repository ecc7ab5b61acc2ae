package wire

import "fmt"

// EngineDrivenContext is how a worker registers for engine-driven transfers
// (RegisterEngineDrivenContextPayload of lmcache 0.5.6). Decoding checks types
// only; which values make sense is the server's business.
type EngineDrivenContext struct {
	InstanceID int64
	Model      string
	WorldSize  int
	// BlockSize is the tokens in a paged block of the engine.
	BlockSize int
	NumLayers int
	// HiddenDim is the elements of a token in one layer and plane.
	HiddenDim int
	// DType is a name in module torch, aliases included ("half").
	DType string
	// UseMLA means one plane per layer and not two.
	UseMLA bool
	// NumPhysicalSlots is the slots of a chunk; 0 is nil on the wire and means
	// the chunk size.
	NumPhysicalSlots int
}

var contextNames = []string{
	"instance_id", "model_name", "world_size", "block_size", "num_layers",
	"hidden_dim_size", "dtype_str", "use_mla", "num_physical_slots",
}

// DecodeEngineDrivenContext reads the argument of
// register_kv_cache_engine_driven_context into c. A number of slots below 1 is
// an [ErrRange].
func DecodeEngineDrivenContext(frame []byte, c *EngineDrivenContext) error {
	r := reader{b: frame}
	*c = EngineDrivenContext{}
	r.object("context", contextNames, 1<<8-1, func(i int) {
		switch i {
		case 0:
			c.InstanceID = r.int()
		case 1:
			r.set(&c.Model)
		case 2:
			c.WorldSize = int(r.int())
		case 3:
			c.BlockSize = int(r.int())
		case 4:
			c.NumLayers = int(r.int())
		case 5:
			c.HiddenDim = int(r.int())
		case 6:
			r.set(&c.DType)
		case 7:
			c.UseMLA = r.bool()
		case 8:
			c.NumPhysicalSlots = r.slots()
		}
	})
	return r.done()
}

// slots consumes a number of slots, nil for 0.
func (r *reader) slots() int {
	if r.isNil() {
		return 0
	}
	n := r.int()
	if r.err == nil && n < 1 {
		r.fail(fmt.Errorf("%w: %d slots, want 1 or more", ErrRange, n))
	}
	return int(n)
}

// AppendEngineDrivenContext appends the argument of
// register_kv_cache_engine_driven_context.
func AppendEngineDrivenContext(dst []byte, c *EngineDrivenContext) []byte {
	dst = appendMapHead(dst, len(contextNames))
	dst = AppendInt(AppendString(dst, "instance_id"), c.InstanceID)
	dst = AppendString(AppendString(dst, "model_name"), c.Model)
	dst = AppendInt(AppendString(dst, "world_size"), int64(c.WorldSize))
	dst = AppendInt(AppendString(dst, "block_size"), int64(c.BlockSize))
	dst = AppendInt(AppendString(dst, "num_layers"), int64(c.NumLayers))
	dst = AppendInt(AppendString(dst, "hidden_dim_size"), int64(c.HiddenDim))
	dst = AppendString(AppendString(dst, "dtype_str"), c.DType)
	dst = AppendBool(AppendString(dst, "use_mla"), c.UseMLA)
	dst = AppendString(dst, "num_physical_slots")
	if c.NumPhysicalSlots == 0 {
		return AppendNil(dst)
	}
	return AppendInt(dst, int64(c.NumPhysicalSlots))
}

// AppendEngineDrivenReply appends the reply to
// register_kv_cache_engine_driven_context: the shared memory segment (without a
// leading '/') and its size in bytes, or "" and 0 for transfers by pickle.
func AppendEngineDrivenReply(dst []byte, shmName string, poolSize int64) []byte {
	dst = appendMapHead(dst, 2)
	dst = AppendString(AppendString(dst, "shm_name"), shmName)
	return AppendInt(AppendString(dst, "pool_size"), poolSize)
}

var contextReplyNames = []string{"shm_name", "pool_size"}

// DecodeEngineDrivenReply reads what [AppendEngineDrivenReply] writes.
func DecodeEngineDrivenReply(frame []byte) (shmName string, poolSize int64, err error) {
	r := reader{b: frame}
	r.object("reply", contextReplyNames, 0, func(i int) {
		if i == 0 {
			r.set(&shmName)
		} else {
			poolSize = r.int()
		}
	})
	return shmName, poolSize, r.done()
}
