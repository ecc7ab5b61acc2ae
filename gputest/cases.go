package main

import (
	"context"
	"fmt"
	"time"
)

// schemes of events (gpu-path 5): CUDA's own, and values in device memory.
var schemes = []string{"event", "timeline"}

// bytesCases stores, scrambles and retrieves in every layout, with both kinds
// of events and handles.
func bytesCases(ctx context.Context, h *harness) {
	shapes := []struct {
		name string
		c    cache
	}{
		{"NHD, layers first", cache{layers: 8, blocks: 256, slots: 16, heads: 4, width: 64, order: "LBNHC"}},
		{"HND, layers first", cache{layers: 8, blocks: 256, slots: 16, heads: 4, width: 64, order: "LBHNC"}},
		{"NHD, blocks first", cache{layers: 8, blocks: 256, slots: 16, heads: 4, width: 64, order: "BLNHC"}},
		{"HND, blocks first", cache{layers: 8, blocks: 256, slots: 16, heads: 4, width: 64, order: "BLHNC"}},
		{"HND with one head", cache{layers: 8, blocks: 256, slots: 16, heads: 1, width: 256, order: "LBHNC"}},
		{"MLA", cache{layers: 6, blocks: 128, slots: 64, heads: 1, width: 576, order: "LBNHC"}},
		{"fp8", cache{layers: 8, blocks: 256, slots: 16, heads: 4, width: 64, order: "LBNHC", bytes: 1}},
		{"K and V apart, a tensor a layer", cache{layers: 4, blocks: 256, slots: 16, heads: 4, width: 64, planes: 2, order: "LBNHC"}},
		{"K and V apart, HND", cache{layers: 4, blocks: 256, slots: 16, heads: 4, width: 64, planes: 2, order: "LBHNC"}},
		{"below a page, inside torch's pool", cache{layers: 2, blocks: 80, slots: 16, heads: 2, width: 32, order: "LBNHC"}},
		{"NHD by raw handles", cache{layers: 8, blocks: 256, slots: 16, heads: 4, width: 64, order: "LBNHC", wrapper: "cuda_raw"}},
	}
	p, err := h.process(ctx, "A", 0)
	if err != nil {
		h.report.outcome("bytes", "start a process", err, "")
		return
	}
	h.report.note("bytes", "%s, torch %s", p.Info.Name, p.Info.Torch)
	for i, s := range shapes {
		if h.o.device == "cpu" && (s.c.planes == 2 || s.c.wrapper != "") {
			continue // many segments, or handles, that only a GPU has
		}
		for _, scheme := range schemes {
			err := h.alone(ctx, p, fmt.Sprintf("bytes-%d-%s", i, scheme), s.c, scheme)
			h.report.outcome("bytes", s.name+", "+scheme, err, "")
		}
	}
}

// alone registers an engine, makes a round trip, and unregisters it.
func (h *harness) alone(ctx context.Context, p *process, model string, c cache, scheme string) error {
	e, err := h.engine(ctx, p, model, 1, 0, c)
	if err != nil {
		return err
	}
	pr := h.prompt(2 * chunk)
	err = e.put(ctx, pr, scheme)
	if err == nil {
		err = e.getBack(ctx, pr, scheme)
	}
	if left := e.leave(ctx); err == nil && left != nil {
		err = fmt.Errorf("unregister: %w", left)
	}
	return err
}

// put fills random blocks and stores them. A lookup that does not wait for the
// event has to find them all the same.
func (e *engine) put(ctx context.Context, p prompt, scheme string) error {
	ids := e.ids(len(p.tokens), false)
	if err := e.fill(p, ids); err != nil {
		return err
	}
	ev, err := e.p.event(scheme, 2)
	if err != nil {
		return err
	}
	done, err := e.store(ctx, p, ids, ev)
	if err != nil {
		return err
	}
	if err := checkScheme(ev, done); err != nil {
		return err
	}
	request := fmt.Sprintf("probe-%d-%d", e.id, p.seed)
	n, err := e.lookup(ctx, p, request)
	e.client.EndSession(request)
	if err != nil {
		return err
	}
	if want := len(p.tokens) / chunk; n != want {
		return fmt.Errorf("%w: a lookup right after the store finds %d of %d chunks", errCase, n, want)
	}
	_, err = e.p.wait(done)
	return err
}

