package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
)

// Expandable is torch's handle of a storage in expandable segments: pieces of
// physical memory that the exporter has as file descriptors (torch 2.11 version
// 2, torch 2.15 version 3, c10/cuda/CUDACachingAllocator).
type Expandable struct {
	// PID of the exporter, in its own pid namespace.
	PID int
	// SegmentBytes of each piece.
	SegmentBytes uint64
	// FDs are the exporter's.
	FDs []int
}

// maxSegments bounds what a handle may ask for: 128 TiB of 20 MiB pieces is
// more than any device has.
const maxSegments = 1 << 16

// ParseExpandable reads a handle of kind 'e', with its two bytes of version
// and kind.
func ParseExpandable(b []byte) (e Expandable, err error) {
	if len(b) < 2 || b[1] != 'e' {
		return e, fmt.Errorf("%w: no handle of expandable segments", ErrHandle)
	}
	version, head := b[0], 24
	switch version {
	case 2:
	case 3:
		head = 32
	default:
		return e, fmt.Errorf("%w: expandable segments of version %d, known are 2 and 3", ErrUnsupported, version)
	}
	b = b[2:]
	if len(b) < head {
		return e, fmt.Errorf("%w: %d bytes of expandable segments", ErrHandle, len(b))
	}
	e.PID = int(int32(binary.LittleEndian.Uint32(b)))
	e.SegmentBytes = binary.LittleEndian.Uint64(b[8:])
	n := binary.LittleEndian.Uint64(b[16:])
	if version == 3 {
		if kind := binary.LittleEndian.Uint32(b[24:]); kind != 1 {
			return e, fmt.Errorf("%w: expandable segments exported as fabric handles (kind %d): they need an IMEX domain; "+
				"leave expandable_segments out of PYTORCH_CUDA_ALLOC_CONF", ErrUnsupported, kind)
		}
	}
	if n == 0 || n > maxSegments || uint64(len(b)-head) != 4*n || e.SegmentBytes == 0 || e.SegmentBytes > 1<<40 || e.PID < 1 {
		return e, fmt.Errorf("%w: %d expandable segments of %d bytes in %d bytes", ErrHandle, n, e.SegmentBytes, len(b))
	}
	for i := range int(n) {
		e.FDs = append(e.FDs, int(int32(binary.LittleEndian.Uint32(b[head+4*i:]))))
	}
	return e, nil
}

// expandableRemedy is what helps when segments cannot be taken over.
const expandableRemedy = "the engine's memory is in expandable segments, whose file descriptors have to be taken from its process: " +
	"that needs its user and pid namespace and leave to trace it (CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0); " +
	"or leave expandable_segments out of the engine's PYTORCH_CUDA_ALLOC_CONF"

// OpenExpandable maps the pieces of a storage side by side, or counts one more
// user of the mapping. The handle is torch's, kind 'e'.
func (c *Context) OpenExpandable(handle []byte) (*Mapping, error) {
	e, err := ParseExpandable(handle)
	if err != nil {
		return nil, err
	}
	if !c.d.c.Has(capi.MemImportFromShareableHandle) || !c.d.c.Has(capi.MemMap) {
		return nil, fmt.Errorf("%w: the driver cannot import expandable segments", ErrUnsupported)
	}
	return c.openMapping(string(handle), func(m *Mapping) error { return c.mapSegments(m, &e) })
}

// mapSegments imports and maps all pieces, or none.
func (c *Context) mapSegments(m *Mapping, e *Expandable) (err error) {
	fds, err := takeFDs(e.PID, e.FDs)
	if err != nil {
		return fmt.Errorf("%w: process %d: %w; %s", ErrUnsupported, e.PID, err, expandableRemedy)
	}
	defer closeFDs(fds)
	total := e.SegmentBytes * uint64(len(fds))
	base, err := c.make(capi.MemAddressReserve, total)
	if err != nil {
		return err
	}
	mapped := uint64(0)
	undo := func() error {
		var errs []error
		if mapped > 0 {
			errs = append(errs, c.do(capi.MemUnmap, base, mapped))
		}
		return errors.Join(append(errs, c.do(capi.MemAddressFree, base, total))...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, undo())
		}
	}()
	for i, fd := range fds {
		piece, err := c.make(capi.MemImportFromShareableHandle, uint64(fd))
		if err != nil {
			return fmt.Errorf("segment %d of %d: %w", i, len(fds), err)
		}
		if err = c.do(capi.MemMap, base+mapped, e.SegmentBytes, piece); err == nil {
			mapped += e.SegmentBytes
		}
		// A mapping holds its piece.
		if err = errors.Join(err, c.do(capi.MemRelease, piece)); err != nil {
			return fmt.Errorf("segment %d of %d: %w", i, len(fds), err)
		}
	}
	if err := c.do(capi.MemSetAccess, base, total, c.dev.handle); err != nil {
		return err
	}
	m.Address, m.SizeBytes, m.close = base, int64(total), undo
	return nil
}
