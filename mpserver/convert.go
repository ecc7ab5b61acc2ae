package mpserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/l1cache"
)

// scratchScope is that of memory that is never published. No worker's objects
// have it: theirs name a model.
const scratchScope = "scratch"

// scratchSeq tells scratch memory apart.
var scratchSeq atomic.Uint64

// objectsOf are the objects of a hit with their forms. Chunk counts from the
// start of the lookup.
func (s *Server) objectsOf(tr *l1cache.Transfer) []copyplan.Object {
	objects := make([]copyplan.Object, len(tr.Objects()))
	for i, o := range tr.Objects() {
		objects[i] = copyplan.Object{Chunk: o.Chunk, Offset: o.Offset, Bytes: o.Length, Form: s.forms.Form(uint8(o.Form))}
	}
	return objects
}

// reorder writes the object src, in the form from, to dst in the form to.
func reorder(dst []byte, to *kvlayout.Form, src []byte, from *kvlayout.Form) error {
	if from == nil || !from.Convertible(to) {
		return fmt.Errorf("%w: it is %v, the reader's are %v", copyplan.ErrObject, from, to)
	}
	return copyplan.Convert(dst, to, src, from)
}

// convert replaces the objects that are not of the given form by copies in it,
// which live in the returned reservation until its Release. It is nil when all
// of them were right.
func (s *Server) convert(ctx context.Context, objects []copyplan.Object, form *kvlayout.Form) (*l1cache.Reservation, error) {
	var other []int
	for i := range objects {
		if objects[i].Form != form {
			other = append(other, i)
		}
	}
	if len(other) == 0 {
		return nil, nil
	}
	hashes := make([]l1cache.Hash, len(other))
	for i := range hashes {
		binary.LittleEndian.PutUint64(hashes[i][:], uint64(i))
	}
	res, err := s.cache.Reserve(ctx, l1cache.ReserveRequest{
		Scope:  l1cache.Scope{Layout: scratchScope, Salt: strconv.FormatUint(scratchSeq.Add(1), 10)},
		Hashes: hashes, SizeBytes: form.Bytes,
	})
	if err != nil {
		return nil, fmt.Errorf("make room to reorder %d objects: %w", len(other), err)
	}
	pool, slots := s.arena.Bytes(), res.Slots()
	err = inParallel(len(other), func(i int) error {
		o, to := &objects[other[i]], slots[i].Offset
		if err := reorder(pool[to:to+form.Bytes], form, pool[o.Offset:o.Offset+o.Bytes], o.Form); err != nil {
			return err
		}
		o.Offset, o.Form = to, form
		return nil
	})
	return res, err
}

// inParallel calls f for 0..n-1 on all processors. A panic in f is its caller's,
// who contains it.
func inParallel(n int, f func(i int) error) error {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		for i := range n {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	}
	var next atomic.Int64
	errs := make([]error, workers)
	var panicked atomic.Pointer[any]
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					panicked.Store(&p)
				}
			}()
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[w] = f(i)
			}
		})
	}
	wg.Wait()
	if p := panicked.Load(); p != nil {
		panic(*p)
	}
	return errors.Join(errs...)
}