// checkScheme: an answer has an event of the request's kind.
func checkScheme(sent, got []byte) error {
	if len(got) != len(sent) {
		return fmt.Errorf("%w: an event of %d bytes was answered with one of %d", errCase, len(sent), len(got))
	}
	return nil
}

// getBack scrambles the cache, retrieves the prompt into other blocks and
// compares every byte.
func (e *engine) getBack(ctx context.Context, p prompt, scheme string) error {
	if err := e.wipe(); err != nil {
		return err
	}
	request := fmt.Sprintf("get-%d-%d", e.id, p.seed)
	defer e.client.EndSession(request)
	n, err := e.lookup(ctx, p, request)
	if err != nil {
		return err
	}
	if want := len(p.tokens) / chunk; n != want {
		return fmt.Errorf("%w: a lookup finds %d of %d chunks", errCase, n, want)
	}
	ids := e.ids(len(p.tokens), false)
	ev, err := e.p.event(scheme, 1)
	if err != nil {
		return err
	}
	done, err := e.retrieve(ctx, p, ids, ev, request)
	if err != nil {
		return err
	}
	if err := checkScheme(ev, done); err != nil {
		return err
	}
	if _, err := e.p.wait(done); err != nil {
		return err
	}
	return e.check(p, ids)
}

// shareCases: two processes of one model, which read each other's objects.
func shareCases(ctx context.Context, h *harness) {
	shape := cache{layers: 8, blocks: 256, slots: 16, heads: 4, width: 64}
	for i, orders := range [][2]string{{"LBNHC", "LBNHC"}, {"LBNHC", "LBHNC"}, {"LBHNC", "LBNHC"}, {"BLHNC", "LBNHC"}} {
		name := fmt.Sprintf("%s and %s", orders[0], orders[1])
		h.report.outcome("share", name, h.share(ctx, fmt.Sprintf("share-%d", i), shape, orders), "")
	}
}

func (h *harness) share(ctx context.Context, model string, shape cache, orders [2]string) error {
	var es [2]*engine
	for i, name := range []string{"A", "B"} {
		p, err := h.process(ctx, name, 0)
		if err != nil {
			return err
		}
		c := shape
		c.order = orders[i]
		if es[i], err = h.engine(ctx, p, model, 1, 0, c); err != nil {
			return err
		}
	}
	defer func() {
		for _, e := range es {
			_ = e.leave(ctx)
		}
	}()
	for i := range es {
		from, to := es[i], es[1-i]
		p := h.prompt(4 * chunk)
		if err := from.put(ctx, p, "event"); err != nil {
			return fmt.Errorf("store by %s: %w", from.p.name, err)
		}
		if err := to.getBack(ctx, p, "event"); err != nil {
			return fmt.Errorf("load by %s: %w", to.p.name, err)
		}
	}
	return nil
}

// killCase kills a worker whose event has not fired: its memory has to return,
// and nobody else may be delayed.
func killCase(ctx context.Context, h *harness) {
	for _, scheme := range schemes {
		if err := h.kill(ctx, scheme); err != nil {
			h.report.outcome("kill", scheme, err, "")
		}
	}
}

