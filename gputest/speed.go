package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// timing of one transfer.
type timing struct {
	device time.Duration // from the client's event to the server's, on the device's clock
	client time.Duration // from sending the request until the server's event was seen
	reply  time.Duration // from sending the request to its answer, which waits for the engine's event
}

// aheadMS is how long the engine's stream is busy before the event fires, so
// that everything is queued on the device by then.
const aheadMS = 10

// timed makes one transfer. With ms the event fires later, and the device's time
// is that of the copies alone; without, the client's time counts.
func (e *engine) timed(ctx context.Context, p prompt, ids []int64, ms float64, load bool, request string) (t timing, err error) {
	ev, err := e.p.event("event", ms)
	if err != nil {
		return t, err
	}
	begin := time.Now()
	var done []byte
	if load {
		done, err = e.retrieve(ctx, p, ids, ev, request)
	} else {
		done, err = e.store(ctx, p, ids, ev)
	}
	if err != nil {
		return t, err
	}
	t.reply = time.Since(begin)
	device, err := e.p.wait(done)
	t.client, t.device = time.Since(begin), time.Duration(device*float64(time.Millisecond))
	return t, err
}

// shapes of the table of aims. The bytes are those of tokens tokens.
var shapes = []struct {
	name   string
	c      cache
	tokens int
	// aims on the device: milliseconds for adjacent, GB/s for random; 0 for none.
	aimMS, aimGBs float64
}{
	{"default, 64 KiB runs", cache{layers: 32, blocks: 1024, slots: 16, heads: 8, width: 256, order: "LBNHC"}, 8192, 20.1, 53.5},
	{"default, HND", cache{layers: 32, blocks: 1024, slots: 16, heads: 8, width: 256, order: "LBHNC"}, 8192, 20.1, 53.5},
	{"default, blocks first", cache{layers: 32, blocks: 1024, slots: 16, heads: 8, width: 256, order: "BLNHC"}, 8192, 20.1, 53.5},
	{"MLA, 61 layers of 72 KiB", cache{layers: 61, blocks: 512, slots: 64, heads: 1, width: 576, order: "LBNHC"}, 8192, 11, 52},
	{"80 layers, 8 KiB runs", cache{layers: 80, blocks: 4096, slots: 16, heads: 1, width: 256, order: "LBNHC"}, 16384, 13, 39},
	{"80 layers, 4 KiB runs", cache{layers: 80, blocks: 4096, slots: 16, heads: 1, width: 128, order: "LBNHC"}, 16384, 7, 30},
	{"K and V apart, 32 KiB runs", cache{layers: 32, blocks: 1024, slots: 16, heads: 8, width: 128, planes: 2, order: "LBNHC"}, 8192, 20.1, 0},
	{"K and V apart, 80 layers, 8 KiB runs", cache{layers: 80, blocks: 2048, slots: 16, heads: 2, width: 128, planes: 2, order: "LBNHC"}, 8192, 13, 0},
}

// rounds of each measurement; the median counts.
const rounds = 5

