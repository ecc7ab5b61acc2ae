package l1cache

import "encoding/binary"

// Sampler is an [Observer] that also follows single objects: a fixed share of
// them, chosen by their hashes, so that each is followed from end to end and
// again when it comes back. Calls come as those of an Observer do.
type Sampler interface {
	Sampled(events []ObjectEvent)
}

// ObjectEvent is what happened to one object of the sample.
type ObjectEvent struct {
	Kind  ObjectEventKind
	Scope Scope
	Rank  uint32
	Hash  Hash
}

// ObjectEventKind is a moment in the life of an object.
type ObjectEventKind uint8

const (
	// ObjectStored: it was published.
	ObjectStored ObjectEventKind = iota
	// ObjectRead: a transfer that read it has ended.
	ObjectRead
	// ObjectGone: it was evicted, deleted or cleared.
	ObjectGone
)

// sample notes what happened to o if it is of the sample. The lock is held.
func (c *Cache) sample(o *object, kind ObjectEventKind, fx *effects) {
	if c.sampler == nil {
		return
	}
	// Hashes are evenly spread.
	if float64(binary.LittleEndian.Uint32(o.hash[:])) >= c.o.SampleRate*(1<<32) {
		return
	}
	fx.sampled = append(fx.sampled, ObjectEvent{kind, c.scopes.of(o.scope), o.rank, o.hash})
}
