package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

const (
	memcpyFor = 300 * time.Millisecond
	pageBytes = 4096
)

// runOnce makes one run. Problems are in its Errors.
func runOnce(c *config) *result {
	fail := func(err error) *result {
		return &result{Config: c, Label: c.label, Errors: []string{err.Error()}}
	}
	if c.Clear {
		if err := clearServer(c); err != nil {
			return fail(err)
		}
	}
	clients := make([]*client, c.Clients)
	defer func() {
		for _, cl := range clients {
			if cl != nil {
				_ = cl.close() // an error of the run says more
			}
		}
	}()
	for i := range clients {
		cl, err := newClient(c, i)
		if err != nil {
			return fail(fmt.Errorf("client %d: %w", i, err))
		}
		clients[i] = cl
		if err := cl.prefill(); err != nil {
			return fail(fmt.Errorf("client %d, storing what is to be hit: %w", i, err))
		}
	}
	// each runs f for every client at the same time.
	each := func(f func(*client) error) error {
		errs := make([]error, len(clients))
		var wg sync.WaitGroup
		for i, cl := range clients {
			wg.Go(func() {
				if err := f(cl); err != nil {
					errs[i] = fmt.Errorf("client %d: %w", i, err)
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	copied := memcpyRate(c, clients[0].data)
	err := each(func(cl *client) error {
		err := cl.run(time.Now().Add(seconds(c.Warmup)))
		cl.st.reset()
		return err
	})
	if err == nil && c.ClearAgain {
		err = errors.Join(each((*client).drain), clearServer(c))
	}
	if err == nil && c.Fill != "" {
		err = errors.Join(each((*client).drain), fillServer(c))
	}
	if err != nil {
		return fail(err)
	}
	var before, after procState
	if c.ServerPID > 0 {
		if before, err = readProc(c.ServerPID); err != nil {
			return fail(err)
		}
	}
	own, begin := ownCPU(), time.Now()
	err = each(func(cl *client) error { return cl.run(begin.Add(seconds(c.Seconds))) })
	wall := time.Since(begin)
	own = ownCPU() - own
	if c.ServerPID > 0 && err == nil {
		after, err = readProc(c.ServerPID)
	}
	if err != nil {
		return fail(err)
	}
	if err := each(func(cl *client) error { return errors.Join(cl.drain(), cl.audit()) }); err != nil {
		return fail(err)
	}
	all := make([]*stats, len(clients))
	for i, cl := range clients {
		all[i] = cl.st
	}
	r := summarize(c, all, wall)
	r.MemcpyGBs = round((copied+memcpyRate(c, clients[0].data))/2, 3)
	r.ClientCPUPct = round(100*own.Seconds()/wall.Seconds(), 1)
	if c.ServerPID > 0 {
		r.Server = use(before, after, wall, r.Ops[r.mainOp()].N)
	}
	return r
}

// memcpyRate is what one thread of this machine copies at the moment, in GB/s:
// between ordinary memory, in pieces of a chunk, with sides as large as those
// that the workload walks through. 0 for workloads that copy nothing.
func memcpyRate(c *config, d *dataPlane) float64 {
	if d == nil || d.pool == nil || c.NoCopy || c.Ops != "store" && c.Ops != "retrieve" {
		return 0
	}
	n := d.chunkBytes
	from, to := c.Chunks*n, len(d.pool)/n*n
	if c.Ops == "retrieve" {
		from, to = c.Prefill*c.Chunks*n, n
	}
	src, dst := ordinaryMemory(from), ordinaryMemory(to)
	defer func() { // unmapping memory that was just mapped does not fail
		_ = syscall.Munmap(src)
		_ = syscall.Munmap(dst)
	}()
	if src == nil || dst == nil {
		return 0
	}
	pieces := func(more func(copied int) bool) float64 {
		copied, begin := 0, time.Now()
		for more(copied) {
			copied += copy(dst[copied%to:][:n], src[copied%from:][:n])
		}
		return float64(copied) / time.Since(begin).Seconds() / 1e9
	}
	pieces(func(copied int) bool { return copied < max(from, to) }) // it stays in the caches as the workload leaves it
	end := time.Now().Add(memcpyFor)
	return pieces(func(int) bool { return time.Now().Before(end) })
}

// ordinaryMemory is memory of the kind that an engine copies from and to, whose
// pages are there; nil when there is not enough.
func ordinaryMemory(n int) []byte {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		return nil
	}
	for i := 0; i < n; i += pageBytes {
		b[i] = 1 // reading untouched pages reads one page of zeros
	}
	return b
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// clearServer sends CLEAR(false).
func clearServer(c *config) error {
	plain := *c
	plain.Ops, plain.Hit = "noop", false
	cl, err := newClient(&plain, 999)
	if err != nil {
		return err
	}
	_, _, err = cl.call(wire.OpClear, wire.AppendBool(nil, false))
	return errors.Join(err, cl.close())
}

// fillServer stores, by a client of its own, as much as the pool holds in
// objects of another size.
func fillServer(c *config) error {
	other := *c
	other.Ops, other.Layout, other.NoCopy, other.Depth, other.Audit = "store", c.Fill, true, 1, 0
	other.Model = strings.TrimSuffix(c.Model, "-"+c.Layout) + "-" + c.Fill
	cl, err := newClient(&other, 998)
	if err != nil {
		return err
	}
	for stored := 0; err == nil && stored < len(cl.data.pool); stored += cl.chunks * cl.data.chunkBytes {
		err = errors.Join(cl.startOne(), cl.drain())
	}
	return errors.Join(err, cl.close())
}