func (h *harness) kill(ctx context.Context, scheme string) error {
	p, err := h.process(ctx, "A", 0)
	if err != nil {
		return err
	}
	small := cache{layers: 8, blocks: 256, slots: 16, heads: 4, width: 64, order: "LBNHC"}
	other, err := h.engine(ctx, p, "kill-other", 1, 0, small)
	if err != nil {
		return err
	}
	defer func() { _ = other.leave(ctx) }()
	quiet, err := other.slowest(ctx, 20)
	if err != nil {
		return err
	}
	before, err := h.memoryUsed(ctx)
	if err != nil {
		return err
	}
	v, err := h.process(ctx, "victim", 0)
	if err != nil {
		return err
	}
	defer h.drop("victim", true)
	big := cache{layers: 32, blocks: 4096, slots: 16, heads: 8, width: 256, order: "LBNHC"} // 8 GiB
	if h.o.quick {
		big.blocks = 256
	}
	victim, err := h.engine(ctx, v, "kill-victim", 1, 0, big)
	if err != nil {
		return err
	}
	pr := h.prompt(4 * chunk)
	if err := victim.put(ctx, pr, scheme); err != nil {
		return fmt.Errorf("before the kill: %w", err)
	}
	request := "victim-" + scheme
	if _, err := victim.lookup(ctx, pr, request); err != nil {
		return err
	}
	ev, err := v.event(scheme, 100_000) // behind a hundred seconds of work
	if err != nil {
		return err
	}
	// Neither is answered before the event has fired.
	k := victim.key(h.prompt(4*chunk), "victim-store-"+scheme)
	victim.client.GoStore(&k, victim.id, [][]int64{victim.ids(4*chunk, false)}, ev)
	k = victim.key(pr, request)
	victim.client.GoRetrieve(&k, victim.id, [][]int64{victim.ids(4*chunk, false)}, ev, 0)
	beside, err := other.slowest(ctx, 50)
	if err != nil {
		return fmt.Errorf("beside an engine whose event does not fire: %w", err)
	}
	h.report.add(result{
		Group: "kill", Name: scheme + ": an unfired event stops nobody else", OK: beside < quiet+h.slack(),
		Text: fmt.Sprintf("slowest round trip %v, before %v", beside.Round(10*time.Microsecond), quiet.Round(10*time.Microsecond)),
	})
	h.drop("victim", true)
	_ = victim.client.Close()
	killed := time.Now()
	slow, back := time.Duration(0), time.Duration(0)
	var left int64
	for back == 0 && time.Since(killed) < 30*time.Second && ctx.Err() == nil {
		s, err := other.slowest(ctx, 20)
		if err != nil {
			return fmt.Errorf("the other instance: %w", err)
		}
		slow = max(slow, s)
		now, err := h.memoryUsed(ctx)
		if err != nil {
			return err
		}
		st, err := h.status(ctx)
		if err != nil {
			return err
		}
		gone := true
		for _, in := range st.Go.Instances {
			gone = gone && in.ID != victim.id
		}
		if left = now - before; left < 64 && gone {
			back = time.Since(killed)
		}
	}
	h.report.add(result{
		Group: "kill", Name: scheme + ": the memory of the dead returns", OK: back > 0,
		Text: fmt.Sprintf("after %v, %d MiB of %d left", back.Round(100*time.Millisecond), left, victim.size>>20), Values: map[string]float64{"seconds": back.Seconds()},
	})
	h.report.add(result{
		Group: "kill", Name: scheme + ": nobody else is delayed", OK: slow < quiet+h.slack(),
		Text:   fmt.Sprintf("slowest round trip %v, before %v", slow.Round(10*time.Microsecond), quiet.Round(10*time.Microsecond)),
		Values: map[string]float64{"before_ms": quiet.Seconds() * 1e3, "during_ms": slow.Seconds() * 1e3},
	})
	return nil
}

// slack is what a round trip may be slower beside somebody who is stuck. On
// shared memory the processors are shared too, and it says nothing.
func (h *harness) slack() time.Duration {
	if h.o.device == "cpu" {
		return 5 * time.Second
	}
	return 50 * time.Millisecond
}

// slowest makes n round trips and returns the time of the slowest.
func (e *engine) slowest(ctx context.Context, n int) (worst time.Duration, err error) {
	for range n {
		p := e.h.prompt(chunk)
		ids := e.ids(chunk, false)
		begin := time.Now()
		if _, err := e.timed(ctx, p, ids, 0, false, ""); err != nil {
			return 0, err
		}
		request := fmt.Sprintf("slow-%d-%d", e.id, p.seed)
		if n, err := e.lookup(ctx, p, request); err != nil || n != 1 {
			return 0, fmt.Errorf("%w: lookup: %d chunks, %w", errCase, n, err)
		}
		if _, err := e.timed(ctx, p, ids, 0, true, request); err != nil {
			return 0, err
		}
		e.client.EndSession(request)
		worst = max(worst, time.Since(begin))
	}
	return worst, nil
}
