package mpserver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// layout is what the workers of a (model, world size) pair store per chunk and
// rank. It is immutable.
type layout struct {
	model     string
	worldSize int
	blockSize int
	useMLA    bool
	groups    []groupLayout
	// fingerprint names the bytes of an object: two layouts with one
	// fingerprint can read each other's objects. It is part of the scope, so
	// that an engine that comes back with another dtype does not find the KV
	// of its former self.
	fingerprint string
	desc        string // for people
}

// groupLayout is one object group of a layout.
type groupLayout struct {
	shape        []int64 // of one object, as engine-driven slots tell it
	dtype        torchdtype.DType
	sizeBytes    int64
	windowChunks int // 0: full attention
}

// errRegistration wraps what is wrong with a registration.
var errRegistration = errors.New("registration")

// engineDrivenLayout checks a registration and computes its object shape
// (wire-protocol 6.2).
func engineDrivenLayout(c *wire.EngineDrivenContext, chunkSize int) (*layout, error) {
	bad := func(format string, args ...any) (*layout, error) {
		return nil, fmt.Errorf("%w of instance %d: %s", errRegistration, c.InstanceID, fmt.Sprintf(format, args...))
	}
	if err := wire.CheckModel(c.Model); err != nil {
		return bad("%v", err)
	}
	if c.WorldSize < 1 || c.WorldSize > wire.MaxWorldSize {
		return bad("world_size must be between 1 and %d, got %d", wire.MaxWorldSize, c.WorldSize)
	}
	d, ok := torchdtype.Lookup(c.DType)
	if !ok {
		return bad("unknown dtype_str %q: a torch dtype name is needed, as in bfloat16", c.DType)
	}
	slots := c.NumPhysicalSlots
	if slots == 0 {
		slots = chunkSize
	}
	planes := []int64{2}
	if c.UseMLA {
		planes = nil
	}
	shape := append(planes, int64(c.NumLayers), int64(slots), int64(c.HiddenDim))
	if c.BlockSize < 1 {
		return bad("block_size must be at least 1, got %d", c.BlockSize)
	}
	size := int64(d.Size)
	for _, n := range shape {
		if n < 1 || size > (1<<40)/n {
			return bad("an object of shape %v in %s is empty or larger than 1 TiB", shape, d.Name)
		}
		size *= n
	}
	g := groupLayout{shape: shape, dtype: d, sizeBytes: size}
	return newLayout(c.Model, c.WorldSize, c.BlockSize, c.UseMLA, []groupLayout{g}), nil
}

func newLayout(model string, worldSize, blockSize int, mla bool, groups []groupLayout) *layout {
	l := &layout{model: model, worldSize: worldSize, blockSize: blockSize, useMLA: mla, groups: groups}
	var b strings.Builder
	for i, g := range groups {
		if i > 0 {
			b.WriteString(" + ")
		}
		fmt.Fprintf(&b, "%v %s", g.shape, g.dtype.Name)
		if g.windowChunks > 0 {
			fmt.Fprintf(&b, " window %d", g.windowChunks)
		}
	}
	l.fingerprint = b.String()
	l.desc = l.fingerprint
	return l
}

// same reports whether objects of l and o are interchangeable.
func (l *layout) same(o *layout) bool {
	return l.model == o.model && l.worldSize == o.worldSize && l.fingerprint == o.fingerprint
}

// scope is the store's name for a group of l under a salt.
func (l *layout) scope(salt string, group int) l1cache.Scope {
	return l1cache.Scope{Model: l.model, Layout: l.fingerprint, Salt: salt, Group: group}
}

// lookupGroups are all groups of l, as a lookup needs them.
func (l *layout) lookupGroups(salt string) []l1cache.Group {
	out := make([]l1cache.Group, len(l.groups))
	for i, g := range l.groups {
		out[i] = l1cache.Group{Scope: l.scope(salt, i), WindowChunks: g.windowChunks}
	}
	return out
}
