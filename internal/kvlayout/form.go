package kvlayout

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Form is the order of the bytes in an object. Engines of one model may write
// different forms; a form is an attribute of the object, kept beside it as the
// small number that [Forms] gives out. Forms are immutable.
type Form struct {
	// Bytes is the exact size of the object.
	Bytes int64
	// Regions lie one behind the other without gaps.
	Regions []Region
}

// Region is the part of an object that one kernel group fills: Planes*Layers
// rows, each of Slots tokens' worth of RowBytes.
//
// Inside a row the order is token-major, slots of RowBytes each, when
// BlockSlots is 0. Otherwise it is head-major: blocks of BlockSlots slots, and
// in each block Heads runs of BlockSlots*RowBytes/Heads bytes.
type Region struct {
	Offset         int64
	DType          string
	Planes, Layers int
	// Slots kept of a chunk; a multiple of BlockSlots.
	Slots int64
	// RowBytes of one slot, all heads.
	RowBytes int64
	// Heads and BlockSlots of a head-major region, 0 in a token-major one.
	Heads, BlockSlots int64
}

// HeadMajor says whether the region keeps an engine's heads-first blocks.
func (r *Region) HeadMajor() bool { return r.BlockSlots > 0 }

// Bytes of the region.
func (r *Region) Bytes() int64 { return int64(r.Planes) * int64(r.Layers) * r.Slots * r.RowBytes }

// NewTokenMajor describes the objects of engine-driven clients: one region of
// [planes, layers, slots, rowBytes], tokens before heads.
func NewTokenMajor(dtype string, planes, layers int, slots, rowBytes int64) (*Form, error) {
	r := Region{DType: dtype, Planes: planes, Layers: layers, Slots: slots, RowBytes: rowBytes}
	n, ok := mul(int64(planes)*int64(layers), slots)
	if ok {
		n, ok = mul(n, rowBytes)
	}
	if !ok || planes < 1 || planes > 2 || layers < 1 || layers > maxTensors || slots < 1 || rowBytes < 1 {
		return nil, fmt.Errorf("%w: object of [%d, %d, %d] rows of %d bytes", ErrTensor, planes, layers, slots, rowBytes)
	}
	return &Form{Bytes: n, Regions: []Region{r}}, nil
}

// TokenMajor says whether all regions are, which is the only form that
// engine-driven clients, tiers and peers understand.
func (f *Form) TokenMajor() bool {
	for i := range f.Regions {
		if f.Regions[i].HeadMajor() {
			return false
		}
	}
	return true
}

// AsTokenMajor is the form of the same content with tokens before heads: f
// itself when it is that already.
func (f *Form) AsTokenMajor() *Form {
	if f.TokenMajor() {
		return f
	}
	t := &Form{Bytes: f.Bytes, Regions: slices.Clone(f.Regions)}
	for i := range t.Regions {
		t.Regions[i].Heads, t.Regions[i].BlockSlots = 0, 0
	}
	return t
}

// Equal says whether two forms are the same bytes for the same content.
func (f *Form) Equal(g *Form) bool {
	return f == g || f.Bytes == g.Bytes && slices.Equal(f.Regions, g.Regions)
}

// Convertible says whether objects of one form can be read as the other, by
// reordering heads and tokens if need be. Where it is false a reader must
// treat the object as absent: the same size says nothing.
func (f *Form) Convertible(g *Form) bool {
	if f.Bytes != g.Bytes || len(f.Regions) != len(g.Regions) {
		return false
	}
	for i := range f.Regions {
		a, b := f.Regions[i], g.Regions[i]
		if a.Heads != b.Heads && a.Heads != 0 && b.Heads != 0 {
			return false // heads of another size cannot be told apart
		}
		a.Heads, a.BlockSlots = b.Heads, b.BlockSlots
		if a != b {
			return false
		}
	}
	return true
}

// String names the form for logs: "token-major, 33554432 bytes".
func (f *Form) String() string {
	if f.TokenMajor() {
		return fmt.Sprintf("token-major, %d bytes", f.Bytes)
	}
	for i := range f.Regions {
		if r := &f.Regions[i]; r.HeadMajor() {
			return fmt.Sprintf("head-major in blocks of %d, %d bytes", r.BlockSlots, f.Bytes)
		}
	}
	return ""
}

// ErrForms says that more than 255 forms were seen.
var ErrForms = errors.New("kvlayout: too many object forms; restart the server to forget those of engines that are gone")

// Forms numbers forms, so that an object can carry its own as one byte
// (l1cache.Form). Numbers are never reused: an object may outlive
// every engine of its form. Safe for concurrent use; the zero value is ready.
type Forms struct {
	mu    sync.RWMutex
	forms []*Form // guarded by mu
}

// Intern returns the number of f, from 1 on, and the form to use from now on:
// of two equal ones always the first, so that pointers can be compared. It
// fails with ErrForms when there are 255 others.
func (t *Forms) Intern(f *Form) (uint8, *Form, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, g := range t.forms {
		if f.Equal(g) {
			return uint8(i + 1), g, nil
		}
	}
	if len(t.forms) == 255 {
		return 0, nil, ErrForms
	}
	t.forms = append(t.forms, f)
	return uint8(len(t.forms)), f, nil
}

// Form returns the form with that number, nil for 0 and for numbers never
// given out.
func (t *Forms) Form(id uint8) *Form {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if id == 0 || int(id) > len(t.forms) {
		return nil
	}
	return t.forms[id-1]
}
