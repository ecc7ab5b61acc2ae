package mpserver

import (
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/torchpickle"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Pickles of a store are read from the connection straight into the pool, which
// saves the only copy there is. Where the tensors lie in a pickle is known only
// when it has been parsed, but pickles of one client and size look alike: the
// places are guessed from the one before. The parser, which does not look at the
// bytes of tensors, then tells whether the guess was right; if it was not, the
// bytes go back to where they came from, and nothing was gained.

// pickleForms remembers where the tensors of one client's pickles lie.
type pickleForms struct {
	mu     sync.Mutex
	bySize map[int][]int // guarded by mu: offsets of tensors in a COMMIT_STORE's data, by its size
}

// maxPickleForms bounds the sizes that are remembered of one client.
const maxPickleForms = 16

func (f *pickleForms) get(size int) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bySize[size]
}

// learn notes where the tensors of a frame lie, if each lies in one piece of n bytes.
func (f *pickleForms) learn(frame []byte, tensors []torchpickle.Tensor, n int64) {
	if f.get(len(frame)) != nil {
		return
	}
	at := make([]int, len(tensors))
	last := 0
	for i := range tensors {
		var ok bool
		if at[i], ok = offsetIn(frame, &tensors[i], n); !ok || at[i] < last {
			return
		}
		last = at[i] + int(n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bySize == nil || len(f.bySize) >= maxPickleForms {
		f.bySize = map[int][]int{}
	}
	f.bySize[len(frame)] = at
}

func (f *pickleForms) forget(size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.bySize, size)
}

// offsetIn is where a tensor that lies in one piece of n bytes begins in frame.
func offsetIn(frame []byte, t *torchpickle.Tensor, n int64) (int, bool) {
	b, ok := t.Contiguous()
	if !ok || int64(len(b)) != n || n == 0 || len(t.Data) != len(b) {
		return 0, false
	}
	// The data of a parsed tensor is the frame's memory, so what is behind its
	// beginning tells where that is.
	at := cap(frame) - cap(t.Data)
	if at < 0 || at > len(frame)-len(b) || &frame[at] != &t.Data[0] {
		return 0, false
	}
	return at, true
}

// placed is a store whose bytes were read into the pool.
type placed struct {
	res   *l1cache.Reservation
	in    *instance // whose objects they are
	parts []zmtp.Part
	frame int // the payload that they are missing from
}

// Place implements [zmtp.Placer]: the data of a COMMIT_STORE that looks like an
// earlier one of the same client goes into reserved slots.
func (k socket) Place(p *zmtp.Peer, frames [][]byte, size int) (pl *zmtp.Placement) {
	defer func() {
		if x := recover(); x != nil { // as in execute: the store is then served without
			k.s.met.Panicked(wire.OpCommitStore.String())
			k.s.log.Error("placing a store panicked", "component", "mq", "err", fmt.Sprint(x), "stack", string(debug.Stack()))
			pl = nil
		}
	}()
	c, ok := p.Data.(*client)
	if !ok {
		return nil
	}
	if op, at := wire.OpCommitStore, c.pickles.get(size); at != nil && len(frames) == op.Arity()+1 {
		if got, err := wire.ParseOp(frames[1]); err == nil && got == op {
			return k.s.place(&request{client: c, op: op, payloads: frames[2:]}, at)
		}
	}
	return nil
}

// place reserves what a store of r would, if r would be served at once.
func (s *Server) place(r *request, at []int) *zmtp.Placement {
	if s.sharesPool() || s.draining.Load() || !s.serves(r.op) || !s.mayInline(r) || !r.client.lanes[laneTransfer].idle() {
		return nil
	}
	t, reason := s.transfer(r, true)
	if reason != "" || t.to-t.from != len(at) {
		return nil
	}
	g := &t.in.layout.groups[0]
	res, err := s.tryReserve(deadlineContext(time.Now().Add(deadlineShort)), &t, 0, t.chunks())
	if err != nil {
		return nil // the store itself will say so
	}
	slots := res.Slots()
	if len(slots) == 0 {
		res.Release()
		return nil
	}
	pool := s.arena.Bytes()
	parts := make([]zmtp.Part, len(slots))
	for i, sl := range slots {
		parts[i] = zmtp.Part{At: at[sl.Chunk], Dst: pool[sl.Offset : sl.Offset+g.sizeBytes]}
	}
	return &zmtp.Placement{Parts: parts, Abandon: res.Release, Data: &placed{res: res, in: t.in, parts: parts}}
}

// take makes the placement of a message r's own.
func (r *request) take(pl *zmtp.Placement) {
	if pl == nil {
		return
	}
	if p, ok := pl.Data.(*placed); ok {
		p.frame = pl.Frame - 2
		r.placed = p
	}
}

// unplace ends what was placed and not published.
func (r *request) unplace() {
	if r.placed != nil {
		r.placed.res.Release()
		r.placed = nil
	}
}

// placedBytes are those of r that its frames do not hold.
func (r *request) placedBytes() (n int) {
	if r.placed != nil {
		for _, p := range r.placed.parts {
			n += len(p.Dst)
		}
	}
	return n
}

// fits reports whether the placed bytes are those of the tensors that the slots
// are for: the guess was right.
func (p *placed) fits(frame []byte, tensors []torchpickle.Tensor, g *groupLayout) bool {
	for i, sl := range p.res.Slots() {
		if sl.Chunk >= len(tensors) {
			return false
		}
		x := &tensors[sl.Chunk]
		if x.DType.Name != g.dtype.Name || !slices.Equal(x.Shape, g.shape) {
			return false
		}
		if at, ok := offsetIn(frame, x, g.sizeBytes); !ok || at != p.parts[i].At {
			return false
		}
	}
	return true
}

// undo puts the placed bytes of r into its frame, as if nobody had guessed.
func (r *request) undo() {
	frame := r.payloads[r.placed.frame]
	for _, p := range r.placed.parts {
		copy(frame[p.At:], p.Dst)
	}
	r.client.pickles.forget(len(frame))
	r.unplace()
}
