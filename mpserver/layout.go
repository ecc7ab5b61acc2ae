package mpserver

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// layout is what the workers of a (model, world size) pair store per chunk and
// rank. It is immutable.
type layout struct {
	model     string
	worldSize int
	groups    []groupLayout
	// fingerprint names the content of the objects: two layouts with one
	// fingerprint can read each other's objects, if need be with heads and
	// tokens reordered. It is part of the scope, so that an engine that comes
	// back with another dtype does not find the KV of its former self.
	fingerprint string

	// Of engine-driven registrations:
	blockSize int
	useMLA    bool
	// Of server-driven ones:
	kv *kvlayout.Layout
}

// groupLayout is one object group of a layout.
type groupLayout struct {
	sizeBytes    int64
	windowChunks int  // 0: full attention
	aux          bool // stored, never looked up or retrieved
	// form is the order of bytes that these workers write, formID its number
	// beside each object.
	form   *kvlayout.Form
	formID l1cache.Form
	// Of engine-driven registrations: what slots tell of an object.
	shape []int64
	dtype torchdtype.DType
}

// errRegistration wraps what is wrong with a registration.
var errRegistration = errors.New("registration")

// engineDrivenLayout checks a registration and computes its object shape
// (wire-protocol 6.2).
func (s *Server) engineDrivenLayout(c *wire.EngineDrivenContext) (*layout, error) {
	bad := func(format string, args ...any) (*layout, error) {
		return nil, fmt.Errorf("%w of instance %d: %s", errRegistration, c.InstanceID, fmt.Sprintf(format, args...))
	}
	if err := checkPair(c.Model, c.WorldSize); err != nil {
		return bad("%v", err)
	}
	d, ok := torchdtype.Lookup(c.DType)
	if !ok {
		return bad("unknown dtype_str %q: a torch dtype name is needed, as in bfloat16", c.DType)
	}
	if c.BlockSize < 1 {
		return bad("block_size must be at least 1, got %d", c.BlockSize)
	}
	if c.HiddenDim < 1 || c.HiddenDim > 1<<40/d.Size {
		return bad("hidden_dim_size must be at least 1 and not absurd, got %d", c.HiddenDim)
	}
	slots := c.NumPhysicalSlots
	if slots == 0 {
		slots = s.opt.ChunkSize
	}
	planes, shape := 2, []int64{2, int64(c.NumLayers), int64(slots), int64(c.HiddenDim)}
	if c.UseMLA {
		planes, shape = 1, shape[1:]
	}
	form, err := kvlayout.NewTokenMajor(d.Name, planes, c.NumLayers, int64(slots), int64(c.HiddenDim)*int64(d.Size))
	if err != nil {
		return bad("%v", err)
	}
	l := &layout{
		model: c.Model, worldSize: c.WorldSize, blockSize: c.BlockSize, useMLA: c.UseMLA,
		groups: []groupLayout{{sizeBytes: form.Bytes, form: form, shape: shape, dtype: d}},
	}
	return l, s.finishLayout(l)
}

// serverDrivenLayout wraps what a registration of KV tensors came to.
func (s *Server) serverDrivenLayout(model string, worldSize int, kv *kvlayout.Layout) (*layout, error) {
	if err := checkPair(model, worldSize); err != nil {
		return nil, err
	}
	l := &layout{model: model, worldSize: worldSize, kv: kv}
	for i := range kv.Object {
		g := &kv.Object[i]
		l.groups = append(l.groups, groupLayout{sizeBytes: g.ObjectBytes(), windowChunks: g.WindowChunks, aux: g.Aux, form: g.Form})
	}
	return l, s.finishLayout(l)
}

// finishLayout numbers the forms of l and names its content.
func (s *Server) finishLayout(l *layout) error {
	var b strings.Builder
	for i := range l.groups {
		g := &l.groups[i]
		id, form, err := s.forms.Intern(g.form)
		if err != nil {
			return fmt.Errorf("%w: %w", errRegistration, err)
		}
		g.formID, g.form = l1cache.Form(id), form
		if !form.TokenMajor() {
			s.headsFirst.Store(true)
		}
		if i > 0 {
			b.WriteString("; ")
		}
		for j, r := range form.AsTokenMajor().Regions {
			if j > 0 {
				b.WriteString(" + ")
			}
			fmt.Fprintf(&b, "%s [%d %d %d] rows of %d B", r.DType, r.Planes, r.Layers, r.Slots, r.RowBytes)
		}
		if g.windowChunks > 0 {
			fmt.Fprintf(&b, ", window %d", g.windowChunks)
		}
		if g.aux {
			b.WriteString(", aux")
		}
		if s.strange(id, form) {
			fmt.Fprintf(&b, ", form %d", id)
		}
	}
	l.fingerprint = b.String()
	return nil
}

// strange reports whether an earlier form has the same rows as f, but split into
// other heads: then neither can be read as the other, and a name of its own
// keeps this engine from hits that it could not load.
func (s *Server) strange(id uint8, f *kvlayout.Form) bool {
	for i := uint8(1); i < id; i++ {
		if o := s.forms.Form(i); o.AsTokenMajor().Equal(f.AsTokenMajor()) && !o.Convertible(f) {
			return true
		}
	}
	return false
}

func checkPair(model string, worldSize int) error {
	if worldSize < 1 || worldSize > wire.MaxWorldSize {
		return fmt.Errorf("world_size must be between 1 and %d, got %d", wire.MaxWorldSize, worldSize)
	}
	return wire.CheckModel(model)
}

// same reports whether objects of l and o are interchangeable.
func (l *layout) same(o *layout) bool {
	return l.model == o.model && l.worldSize == o.worldSize && l.fingerprint == o.fingerprint
}

// identical reports whether l and o also address the engine's memory alike.
func (l *layout) identical(o *layout) bool {
	if !l.same(o) || (l.kv == nil) != (o.kv == nil) {
		return false
	}
	return reflect.DeepEqual(l.kv, o.kv)
}

// scope is the store's name for a group of l under a salt.
func (l *layout) scope(salt string, group int) l1cache.Scope {
	return l1cache.Scope{Model: l.model, Layout: l.fingerprint, Salt: salt, Group: group}
}

// lookupGroups are the groups of l that a hit needs. The first n groups of a
// layout are those, in order; auxiliary ones come last.
func (l *layout) lookupGroups(salt string) []l1cache.Group {
	out := make([]l1cache.Group, 0, len(l.groups))
	for i, g := range l.groups {
		if !g.aux {
			out = append(out, l1cache.Group{Scope: l.scope(salt, i), WindowChunks: g.windowChunks})
		}
	}
	return out
}
