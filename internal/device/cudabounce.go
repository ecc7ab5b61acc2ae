package device

import (
	"fmt"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
)

// maxBounce is the largest copy into memory that is not pinned.
const maxBounce = 256 << 20

// bounced is addresses for a pool that is not pinned: a buffer that is stands
// in for it, with the plan's pieces side by side. A copy to memory that is not
// pinned would make the driver wait for the engine inside Submit.
func (s *cudaStream) bounced(j *cudaJob) error {
	p := j.job.Plan
	if p.Bytes > maxBounce {
		return fmt.Errorf("%w: %d bytes, and at most %d go through a buffer", ErrUnpinned, p.Bytes, maxBounce)
	}
	var err error
	if j.bounce, err = s.dev.ctx.AllocHost(p.Bytes); err != nil {
		return err
	}
	if j.job.Direction == copyplan.Load {
		b := j.bounce.Bytes()
		j.pieces(func(pool []byte) { b = b[copy(b, pool):] })
	}
	s.begin(p)
	at := j.bounce.Address
	for i := range p.Runs {
		r := &p.Runs[i]
		s.src[i], s.dst[i], s.size[i] = j.bases[r.Storage]+uint64(r.Engine), at, uint64(r.Bytes)
		at += uint64(r.Bytes)
	}
	for i := range p.Patterns {
		q := &p.Patterns[i]
		s.rect(i, j, q, at, uint64(q.Width))
		at += uint64(q.Width * q.Rows.N)
	}
	return nil
}

// unbounce copies what came into the pool.
func (j *cudaJob) unbounce() {
	b := j.bounce.Bytes()
	j.pieces(func(pool []byte) { b = b[copy(pool, b):] })
}

// pieces visits what the plan has of the pool, in its order.
func (j *cudaJob) pieces(f func(pool []byte)) {
	p, pool := j.job.Plan, j.job.Pool
	for i := range p.Runs {
		r := &p.Runs[i]
		f(pool[r.Object : r.Object+r.Bytes])
	}
	for i := range p.Patterns {
		q := &p.Patterns[i]
		for row := range q.Rows.N {
			at := q.Object + row*q.Rows.Object
			f(pool[at : at+q.Width])
		}
	}
}
