package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

const (
	// memcpySpan is more than the caches of one core hold.
	memcpySpan = 256 << 20
	memcpyFor  = 200 * time.Millisecond
	// defaultChunkTokens is the server's default, which names of layouts refer to.
	defaultChunkTokens = 256
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
	copied := memcpyRate(c)
	err := each(func(cl *client) error {
		err := cl.run(time.Now().Add(seconds(c.Warmup)))
		cl.st.reset()
		return err
	})
	if err == nil && c.ClearAgain {
		err = errors.Join(each((*client).drain), clearServer(c))
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
	r.MemcpyGBs = round((copied+memcpyRate(c))/2, 3)
	r.ClientCPUPct = round(100*own.Seconds()/wall.Seconds(), 1)
	if c.ServerPID > 0 {
		r.Server = use(before, after, wall, r.Ops[r.mainOp()].N)
	}
	return r
}

// memcpyRate is what one thread of this machine copies in pieces of a chunk, in
// GB/s, at the moment: between ordinary memory, with the side that a workload
// walks through as large as memcpySpan. 0 for workloads that copy nothing.
func memcpyRate(c *config) float64 {
	if c.Mode != "shm" || c.NoCopy || c.Ops != "store" && c.Ops != "retrieve" {
		return 0
	}
	n := layouts[c.Layout].chunkBytes(defaultChunkTokens)
	span, piece := make([]byte, max(memcpySpan, n)), make([]byte, n)
	turn := func() (copied int) {
		for at := 0; at+n <= len(span); at += n {
			if c.Ops == "store" {
				copied += copy(span[at:at+n], piece)
			} else {
				copied += copy(piece, span[at:at+n])
			}
		}
		return copied
	}
	clear(span) // reading untouched pages reads one page of zeros
	turn()
	copied, begin := 0, time.Now()
	for time.Since(begin) < memcpyFor {
		copied += turn()
	}
	return float64(copied) / time.Since(begin).Seconds() / 1e9
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
