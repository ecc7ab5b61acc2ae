package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// wrapper is the tensor as the wire has it.
func (t *tensor) wrapper() (w wire.DeviceWrapper, err error) {
	d, ok := torchdtype.Lookup(t.DType)
	if !ok {
		return w, fmt.Errorf("%w: dtype %q", errWorker, t.DType)
	}
	w.Metadata = wire.TensorMetadata{DType: d, Shape: t.Shape, Stride: t.Stride, StorageOffset: t.Offset, DeviceUUID: t.UUID}
	switch t.Type {
	case wire.TagCPUShm:
		w.Source = &wire.CPUShm{Name: t.Shm, SizeBytes: t.Size}
	case wire.TagCUDARaw:
		raw := &wire.CUDARaw{OffsetBytes: t.AllocOffset, SizeBytes: t.Size}
		b, err := hex.DecodeString(t.IPC)
		if err != nil || copy(raw.Handle[:], b) != len(raw.Handle) {
			return w, fmt.Errorf("%w: memory handle %q", errWorker, t.IPC)
		}
		w.Source = raw
	case wire.TagCUDA:
		w.Source, err = t.storage()
	default:
		err = fmt.Errorf("%w: wrapper %q", errWorker, t.Type)
	}
	return w, err
}

// storage reads the tuple that torch's _share_cuda_ returns.
func (t *tensor) storage() (*wire.CUDAStorage, error) {
	if len(t.Handle) != 8 {
		return nil, fmt.Errorf("%w: %d items of a storage's handle", errWorker, len(t.Handle))
	}
	var err error
	item := func(i int, v any) {
		if e := json.Unmarshal(t.Handle[i], v); e != nil && err == nil {
			err = fmt.Errorf("%w: item %d of a storage's handle: %w", errWorker, i, e)
		}
	}
	blob := func(i int) (b []byte) {
		var s *string
		if item(i, &s); s != nil {
			b, _ = hex.DecodeString(*s)
		}
		return b
	}
	c := &wire.CUDAStorage{Handle: blob(1), RefCounterHandle: blob(4), EventHandle: blob(6)}
	item(0, &c.Ordinal)
	item(2, &c.SizeBytes)
	item(3, &c.OffsetBytes)
	item(5, &c.RefCounterOffset)
	item(7, &c.EventSync)
	return c, err
}
