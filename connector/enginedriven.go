package connector

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/torchpickle"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// engineDriven is the mode in which this process copies between the engine's
// blocks and objects: slots in the server's pool, which it maps, or, when the
// server has no named pool, tensors in pickles.
//
// Loads and stores run in a goroutine each, in their order, so that a load does
// not wait behind stores and the engine waits for neither.
type engineDriven struct {
	w        *Worker
	ctx      wire.EngineDrivenContext
	layout   *kvlayout.Layout
	form     *kvlayout.Form
	shape    []int64
	dtype    torchdtype.DType
	storages [][]byte
	sizes    []int64
	encoder  *torchpickle.Encoder
	loads    *lane
	stores   *lane

	// mu keeps the mapping while a transfer uses it.
	mu   sync.RWMutex
	pool *poolMap // guarded by mu; nil for pickles
}

func newEngineDriven(w *Worker, c *Caches) (*engineDriven, error) {
	l, err := c.layout(w.chunk)
	if err != nil {
		return nil, err
	}
	if len(l.Kernel) != 1 || len(l.Object) != 1 {
		return nil, fmt.Errorf("%w: engine_driven moves one group of equal layers, this engine has %d: use lmcache_driven", ErrMode, len(l.Kernel))
	}
	storages, err := c.storages(l)
	if err != nil {
		return nil, err
	}
	k := &l.Kernel[0]
	r := l.Object[0].Form.AsTokenMajor().Regions[0]
	d, _ := torchdtype.Lookup(k.DType)
	hidden := r.RowBytes / int64(d.Size)
	e := &engineDriven{
		w: w, layout: l, form: l.Object[0].Form.AsTokenMajor(), dtype: d, storages: storages, loads: newLane(), stores: newLane(),
		ctx: wire.EngineDrivenContext{
			InstanceID: w.instance, Model: w.model, WorldSize: w.world, BlockSize: int(k.TokensPerBlock), NumLayers: r.Layers,
			HiddenDim: int(hidden), DType: d.Name, UseMLA: r.Planes == 1, NumPhysicalSlots: int(r.Slots),
		},
		shape: []int64{int64(r.Planes), int64(r.Layers), r.Slots, hidden},
	}
	if r.Planes == 1 {
		e.shape = e.shape[1:]
	}
	for _, s := range storages {
		e.sizes = append(e.sizes, int64(len(s)))
	}
	if e.encoder, err = torchpickle.NewEncoder(d, e.shape); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return e, nil
}

// register also maps the pool, anew if the server has another one now.
func (e *engineDriven) register(ctx context.Context) error {
	p, err := e.w.client.RegisterEngineDriven(ctx, &e.ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.pool
	e.pool = nil
	if p.ShmName != "" && p.SizeBytes > 0 {
		if e.pool, err = openPool(p, old); err != nil {
			return errors.Join(err, old.close())
		}
	}
	if e.pool == old {
		return nil
	}
	return old.close()
}

func (e *engineDriven) unregister(ctx context.Context) error {
	return e.w.client.UnregisterEngineDriven(ctx, e.w.instance)
}

func (e *engineDriven) drain() {
	e.loads.close()
	e.stores.close()
}

func (e *engineDriven) close() error {
	e.drain()
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.pool.close()
	e.pool = nil
	return err
}

func (e *engineDriven) begin(f *flight) {
	ctx, cancel := context.WithTimeout(context.Background(), e.w.cfg.Timeout)
	f.cancel, f.done = cancel, make(chan struct{})
	run, l := e.store, e.stores
	if f.load {
		run, l = e.load, e.loads
	}
	if !l.push(func() {
		defer close(f.done)
		f.err = e.guard(func() error { return run(ctx, f) })
	}) {
		f.done = nil
		f.end(ErrClosed)
	}
}

// guard makes an error of a fault: the pool's file can be cut short by others,
// and the engine goes on without it.
func (e *engineDriven) guard(run func() error) (err error) {
	debug.SetPanicOnFault(true) // of the lane's goroutine
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%w: memory at %#x went away under the copy", ErrFailed, fault.Addr())
		}
	}()
	e.mu.RLock()
	defer e.mu.RUnlock()
	return run()
}

// chunks of a flight's range.
func (e *engineDriven) chunks(f *flight) int { return (f.key.End - f.key.Start) / e.w.chunk }

// copy moves objects at offsets of pool; objects[i] is chunk objects[i].Chunk
// of the range.
func (e *engineDriven) copy(f *flight, dir copyplan.Direction, objects []copyplan.Object, pool []byte) error {
	p := copyplan.Acquire()
	defer p.Release()
	req := copyplan.Request{Layout: e.layout, BlockIDs: f.tr.Blocks, Chunks: e.chunks(f)}
	if dir == copyplan.Load {
		req.SkipTokens = f.tr.SkipTokens
	}
	if err := copyplan.CheckBlocks(e.layout, f.tr.Blocks, req.Chunks); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if err := p.Add(&req, objects, copyplan.Options{}); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if err := p.Check(e.sizes, int64(len(pool))); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	p.Copy(dir, e.storages, pool, copyplan.Pos{}, p.End())
	return nil
}

