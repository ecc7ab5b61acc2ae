package multi

import (
	"context"
	"errors"
	"fmt"

	"github.com/lmcache-go/lmcache-go/connector"
)

// Workers is the worker's side of several connectors; it is one itself.
type Workers struct {
	children []Child[Worker]
	holds    map[string]uint64 // who still keeps a request's blocks
	early    map[string]uint64 // who let go before their Meta came
	finished []string          // told to Poll before their Meta came
	ask      [][]string        // scratch: what each child is asked
}

// NewWorker composes children, which must stand in the order of [NewScheduler].
func NewWorker(children ...Child[Worker]) (*Workers, error) {
	if len(children) == 0 || len(children) > maxChildren {
		return nil, fmt.Errorf("%w: %d, between 1 and %d are possible", ErrChildren, len(children), maxChildren)
	}
	return &Workers{children: children, holds: make(map[string]uint64), early: make(map[string]uint64), ask: make([][]string, len(children))}, nil
}

// each calls f for every child with its part of meta.
func (w *Workers) each(meta any, f func(c Worker, meta any) error) error {
	m, ok := meta.(*Meta)
	if !ok || m == nil {
		return nil
	}
	var errs []error
	for i, c := range w.children {
		if err := f(c.Conn, m.Children[i]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Prepare lets every child get ready, and learns whose blocks are kept.
func (w *Workers) Prepare(ctx context.Context, meta any) error {
	if m, ok := meta.(*Meta); ok && m != nil {
		for id, set := range m.Holds {
			w.holds[id] |= set
		}
	}
	return w.each(meta, func(c Worker, meta any) error { return c.Prepare(ctx, meta) })
}

// Load starts the loads of every child.
func (w *Workers) Load(meta any) {
	_ = w.each(meta, func(c Worker, meta any) error { c.Load(meta); return nil }) // none fails
}

// Save starts the stores of every child.
func (w *Workers) Save(meta any) {
	_ = w.each(meta, func(c Worker, meta any) error { c.Save(meta); return nil }) // none fails
}

// Poll unites what the children tell. A request is sent once every child that
// keeps its blocks has said so; finished may be told before or after the Meta
// that says who that is.
func (w *Workers) Poll(finished []string) connector.Progress {
	w.finished = append(w.finished, finished...)
	later := w.finished[:0]
	for i := range w.ask {
		w.ask[i] = w.ask[i][:0]
	}
	for _, id := range w.finished {
		set, known := w.holds[id]
		if !known {
			later = append(later, id)
			continue
		}
		for i := range w.children {
			if set&(1<<i) != 0 {
				w.ask[i] = append(w.ask[i], id)
			}
		}
	}
	w.finished = later
	var out connector.Progress
	for id, set := range w.early {
		if _, known := w.holds[id]; known {
			delete(w.early, id)
			if w.sent(id, set) {
				out.Sent = append(out.Sent, id)
			}
		}
	}
	for i, c := range w.children {
		p := c.Conn.Poll(w.ask[i])
		for _, id := range p.Sent {
			if w.sent(id, 1<<i) {
				out.Sent = append(out.Sent, id)
			}
		}
		out.Received = append(out.Received, p.Received...)
		out.BadBlocks = append(out.BadBlocks, p.BadBlocks...)
		out.Failed = append(out.Failed, p.Failed...)
	}
	return out
}

// sent counts the word of a set of children, and says whether it was the last
// one. What a child says of a request that it does not keep means nothing; a
// peer may have read the blocks before the Meta came that says who keeps them.
func (w *Workers) sent(id string, who uint64) bool {
	set, ok := w.holds[id]
	if !ok {
		w.early[id] |= who
		return false
	}
	if set&who == 0 {
		return false
	}
	if set &^= who; set != 0 {
		w.holds[id] = set
		return false
	}
	delete(w.holds, id)
	return true
}

// Close closes the children, the last one first.
func (w *Workers) Close(ctx context.Context) error {
	var errs []error
	for i := len(w.children) - 1; i >= 0; i-- {
		errs = append(errs, w.children[i].Conn.Close(ctx))
	}
	return errors.Join(errs...)
}
