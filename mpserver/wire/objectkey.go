package wire

import (
	"fmt"
	"strings"
)

// ObjectKey names one object: the KV of a chunk, of one shard and group, of one
// model and tenant (ObjectKey of lmcache 0.5.6, v1/distributed/api.py).
type ObjectKey struct {
	// ChunkHash is 32 bytes of blake3 or SHA-256; peers with another algorithm
	// send other lengths. A view into the frame when decoded.
	ChunkHash []byte
	Model     string
	// Rank is the shard: see [KVRank].
	Rank uint32
	// Group is the object group, 0 for engine-driven transfers.
	Group int
	Salt  string
}

// MaxWorldSize is the largest world size that [KVRank] has bits for.
const MaxWorldSize = 255

// KVRank returns the rank of a worker in object keys. A rank has room for a
// global and a local view of the world; in this protocol they are the same.
// ok is false unless 0 <= worker < world <= [MaxWorldSize].
func KVRank(world, worker int) (rank uint32, ok bool) {
	if worker < 0 || worker >= world || world > MaxWorldSize {
		return 0, false
	}
	half := uint32(world)<<8 | uint32(worker)
	return half<<16 | half, true
}

// KVRanks returns the ranks that a key means: its worker's, or those of all
// workers of its world. ok is false when one of them is not a [KVRank].
func (k *Key) KVRanks(dst []uint32) (ranks []uint32, ok bool) {
	from, to := 0, k.WorldSize
	if k.HasWorker {
		from, to = k.WorkerID, k.WorkerID+1
	}
	if k.WorldSize < 1 || k.WorldSize > MaxWorldSize {
		return dst, false
	}
	for w := from; w < to; w++ {
		rank, ok := KVRank(k.WorldSize, w)
		if !ok {
			return dst, false
		}
		dst = append(dst, rank)
	}
	return dst, true
}

// CheckModel checks a model name for use in object names: no '@' in it, which
// separates their parts. The error is an [ErrValue].
func CheckModel(model string) error {
	if strings.Contains(model, "@") {
		return fmt.Errorf("%w: model name %.64q holds an '@', which separates the parts of object names", ErrValue, model)
	}
	return nil
}

// Check checks what the reference demands of a key.
func (k *ObjectKey) Check() error {
	if err := CheckModel(k.Model); err != nil {
		return err
	}
	if k.Group < 0 {
		return fmt.Errorf("%w: object group %d, want 0 or more", ErrRange, k.Group)
	}
	return CheckSalt(k.Salt)
}

var objectKeyNames = []string{"chunk_hash", "model_name", "kv_rank", "object_group_id", "cache_salt"}

// DecodeObjectKeys reads the keys of p2p_lookup_and_lock and p2p_unlock_objects.
func DecodeObjectKeys(frame []byte) ([]ObjectKey, error) {
	r := reader{b: frame}
	var keys []ObjectKey
	r.list("keys", func(int) {
		var k ObjectKey
		r.object("object key", objectKeyNames, 1<<3-1, func(i int) {
			switch i {
			case 0:
				k.ChunkHash = r.bin()
			case 1:
				r.set(&k.Model)
			case 2:
				k.Rank = r.u32()
			case 3:
				k.Group = int(r.int())
			case 4:
				r.set(&k.Salt)
			}
		})
		if r.err == nil {
			if err := k.Check(); err != nil {
				r.fail(err)
			}
		}
		keys = append(keys, k)
	})
	if err := r.done(); err != nil {
		return nil, err
	}
	return keys, nil
}

// u32 consumes an integer of 32 unsigned bits: a rank, a token id.
func (r *reader) u32() uint32 {
	v := r.int()
	if r.err == nil && v != int64(uint32(v)) {
		r.fail(fmt.Errorf("%w: %d does not fit 32 unsigned bits", ErrRange, v))
	}
	return uint32(v)
}

// AppendObjectKeys appends the keys of p2p_lookup_and_lock and p2p_unlock_objects.
func AppendObjectKeys(dst []byte, keys []ObjectKey) []byte {
	dst = appendArrayHead(dst, len(keys))
	for i := range keys {
		k := &keys[i]
		dst = appendMapHead(dst, len(objectKeyNames))
		dst = AppendBytes(AppendString(dst, "chunk_hash"), k.ChunkHash)
		dst = AppendString(AppendString(dst, "model_name"), k.Model)
		dst = AppendInt(AppendString(dst, "kv_rank"), int64(k.Rank))
		dst = AppendInt(AppendString(dst, "object_group_id"), int64(k.Group))
		dst = AppendString(AppendString(dst, "cache_salt"), k.Salt)
	}
	return dst
}
