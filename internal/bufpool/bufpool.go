// Package bufpool keeps large byte buffers between uses: a fresh one of
// megabytes costs more in page faults and clearing than filling it does.
package bufpool

import (
	"math/bits"
	"runtime/debug"
	"sync"

	"github.com/lmcache-go/lmcache-go/internal/invariants"
)

const (
	minShift = 12 // 4 KiB
	maxShift = 27 // 128 MiB; larger ones are not kept
	// maxKept bounds what lies unused, in bytes.
	maxKept = 256 << 20
	// returnFrom is how much dropped memory is worth a collection: a server
	// that is idle makes no garbage, and would keep it for minutes.
	returnFrom = 32 << 20
)

// Buffer is a byte slice on loan. Its owner may use all of B, whose length is
// its capacity; the content is arbitrary.
type Buffer struct {
	B     []byte
	class int // -1: of no class, not kept
}

// Pool lends buffers. The zero value is ready; it is safe for concurrent use.
type Pool struct {
	mu   sync.Mutex
	free [maxShift - minShift + 1][]*Buffer // guarded by mu, by class
	low  [maxShift - minShift + 1]int       // guarded by mu: fewest free since the last Trim
	kept int64                              // guarded by mu
	lost int64                              // guarded by mu: bytes dropped since the last Trim
}

// Shared is the pool of the process.
var Shared Pool

// class is the smallest one whose buffers hold n bytes, -1 when none does.
func class(n int) int {
	if n > 1<<maxShift {
		return -1
	}
	return max(0, bits.Len(uint(max(n, 1)-1))-minShift)
}

// Get lends a buffer of at least n bytes.
func (p *Pool) Get(n int) *Buffer {
	if b := p.TryGet(n); b != nil {
		return b
	}
	c := class(n)
	if c < 0 {
		return &Buffer{B: make([]byte, n), class: c}
	}
	return &Buffer{B: make([]byte, 1<<(c+minShift)), class: c}
}

// TryGet is [Pool.Get] without making a new one: nil when none lies ready.
func (p *Pool) TryGet(n int) *Buffer {
	c := class(n)
	if c < 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.free[c]
	if len(l) == 0 {
		return nil
	}
	b := l[len(l)-1]
	l[len(l)-1] = nil
	p.free[c] = l[:len(l)-1]
	p.low[c] = min(p.low[c], len(l)-1)
	p.kept -= int64(len(b.B))
	return b
}

// Put takes b back. Nobody may use it any more. A nil b is nothing.
func (p *Pool) Put(b *Buffer) {
	if b == nil {
		return
	}
	if invariants.Enabled {
		Poison(b.B)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.class < 0 || p.kept+int64(len(b.B)) > maxKept {
		p.lost += int64(len(b.B))
		return
	}
	p.kept += int64(len(b.B))
	p.free[b.class] = append(p.free[b.class], b)
}

// Trim drops the buffers that nobody has needed since the last Trim, and gives
// much memory back to the system at once.
func (p *Pool) Trim() {
	if p.trim() >= returnFrom {
		debug.FreeOSMemory()
	}
}

// trim returns how many bytes were dropped since the last one.
func (p *Pool) trim() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, l := range p.free {
		drop := min(p.low[c], len(l))
		for _, b := range l[:drop] {
			p.kept -= int64(len(b.B))
			p.lost += int64(len(b.B))
		}
		n := copy(l, l[drop:])
		clear(l[n:])
		p.free[c] = l[:n]
		p.low[c] = n
	}
	lost := p.lost
	p.lost = 0
	return lost
}

// Kept is what lies unused, in bytes.
func (p *Pool) Kept() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept
}

// Poison overwrites b, so that whoever still reads it is found out. It is for
// builds that check their invariants.
func Poison(b []byte) {
	const page = 4096 // one mark in each page tells as much, at a fraction of the time
	for i := range b[:min(len(b), page)] {
		b[i] = 0xdb
	}
	for i := page; i < len(b); i += page {
		b[i] = 0xdb
	}
}