func speedCases(ctx context.Context, h *harness) {
	p, err := h.process(ctx, "A", 0)
	if err != nil {
		h.report.outcome("speed", "start a process", err, "")
		return
	}
	a, err := p.do("contiguous", map[string]any{"size": 1 << 30})
	h.report.outcome("speed", "one pinned copy of 1 GiB", err, fmt.Sprintf("%.1f GB/s out, %.1f GB/s in", a.Store, a.Load))
	for i, s := range shapes {
		if h.o.device == "cpu" && s.c.planes == 2 {
			continue
		}
		if h.o.quick {
			s.c.blocks, s.tokens, s.c.layers = 128, chunk, 4
		}
		e, err := h.engine(ctx, p, fmt.Sprintf("speed-%d", i), 1, 0, s.c)
		if err != nil {
			h.report.outcome("speed", s.name, err, "")
			continue
		}
		for _, adjacent := range []bool{true, false} {
			m, err := e.measure(ctx, s.tokens, adjacent)
			name, aim := s.name+", random ids", 0.0
			if adjacent {
				name = s.name + ", adjacent ids"
			}
			if err != nil {
				h.report.outcome("speed", name, err, "")
				continue
			}
			bytes := float64(s.tokens * s.c.layers * s.c.heads * s.c.width * max(1, s.c.planes) * 2)
			gbs := func(d time.Duration) float64 { return bytes / max(d.Seconds(), 1e-9) / 1e9 }
			if adjacent {
				aim = bytes / s.aimMS / 1e6
			} else {
				aim = s.aimGBs
			}
			h.report.add(result{
				Group: "speed", Name: name, OK: true,
				Text: fmt.Sprintf("%4.0f MB  device: store %6.2f ms %5.1f GB/s, load %6.2f ms %5.1f GB/s (aim %.1f)  client: %6.2f / %6.2f ms  reply %.2f / %.2f ms  lookup %.2f ms",
					bytes/1e6, ms(m.store.device), gbs(m.store.device), ms(m.load.device), gbs(m.load.device), aim, ms(m.store.client), ms(m.load.client), ms(m.store.reply), ms(m.load.reply), ms(m.lookup)),
				Values: map[string]float64{
					"bytes": bytes, "store_device_ms": ms(m.store.device), "load_device_ms": ms(m.load.device), "store_client_ms": ms(m.store.client),
					"load_client_ms": ms(m.load.client), "store_reply_ms": ms(m.store.reply), "load_reply_ms": ms(m.load.reply),
					"lookup_ms": ms(m.lookup), "store_gbs": gbs(m.store.device), "load_gbs": gbs(m.load.device), "aim_gbs": aim,
				},
			})
		}
		if err := e.leave(ctx); err != nil {
			h.report.outcome("speed", s.name+": unregister", err, "")
		}
	}
	h.ranks(ctx)
	h.lookups(ctx)
	h.serverMemory(ctx)
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// measured are medians.
type measured struct {
	store, load timing
	lookup      time.Duration
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// measure stores and loads prompts, with the copies behind the engine's work
// for the device's time, and without for the client's.
func (e *engine) measure(ctx context.Context, tokens int, adjacent bool) (m measured, err error) {
	var storeDev, storeCli, storeRep, loadDev, loadCli, loadRep, lookups []time.Duration
	for i := range 2 * rounds {
		ahead := 0.0
		if i%2 == 0 {
			ahead = aheadMS
		}
		p := e.h.prompt(tokens)
		st, err := e.timed(ctx, p, e.ids(tokens, adjacent), ahead, false, "")
		if err != nil {
			return m, err
		}
		request := fmt.Sprintf("speed-%d-%d", e.id, p.seed)
		begin := time.Now()
		n, err := e.lookup(ctx, p, request)
		lookups = append(lookups, time.Since(begin))
		if err != nil || n != tokens/chunk {
			return m, fmt.Errorf("%w: a lookup finds %d of %d chunks, %w", errCase, n, tokens/chunk, err)
		}
		ld, err := e.timed(ctx, p, e.ids(tokens, adjacent), ahead, true, request)
		if err != nil {
			return m, err
		}
		e.client.EndSession(request)
		if ahead > 0 {
			storeDev, loadDev = append(storeDev, st.device), append(loadDev, ld.device)
		} else {
			storeCli, loadCli = append(storeCli, st.client), append(loadCli, ld.client)
			storeRep, loadRep = append(storeRep, st.reply), append(loadRep, ld.reply)
		}
	}
	return measured{
		timing{median(storeDev), median(storeCli), median(storeRep)},
		timing{median(loadDev), median(loadCli), median(loadRep)},
		median(lookups),
	}, nil
}

// ranks measures two workers of one engine at once, as --tp-size 2 does.
func (h *harness) ranks(ctx context.Context) {
	shape, tokens := shapes[0].c, 8192
	if h.o.quick {
		shape.blocks, tokens, shape.layers = 128, chunk, 4
	}
	var es [2]*engine
	for i, name := range []string{"A", "B"} {
		p, err := h.process(ctx, name, 0)
		if err == nil {
			es[i], err = h.engine(ctx, p, "ranks", 2, i, shape)
		}
		if err != nil {
			h.report.outcome("speed", "two ranks", err, "")
			return
		}
	}
	var stores, loads []time.Duration
	for range rounds {
		p := h.prompt(tokens)
		d, err := both(es[:], func(e *engine) error {
			_, err := e.timed(ctx, p, e.ids(tokens, false), 0, false, "")
			return err
		})
		request := fmt.Sprintf("ranks-%d", p.seed)
		if err == nil {
			stores = append(stores, d)
			_, err = es[0].lookup(ctx, p, request)
		}
		if err == nil {
			d, err = both(es[:], func(e *engine) error {
				_, err := e.timed(ctx, p, e.ids(tokens, false), 0, true, request)
				return err
			})
			loads = append(loads, d)
		}
		if err != nil {
			h.report.outcome("speed", "two ranks", err, "")
			break
		}
		es[0].client.EndSession(request)
	}
	for _, e := range es {
		if err := e.leave(ctx); err != nil {
			h.report.outcome("speed", "two ranks: unregister", err, "")
		}
	}
	if len(loads) == 0 {
		return
	}
	s, l := median(stores), median(loads)
	h.report.add(result{
		Group: "speed", Name: "two ranks, random ids", OK: true,
		Text:   fmt.Sprintf("%d MiB each; client: store %.2f ms, load %.2f ms", es[0].bytesOf(tokens)>>20, ms(s), ms(l)),
		Values: map[string]float64{"store_client_ms": ms(s), "load_client_ms": ms(l)},
	})
}

func (e *engine) bytesOf(tokens int) int {
	return tokens * e.c.layers * e.c.heads * e.c.width * e.c.planes * e.c.bytes
}

// both runs f for all engines at once and returns how long that took.
func both(es []*engine, f func(*engine) error) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make([]error, len(es))
	begin := time.Now()
	for i, e := range es {
		wg.Go(func() { errs[i] = f(e) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// lookups measures a lookup and its answer, as the scheduler's process sees it.
func (h *harness) lookups(ctx context.Context) {
	p, err := h.process(ctx, "A", 0)
	var e *engine
	if err == nil {
		e, err = h.engine(ctx, p, "lookups", 1, 0, cache{layers: 2, blocks: 1024, slots: 16, heads: 1, width: 64, order: "LBNHC"})
	}
	if err != nil {
		h.report.outcome("speed", "lookups", err, "")
		return
	}
	defer func() { _ = e.leave(ctx) }()
	pr := h.prompt(8192)
	if _, err := e.timed(ctx, pr, e.ids(8192, false), 0, false, ""); err != nil {
		h.report.outcome("speed", "lookups", err, "")
		return
	}
	var took []time.Duration
	for i := range 300 {
		request := fmt.Sprintf("lookups-%d", i)
		begin := time.Now()
		n, err := e.lookup(ctx, pr, request)
		took = append(took, time.Since(begin))
		e.client.EndSession(request)
		if err != nil || n != 32 {
			h.report.outcome("speed", "lookups", fmt.Errorf("%w: %d chunks, %w", errCase, n, err), "")
			return
		}
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	h.report.add(result{
		Group: "speed", Name: "lookup of 32 chunks", OK: true, Text: fmt.Sprintf("p50 %.3f ms, p99 %.3f ms", ms(p50), ms(p99)),
		Values: map[string]float64{"p50_ms": ms(p50), "p99_ms": ms(p99)},
	})
}

// memoryUsed is what is in use of the first GPU in MiB, all processes together.
func (h *harness) memoryUsed(ctx context.Context) (int64, error) {
	if h.o.device == "cpu" {
		return 0, nil
	}
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0").Output()
	if err != nil {
		return 0, fmt.Errorf("nvidia-smi: %w", err)
	}
	return strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
}

// serverMemory tells what the server has of the GPU while an engine is there.
func (h *harness) serverMemory(ctx context.Context) {
	if h.o.device == "cpu" {
		return
	}
	without, err := h.memoryUsed(ctx)
	if err != nil {
		h.report.outcome("speed", "GPU memory of the server", err, "")
		return
	}
	p, err := h.process(ctx, "A", 0)
	var e *engine
	if err == nil {
		e, err = h.engine(ctx, p, "memory", 1, 0, cache{layers: 8, blocks: 64, slots: 16, heads: 4, width: 64, order: "LBNHC"})
	}
	if err != nil {
		h.report.outcome("speed", "GPU memory of the server", err, "")
		return
	}
	with, err := h.memoryUsed(ctx)
	if left := e.leave(ctx); err == nil {
		err = left
	}
	after, err2 := h.memoryUsed(ctx)
	if err == nil {
		err = err2
	}
	h.report.add(result{
		Group: "speed", Name: "GPU memory of the server", OK: err == nil && with-without < 524+64,
		Text: fmt.Sprintf("%d MiB with one small engine, %d MiB after it has left (%v)", with-without, after-without, errText(err)), Values: map[string]float64{"mib": float64(with - without), "after_mib": float64(after - without)},
	})
}

// lossCase: what a process that computes loses while we copy.
func lossCase(ctx context.Context, h *harness) {
	for _, order := range []string{"LBNHC", "LBHNC"} {
		if err := h.loss(ctx, order); err != nil {
			h.report.outcome("loss", order, err, "")
		}
	}
}

func (h *harness) loss(ctx context.Context, order string) error {
	shape, tokens, seconds := shapes[0].c, 8192, 3.0
	if h.o.quick {
		shape.blocks, tokens, shape.layers, seconds = 128, chunk, 4, 0.2
	}
	shape.order = order
	p, err := h.process(ctx, "A", 0)
	if err != nil {
		return err
	}
	busy, err := h.process(ctx, "B", 0)
	if err != nil {
		return err
	}
	e, err := h.engine(ctx, p, "loss-"+order, 1, 0, shape)
	if err != nil {
		return err
	}
	defer func() { _ = e.leave(ctx) }()
	alone, err := busy.do("matmul", map[string]any{"seconds": seconds})
	if err != nil {
		return err
	}
	type outcome struct {
		a   answer
		err error
	}
	result1 := make(chan outcome, 1)
	go func() {
		a, err := busy.do("matmul", map[string]any{"seconds": seconds})
		result1 <- outcome{a, err}
	}()
	begin, bytes := time.Now(), 0
	for {
		select {
		case o := <-result1:
			if o.err != nil {
				return o.err
			}
			lost := 0.0
			if alone.TFLOPs > 0 {
				lost = 100 * (1 - o.a.TFLOPs/alone.TFLOPs)
			}
			h.report.add(result{
				Group: "loss", Name: "a computing process beside our copies, " + order, OK: lost < 2,
				Text: fmt.Sprintf("%.0f TFLOP/s alone, %.0f beside %.1f GB/s: %.1f %% lost (aim < 2)", alone.TFLOPs, o.a.TFLOPs, float64(bytes)/time.Since(begin).Seconds()/1e9, lost), Values: map[string]float64{"lost_percent": lost},
			})
			return nil
		default:
		}
		pr := h.prompt(tokens)
		if _, err := e.timed(ctx, pr, e.ids(tokens, false), 0, false, ""); err != nil {
			return err
		}
		request := fmt.Sprintf("loss-%d", pr.seed)
		if _, err := e.lookup(ctx, pr, request); err != nil {
			return err
		}
		if _, err := e.timed(ctx, pr, e.ids(tokens, false), 0, true, request); err != nil {
			return err
		}
		e.client.EndSession(request)
		bytes += 2 * e.bytesOf(tokens)
	}
}

// gpusCase: engines on two GPUs at once, one of which leaves and returns.
func gpusCase(ctx context.Context, h *harness) {
	if h.o.gpus < 2 {
		return
	}
	h.report.outcome("gpus", "two GPUs at once, one leaves and returns", h.twoGPUs(ctx), "")
}

func (h *harness) twoGPUs(ctx context.Context) error {
	shape, tokens := shapes[0].c, 8192
	var es [2]*engine
	for i, name := range []string{"A", "second"} {
		p, err := h.process(ctx, name, i)
		if err != nil {
			return err
		}
		if es[i], err = h.engine(ctx, p, fmt.Sprintf("gpus-%d", i), 1, 0, shape); err != nil {
			return err
		}
	}
	for _, set := range [][]*engine{es[:1], es[1:], es[:]} {
		var took []time.Duration
		for range rounds {
			d, err := both(set, func(e *engine) error {
				_, err := e.timed(ctx, h.prompt(tokens), e.ids(tokens, false), 0, false, "")
				return err
			})
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		h.report.note("gpus", "%d engines of 1 GiB: store %.2f ms", len(set), ms(median(took)))
	}
	if err := es[0].leave(ctx); err != nil { // the GPU that was there first
		return err
	}
	p := h.prompt(4 * chunk)
	if err := es[1].put(ctx, p, "event"); err != nil {
		return fmt.Errorf("after the first GPU has left: %w", err)
	}
	if err := es[1].getBack(ctx, p, "event"); err != nil {
		return fmt.Errorf("after the first GPU has left: %w", err)
	}
	back, err := h.engine(ctx, es[0].p, "gpus-0", 1, 0, shape)
	if err != nil {
		return err
	}
	p = h.prompt(4 * chunk)
	if err := back.put(ctx, p, "event"); err != nil {
		return fmt.Errorf("of the GPU that returned: %w", err)
	}
	if err := back.getBack(ctx, p, "event"); err != nil {
		return err
	}
	if err := back.leave(ctx); err != nil {
		return err
	}
	return es[1].leave(ctx)
}
