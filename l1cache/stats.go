package l1cache

// RefuseReason says why a reservation was refused.
type RefuseReason uint8

const (
	// RefusedNoSpace: too much is held; see [ErrNoSpace].
	RefusedNoSpace RefuseReason = iota
	// RefusedTooLarge: larger than the pool; see [ErrTooLarge].
	RefusedTooLarge
	numRefuseReasons
)

// String returns the label used in metrics.
func (r RefuseReason) String() string {
	switch r {
	case RefusedNoSpace:
		return "no_space"
	case RefusedTooLarge:
		return "too_large"
	}
	return "unknown"
}

// counters are kept as things change, so that Stats walks nothing.
type counters struct {
	objects                [numStates]int64
	bytes                  [numStates]int64
	heldObjects, heldBytes int64 // published, with holds or transfers
	leaseHolds             int64 // sum of left over all leases
	transferObjects        int64 // sum of objects over all transfers
	totalBytes             int64
	published              uint64
	evictedObjects         [numEvictReasons]int64
	evictedBytes           [numEvictReasons]int64
	refused                [numRefuseReasons]uint64
	expiredWrites          uint64
	expiredHolds           uint64
	revokedHolds           uint64
	turns, turnsTriggered  uint64
}

// Count is a number of objects and the space they take, rounded up to the
// alignment.
type Count struct {
	Objects, Bytes int64
}

// Stats is a snapshot of the store.
type Stats struct {
	// Resident objects are published; Reserved and Filling ones are on their
	// way; Quarantined ones are not in the index, their memory may still be
	// written to; Orphaned ones were cleared while a transfer reads them.
	Resident, Reserved, Filling, Quarantined, Orphaned Count
	// Leased are the resident objects with a hold or in a transfer.
	Leased Count
	// Leases with holds, and the holds they have; TransferObjects counts each
	// object once per transfer in progress.
	Leases, LeaseHolds, TransferObjects int64
	// Reservations that hold keys. Scopes with objects.
	Reservations, Scopes int64
	// UsedBytes of TotalBytes, which grows up to ConfiguredBytes.
	UsedBytes, TotalBytes, ConfiguredBytes int64
	// Growing: the arena is still being populated.
	Growing bool

	// Counters since the start, in objects or holds.
	Published                                 uint64
	Evicted                                   [numEvictReasons]Count // by EvictReason
	Refused                                   [numRefuseReasons]uint64
	ExpiredWrites, ExpiredHolds, RevokedHolds uint64
	// Turns of the background loop, and those that found the pool at or above
	// the watermark.
	Turns, TurnsTriggered uint64
}

// Usage is used over total, 0 when there is nothing yet.
func (s *Stats) Usage() float64 {
	if s.TotalBytes == 0 {
		return 0
	}
	return float64(s.UsedBytes) / float64(s.TotalBytes)
}

// Stats returns the counters. It walks nothing.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.unlock()
	of := func(s state) Count { return Count{c.n.objects[s], c.n.bytes[s]} }
	out := Stats{
		Resident: of(published), Reserved: of(reserved), Filling: of(filling), Quarantined: of(quarantined), Orphaned: of(orphaned),
		Leased:       Count{c.n.heldObjects, c.n.heldBytes},
		Leases:       int64(c.leases.len),
		LeaseHolds:   c.n.leaseHolds,
		Reservations: int64(c.writes.len), TransferObjects: c.n.transferObjects, Scopes: int64(len(c.scopes.ids)),
		UsedBytes: c.usedBytes(), TotalBytes: c.n.totalBytes, ConfiguredBytes: c.o.Arena.SizeBytes(),
		Growing: c.growing, Published: c.n.published, Refused: c.n.refused,
		ExpiredWrites: c.n.expiredWrites, ExpiredHolds: c.n.expiredHolds, RevokedHolds: c.n.revokedHolds,
		Turns: c.n.turns, TurnsTriggered: c.n.turnsTriggered,
	}
	for r := range out.Evicted {
		out.Evicted[r] = Count{c.n.evictedObjects[r], c.n.evictedBytes[r]}
	}
	return out
}
