package l1cache

// Hash identifies a chunk of tokens together with everything before it.
type Hash = [32]byte

// Scope says whose chunks: objects of different scopes never meet. It is
// interned, and forgotten with its last object.
type Scope struct {
	Model, Salt string
	// Layout names the form of the objects' bytes, where two engines could
	// register one model in forms that cannot read each other. May be "".
	Layout string
	// Group is the object group, 0 for a model with one kind of attention.
	Group int
}

// Form names the order of the bytes inside an object, for whoever made it: the
// store keeps the number beside the object and does not look at it. It is an
// attribute and no part of the key, so a reader finds objects of every form and
// reorders those of another than its own.
type Form uint8

// key is what the index finds objects by. It holds no pointers, so that the
// garbage collector does not walk the index.
type key struct {
	hash  Hash
	scope uint32
	rank  uint32
}

// EvictReason says why published objects left the cache.
type EvictReason uint8

const (
	// EvictDemand: a reservation needed their space.
	EvictDemand EvictReason = iota
	// EvictNeighbour: they lay beside an old object and a reservation needed one hole.
	EvictNeighbour
	// EvictWatermark: the background turn made headroom.
	EvictWatermark
	// EvictClear: Clear removed them.
	EvictClear
	// EvictDelete: Delete removed them.
	EvictDelete
	// EvictQuota: their salt was at its quota.
	EvictQuota
	numEvictReasons
)

// String returns the label used in metrics.
func (r EvictReason) String() string {
	switch r {
	case EvictDemand:
		return "demand"
	case EvictNeighbour:
		return "neighbour"
	case EvictWatermark:
		return "watermark"
	case EvictClear:
		return "clear"
	case EvictDelete:
		return "delete"
	case EvictQuota:
		return "quota"
	default:
		return "unknown"
	}
}

// Observer hears what happens to objects. Calls come from whichever goroutine
// caused the event, after the cache's lock was released, and may call the
// cache. n counts objects.
type Observer interface {
	// Published: n objects became readable.
	Published(s Scope, n int)
	// ReadReleased: n reads ended, by a finished transfer or a freed hold.
	ReadReleased(s Scope, n int)
	// Evicted: n published objects are gone.
	Evicted(s Scope, n int, reason EvictReason)
}
