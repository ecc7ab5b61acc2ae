package mpserver

import (
	"math"

	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
)

// DeleteL1 implements [httpapi.Server]. A key whose hash has another length than
// ours, or whose rank no worker can have, names nothing.
func (f surface) DeleteL1(keys []httpapi.ObjectKey, force bool) (deleted, skipped int) {
	list := make([]l1cache.ObjectKey, 0, len(keys))
	for i := range keys {
		k := &keys[i]
		if len(k.ChunkHash) != len(l1cache.Hash{}) || k.KVRank < 0 || k.KVRank > math.MaxUint32 {
			continue
		}
		list = append(list, l1cache.ObjectKey{
			Model: k.Model, Salt: k.Salt, Group: int(k.Group), Rank: uint32(k.KVRank), Hash: l1cache.Hash(k.ChunkHash),
		})
	}
	deleted, skipped = f.s.cache.Delete(list, force)
	f.s.log.Info("deleted objects", "component", "l1", "named", len(keys), "deleted", deleted, "skipped", skipped, "force", force, "from", "http")
	return deleted, skipped
}

// ListL1 implements [httpapi.Server].
func (f surface) ListL1(model string, after uint32, limit int) (page []httpapi.Object, next uint32) {
	entries, next := f.s.cache.Page(model, after, limit)
	page = make([]httpapi.Object, len(entries))
	for i := range entries {
		e := &entries[i]
		page[i] = httpapi.Object{
			Key: httpapi.ObjectKey{
				ChunkHash: e.Hash[:], Model: e.Scope.Model, KVRank: int64(e.Rank), Group: int64(e.Scope.Group), Salt: e.Scope.Salt,
			},
			SizeBytes: e.SizeBytes,
		}
	}
	return page, next
}
