package multi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/lmcache-go/lmcache-go/connector"
)

// maxChildren is what a set in [Meta] can name.
const maxChildren = 64

// nobody loads.
const nobody = -1

// Schedulers is the scheduler's side of several connectors; it is one itself.
type Schedulers struct {
	children []Child[Scheduler]
	loader   map[string]int // by request: who answered Match with tokens
	holds    map[string]uint64
}

// NewScheduler composes children, in the order in which they are asked.
func NewScheduler(children ...Child[Scheduler]) (*Schedulers, error) {
	if len(children) == 0 || len(children) > maxChildren {
		return nil, fmt.Errorf("%w: %d, between 1 and %d are possible", ErrChildren, len(children), maxChildren)
	}
	return &Schedulers{children: children, loader: make(map[string]int), holds: make(map[string]uint64)}, nil
}

// Enqueued tells all children.
func (m *Schedulers) Enqueued(r *connector.Request) {
	for _, c := range m.children {
		c.Conn.Enqueued(r)
	}
}

// Match asks the children in their order. One that does not know yet ends the
// question for this step, whatever those before it have said.
func (m *Schedulers) Match(r *connector.Request, computed int) (tokens int, ready bool) {
	chosen := nobody
	for i, c := range m.children {
		n, ok := c.Conn.Match(r, computed)
		if !ok {
			return 0, false
		}
		if n > 0 && chosen == nobody {
			chosen, tokens = i, n
		}
	}
	delete(m.loader, r.ID)
	if chosen != nobody {
		m.loader[r.ID] = chosen
	}
	return tokens, true
}

// Allocated tells all children of the blocks, and the one that was chosen how
// many tokens to load.
func (m *Schedulers) Allocated(r *connector.Request, blocks [][]int64, external int) {
	chosen, ok := m.loader[r.ID]
	if !ok {
		chosen = nobody
	}
	delete(m.loader, r.ID)
	for i, c := range m.children {
		n := 0
		if i == chosen {
			n = external
		}
		c.Conn.Allocated(r, blocks, n)
	}
}

// BuildMeta collects the children's work.
func (m *Schedulers) BuildMeta(step *connector.Step) any {
	out := &Meta{Children: make([]any, len(m.children))}
	for i, c := range m.children {
		out.Children[i] = c.Conn.BuildMeta(step)
	}
	if len(m.holds) > 0 {
		out.Holds = m.holds
		m.holds = make(map[string]uint64)
	}
	return out
}

// Finish tells all children. The error is an [ErrParams]; the request is
// finished all the same.
func (m *Schedulers) Finish(r *connector.Request, e Ending) (Finished, error) {
	var (
		out  Finished
		errs []error
		set  uint64
	)
	delete(m.loader, r.ID)
	for i, c := range m.children {
		f, err := c.Conn.Finish(r, e)
		errs = append(errs, err)
		if f.KeepBlocks {
			set |= 1 << i
		}
		switch {
		case f.Params == nil:
		case out.Params == nil:
			out.Params = maps.Clone(f.Params)
		default:
			errs = append(errs, merge(out.Params, f.Params, c.Name))
		}
	}
	if set != 0 {
		out.KeepBlocks = true
		m.holds[r.ID] = set
	}
	return out, errors.Join(errs...)
}

func merge(dst, src map[string]json.RawMessage, name string) error {
	for k, v := range src {
		if _, ok := dst[k]; ok {
			return fmt.Errorf("%w: %q, of %s and of one before it", ErrParams, k, name)
		}
		dst[k] = v
	}
	return nil
}

// Close closes the children, the last one first.
func (m *Schedulers) Close() error {
	var errs []error
	for i := len(m.children) - 1; i >= 0; i-- {
		errs = append(errs, m.children[i].Conn.Close())
	}
	return errors.Join(errs...)
}
