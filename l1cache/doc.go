// Package l1cache keeps chunks of KV in host memory: one region, an index, a
// recency order, and rules about who may touch which bytes when.
//
// The types that matter:
//
//   - [Arena] is the region: private memory or a named shared memory segment,
//     made usable piece by piece in the background.
//   - [Cache] is the store. An object is the bytes of one chunk for one scope
//     (model, salt, object group) and one rank.
//   - [Reservation] is the only way in: memory for objects that do not exist
//     yet, which somebody fills and then publishes or gives back.
//   - [Lease] is a promise made by a lookup: its objects stay readable until
//     each hold is taken, freed, or the lease ends.
//   - [Transfer] is a read in progress: its bytes stay where they are until
//     Done, whatever else happens to the objects.
//
// The life of an object:
//
//	          Reserve        BeginFill         Publish
//	(absent) ───────▶ reserved ─────▶ filling ───────▶ published ──▶ evicted, cleared
//	                     │               │                 │
//	                     └─ Abort ───────┤                 └─ cleared during a transfer: gone
//	                     └─ Quarantine, write TTL, Clear(force): the key is free at once,
//	                        the memory only when Release says that nobody can write there
//
// Only published objects are readable. A lookup that meets an object being
// filled can wait for it; one that meets a reservation in a client's hands
// does not.
//
// # Use
//
//	arena, err := l1cache.OpenArena(l1cache.ArenaOptions{SizeBytes: 4 << 30})
//	cache, err := l1cache.New(l1cache.Options{Arena: arena, Evict: true})
//	res, err := cache.Reserve(ctx, l1cache.ReserveRequest{Scope: scope, Hashes: hashes, SizeBytes: n})
//	for _, s := range res.Slots() {
//		fill(arena.Bytes()[s.Offset : s.Offset+s.Length])
//	}
//	res.Publish(nil)
//
//	lease, _ := cache.Lookup(l1cache.LookupRequest{Groups: groups, Ranks: ranks, Hashes: hashes, Readers: 1}, nil)
//	tr, err := lease.Take(0, rank, 0, lease.Hit())
//	read(tr.Objects())
//	tr.Done()
//
// # Concurrency
//
// All types are safe for concurrent use. One short mutex guards index,
// allocator and recency together; it is never held across a system call, a
// copy of object bytes, a callback or a channel operation that could block.
// The bytes of the region are not guarded: a reservation's belong to its
// writer, a transfer's may be read only.
package l1cache