// objects turns slots into places in the pool; chunkOf numbers them.
func (e *engineDriven) objects(slots []wire.Slot, chunks int, chunkOf func(i int) int) ([]copyplan.Object, error) {
	out := make([]copyplan.Object, len(slots))
	for i := range slots {
		s := &slots[i]
		c := chunkOf(i)
		if s.Length != e.form.Bytes || s.DType != e.dtype.Name || !slices.Equal(s.Shape, e.shape) || c < 0 || c >= chunks {
			return nil, fmt.Errorf("%w: a slot of %d bytes, %s %v for chunk %d of %d; an object has %d bytes, %s %v",
				ErrReply, s.Length, s.DType, s.Shape, c, chunks, e.form.Bytes, e.dtype.Name, e.shape)
		}
		out[i] = copyplan.Object{Chunk: c, Offset: s.Offset, Bytes: s.Length, Form: e.form}
	}
	return out, nil
}

// store is PREPARE_STORE, copy, COMMIT_STORE.
func (e *engineDriven) store(ctx context.Context, f *flight) error {
	c, id := e.w.client, e.w.instance
	r, err := c.PrepareStore(ctx, &f.key, id)
	if err != nil {
		return err
	}
	if e.pool == nil {
		return e.storePickle(ctx, f)
	}
	if !r.Present {
		return fmt.Errorf("%w: the server has no room, or does not know this worker", ErrFailed)
	}
	if len(r.Slots) == 0 {
		return nil // all is there
	}
	if len(r.ChunkIndices) != len(r.Slots) {
		return fmt.Errorf("%w: %d slots with %d chunk indices", ErrReply, len(r.Slots), len(r.ChunkIndices))
	}
	objects, err := e.objects(r.Slots, e.chunks(f), func(i int) int { return r.ChunkIndices[i] })
	if err == nil {
		err = e.copy(f, copyplan.Store, objects, e.pool.data)
	}
	if err != nil {
		return err // without a commit the server never shows the slots to anybody
	}
	return committed(c.CommitStore(ctx, &f.key, id))
}

func committed(ok bool, err error) error {
	if err == nil && !ok {
		return fmt.Errorf("%w: the server did not take the commit", ErrFailed)
	}
	return err
}

// storePickle sends the chunks with the commit.
func (e *engineDriven) storePickle(ctx context.Context, f *flight) error {
	n := e.chunks(f)
	buf := make([]byte, int64(n)*e.form.Bytes)
	objects := make([]copyplan.Object, n)
	parts := make([][]byte, n)
	for i := range objects {
		at := int64(i) * e.form.Bytes
		objects[i] = copyplan.Object{Chunk: i, Offset: at, Bytes: e.form.Bytes, Form: e.form}
		parts[i] = buf[at:][:e.form.Bytes]
	}
	if err := e.copy(f, copyplan.Store, objects, buf); err != nil {
		return err
	}
	return committed(e.w.client.commitStore(ctx, &f.key, e.w.instance, e.encoder.Size(n), func(dst []byte) []byte { return e.encoder.Append(dst, parts) }))
}

// load is PREPARE_RETRIEVE, copy, COMMIT_RETRIEVE; the last also after a miss,
// as the reference does.
func (e *engineDriven) load(ctx context.Context, f *flight) error {
	c, id := e.w.client, e.w.instance
	r, err := c.PrepareRetrieve(ctx, &f.key, id)
	if err != nil {
		return err
	}
	switch {
	case !r.Success:
		err = fmt.Errorf("%w: not in the server any more", ErrFailed)
	case e.pool != nil && len(r.Data) == 0:
		var objects []copyplan.Object
		n := e.chunks(f)
		if len(r.Slots) != n {
			err = fmt.Errorf("%w: %d slots for %d chunks", ErrReply, len(r.Slots), n)
		} else if objects, err = e.objects(r.Slots, n, func(i int) int { return i }); err == nil {
			err = e.copy(f, copyplan.Load, e.wanted(f, objects), e.pool.data)
		}
	default:
		err = e.loadPickle(f, r.Data)
	}
	_, cerr := c.CommitRetrieve(ctx, &f.key, id)
	return errors.Join(err, cerr)
}

// wanted leaves out the chunks that are skipped whole.
func (e *engineDriven) wanted(f *flight, objects []copyplan.Object) []copyplan.Object {
	from, to := e.layout.RetrieveChunks(0, e.chunks(f), f.tr.SkipTokens)
	return objects[from:to]
}

// loadPickle copies out of the tensors of a reply.
func (e *engineDriven) loadPickle(f *flight, data []byte) error {
	tensors, err := torchpickle.Parse(data)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReply, err)
	}
	n := e.chunks(f)
	if len(tensors) != n {
		return fmt.Errorf("%w: %d tensors for %d chunks", ErrReply, len(tensors), n)
	}
	from, to := e.layout.RetrieveChunks(0, n, f.tr.SkipTokens)
	for i := from; i < to; i++ {
		t := &tensors[i]
		if t.DType != e.dtype || !slices.Equal(t.Shape, e.shape) {
			return fmt.Errorf("%w: a tensor of %s %v; an object is %s %v", ErrReply, t.DType.Name, t.Shape, e.dtype.Name, e.shape)
		}
		b, ok := t.Contiguous()
		if !ok {
			b = make([]byte, e.form.Bytes)
			if err := t.CopyTo(b); err != nil {
				return fmt.Errorf("%w: %w", ErrReply, err)
			}
		}
		if err := e.copy(f, copyplan.Load, []copyplan.Object{{Chunk: i, Bytes: e.form.Bytes, Form: e.form}}, b); err != nil {
			return err
		}
	}
	return nil
}
