package l1cache

import "time"

// counters are kept as things change, so that Stats walks nothing.
type counters struct {
	objects                [numStates]int64
	bytes                  [numStates]int64
	heldObjects, heldBytes int64 // published, with holds or transfers
	leaseHolds             int64 // sum of left over all leases
	transferObjects        int64 // sum of objects over all transfers
	totalBytes             int64
	published              uint64
	evictedObjects         [numEvictReasons]uint64
	evictedBytes           [numEvictReasons]uint64
	noSpace, tooLarge      uint64
	expiredWrites          uint64
	expiredHolds           uint64
	revokedHolds           uint64
	turns, turnsTriggered  uint64
	lastTurn               time.Time
}

// Stats is a snapshot of the store. Bytes are space taken, rounded up to the
// alignment.
type Stats struct {
	// Resident objects are published.
	Resident, ResidentBytes int64
	// Reserved objects wait for their writer; Filling ones will be published or
	// given up soon.
	Reserved, ReservedBytes int64
	Filling, FillingBytes   int64
	// Quarantined objects are not in the index; a writer may still touch them.
	Quarantined, QuarantinedBytes int64
	// Orphaned objects were cleared while transfers read them.
	Orphaned, OrphanedBytes int64
	// Leased are the resident objects that a lease holds or a transfer reads.
	Leased, LeasedBytes int64
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
	Published             uint64
	Evicted, EvictedBytes [numEvictReasons]uint64 // by EvictReason
	// Objects refused with ErrNoSpace and with ErrTooLarge.
	NoSpace, TooLarge uint64
	// What ended by its TTL: reserved objects, and holds of leases.
	ExpiredWrites, ExpiredHolds uint64
	// RevokedHolds were taken from yielding leases.
	RevokedHolds uint64
	// Turns of the background loop, and those that found the pool at or above
	// the watermark.
	Turns, TurnsTriggered uint64
	// LastTurn is when the last of them began; zero before.
	LastTurn time.Time
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
	n := &c.n
	return Stats{
		Resident: n.objects[published], ResidentBytes: n.bytes[published],
		Reserved: n.objects[reserved], ReservedBytes: n.bytes[reserved],
		Filling: n.objects[filling], FillingBytes: n.bytes[filling],
		Quarantined: n.objects[quarantined], QuarantinedBytes: n.bytes[quarantined],
		Orphaned: n.objects[orphaned], OrphanedBytes: n.bytes[orphaned],
		Leased: n.heldObjects, LeasedBytes: n.heldBytes,
		Leases: int64(c.leases.len), LeaseHolds: n.leaseHolds, TransferObjects: n.transferObjects,
		Reservations: int64(c.writes.len), Scopes: int64(len(c.scopes.ids)),
		UsedBytes: c.usedBytes(), TotalBytes: n.totalBytes, ConfiguredBytes: c.o.Arena.SizeBytes(), Growing: c.growing,
		Published: n.published, Evicted: n.evictedObjects, EvictedBytes: n.evictedBytes,
		NoSpace: n.noSpace, TooLarge: n.tooLarge,
		ExpiredWrites: n.expiredWrites, ExpiredHolds: n.expiredHolds, RevokedHolds: n.revokedHolds,
		Turns: n.turns, TurnsTriggered: n.turnsTriggered, LastTurn: n.lastTurn,
	}
}
