package connector

import (
	"context"
	"fmt"
)

// serverDriven is the mode in which the server opens the engine's memory and
// copies (lmcache_driven).
type serverDriven struct {
	w   *Worker
	reg Registration
	mem Memory
}

func newServerDriven(w *Worker, c *Caches) (*serverDriven, error) {
	if _, err := c.layout(w.chunk); err != nil {
		return nil, err // the server would refuse it too, in its own log only
	}
	wrappers, err := c.wrappers()
	if err != nil {
		return nil, err
	}
	return &serverDriven{w: w, mem: c.Memory, reg: Registration{
		InstanceID: w.instance, Tensors: wrappers, Model: w.model, WorldSize: w.world, Engine: c.engine(), Hints: c.Hints, Groups: c.Groups,
	}}, nil
}

func (d *serverDriven) register(ctx context.Context) error {
	return d.w.client.RegisterKVCache(ctx, &d.reg)
}

func (d *serverDriven) unregister(ctx context.Context) error {
	return d.w.client.UnregisterKVCache(ctx, d.w.instance)
}

func (d *serverDriven) begin(f *flight) {
	event, err := d.mem.Record()
	if err != nil {
		f.end(fmt.Errorf("%w: record an event: %w", ErrFailed, err))
		return
	}
	if f.load {
		f.call = d.w.client.GoRetrieve(&f.key, d.w.instance, f.tr.Blocks, event, f.tr.SkipTokens)
	} else {
		f.call = d.w.client.GoStore(&f.key, d.w.instance, f.tr.Blocks, event)
	}
}

func (d *serverDriven) drain() {}

func (d *serverDriven) close() error { return nil }
