package l1cache

import "errors"

// Errors of a reservation. Each is wrapped with the sizes that led to it and
// what to change.
var (
	// ErrNoSpace: the pool holds too much that may not be evicted now (leases,
	// reservations, quarantine, or everything when eviction is off). Nothing
	// was reserved and nothing evicted. Later it may fit.
	ErrNoSpace = errors.New("l1cache: no space")
	// ErrTooLarge: the request is larger than the whole pool. It never fits.
	ErrTooLarge = errors.New("l1cache: larger than the pool")
	// ErrGrowing: the pool is still being populated and the caller would not
	// wait, or not any longer.
	ErrGrowing = errors.New("l1cache: pool is still growing")
)

// Errors of a read.
var (
	// ErrNotHeld: an object of the range has no hold left in this lease: it was
	// taken or freed before, lies outside the hit, was cleared, or the lease
	// expired or was revoked.
	ErrNotHeld = errors.New("l1cache: not held by this lease")
	// ErrRange: an empty or negative range, or an unknown group or rank. The
	// lease is unchanged.
	ErrRange = errors.New("l1cache: range outside the lease")
)

// Errors of the life of a cache or arena.
var (
	// ErrClosed: the cache was closed.
	ErrClosed = errors.New("l1cache: closed")
	// ErrBroken: an earlier call panicked inside the store. Nothing is served
	// any more, because wrong bytes are worse than a miss; restart the server.
	ErrBroken = errors.New("l1cache: broken by an earlier panic")
	// ErrShmTooSmall: the shared memory file system cannot hold the pool.
	ErrShmTooSmall = errors.New("l1cache: shared memory file system too small")
	// ErrShmInUse: another live server owns the segment of that name.
	ErrShmInUse = errors.New("l1cache: shared memory segment in use")
	// ErrMemoryLimit: populating more of the pool would exceed what the cgroup
	// or the machine has left. The pool keeps the size it has reached.
	ErrMemoryLimit = errors.New("l1cache: memory limit reached")
)
