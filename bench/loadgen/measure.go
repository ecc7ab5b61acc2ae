package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// measure makes one run. Problems are in its Errors.
func measure(c *config) *result {
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
	r.ClientCPUPct = round(100*own.Seconds()/wall.Seconds(), 1)
	if c.ServerPID > 0 {
		r.Server = use(before, after, wall, r.Ops[r.mainOp()].N)
	}
	return r
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
