package connector

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

// The rows of connector.md 1.7, against our server and, where there is one, the
// real one; the worker's operations are written as server-driven and read as
// PREPARE and COMMIT in the other mode.
func TestTraces(t *testing.T) {
	for _, mode := range []TransferMode{ModeLMCacheDriven, ModeEngineDriven} {
		t.Run(string(mode), func(t *testing.T) {
			s := startServer(t, nil)
			traces(t, s.Addr(), mode, false)
		})
	}
	t.Run("pickle", func(t *testing.T) {
		s := startServer(t, func(o *mpserver.Options) { o.L1.ShmName = "" })
		traces(t, s.Addr(), ModeEngineDriven, true)
	})
}

// row is what the real client asks for in a case (testdata/rows.txt).
type row struct{ scheduler, worker []string }

// readRows reads testdata/rows.txt.
func readRows(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile("testdata/rows.txt")
	require.NoError(t, err)
	rows, name := make(map[string]row), ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		r := rows[name]
		if ops, ok := strings.CutPrefix(line, "  scheduler: "); ok {
			r.scheduler = strings.Split(ops, "; ")
		} else if ops, ok := strings.CutPrefix(line, "  worker: "); ok {
			r.worker = strings.Split(ops, "; ")
		} else {
			if line != "" && line[0] != '#' {
				name = line
			}
			continue
		}
		rows[name] = r
	}
	return rows
}

// require compares what our client is expected to ask for with the row, if the
// case has one. Pings have their own time, and what ours frees at an abort the
// real client does not.
func (r row) require(t *testing.T, who string, want, ours []string) {
	t.Helper()
	if r.scheduler == nil {
		return
	}
	aborted := len(r.worker) == 0 && slices.Contains(ours, "FREE[0,512)")
	ours = slices.DeleteFunc(slices.Clone(ours), func(op string) bool {
		return strings.HasPrefix(op, "PING") || aborted && strings.HasPrefix(op, "FREE")
	})
	require.Equal(t, append([]string{}, want...), append([]string{}, ours...), "the row of the %s", who)
}

// moves turns worker operations of the server-driven mode into those of mode.
func moves(mode TransferMode, ops ...string) []string {
	if mode == ModeLMCacheDriven {
		return ops
	}
	var out []string
	for _, op := range ops {
		name, rest, _ := strings.Cut(op, "[")
		rng, tail, _ := strings.Cut(rest, ")")
		rng = "[" + rng + ")"
		if i := strings.Index(tail, " worker"); i >= 0 {
			rng += tail[i : strings.Index(tail, " of ")+len(" of 2")]
		}
		switch name {
		case "STORE":
			out = append(out, "PREPARE_STORE"+rng, "COMMIT_STORE"+rng)
		case "RETRIEVE":
			out = append(out, "PREPARE_RETRIEVE"+rng, "COMMIT_RETRIEVE"+rng)
		default:
			out = append(out, op)
		}
	}
	return out
}

func traces(t *testing.T, url string, mode TransferMode, heap bool) {
	t.Helper()
	e := newEngine(t, engineOptions{urls: []string{url}, mode: mode, heap: heap})
	tokens := prompt(1, 600)
	rows, row := readRows(t), row{}
	worker := func(t *testing.T, ops ...string) {
		t.Helper()
		row.require(t, "worker", row.worker, ops)
		requireTrace(t, "worker", e.w[0], moves(mode, ops...)...)
	}
	scheduler := func(t *testing.T, ops ...string) {
		t.Helper()
		row.require(t, "scheduler", row.scheduler, ops)
		requireTrace(t, "scheduler", e.s, ops...)
	}
	// load finishes the load of r and runs the rest of its prompt.
	load := func(t *testing.T, r *request, loaded int) {
		t.Helper()
		for _, p := range e.wait() {
			require.Equal(t, []string{r.ID}, p.Received)
			require.Empty(t, p.BadBlocks)
		}
		r.ComputedTokens = loaded
		e.check(r, 0, min(loaded, len(r.Tokens)))
		e.sched.Allocated(&r.Request, r.blocks, 0)
		e.run(r, New, len(r.Tokens)-loaded)
	}
	run := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			e.t = t
			row = rows[name]
			delete(rows, name)
			f(t)
		})
	}
	run("cold", func(t *testing.T) {
		e.cold(newRequest("cold", tokens))
		scheduler(t, "PING(None)", "LOOKUP[0,512)", "QUERY->0", "REPORT 38 blocks 600 tokens", "END_SESSION")
		worker(t, "PING(id)", "STORE[0,512) 32 blocks")
		awaitStored(t, url, 1, tokens, 256, 2)
	})
	run("warm", func(t *testing.T) {
		r := newRequest("warm", tokens)
		require.Equal(t, 512, e.match(r, 0))
		e.alloc(r, 512)
		e.step(Step{})
		load(t, r, 512)
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "QUERY->2", "REPORT 38 blocks 600 tokens", "END_SESSION")
		worker(t, "RETRIEVE[0,512) 32 blocks skip 0")
	})
	run("warm, and 304 in the engine", func(t *testing.T) {
		r := newRequest("apc", tokens)
		require.Equal(t, 512-304, e.match(r, 304))
		e.alloc(r, 512-304)
		e.compute(0, &r.Request, r.blocks[0], 0, 304)
		marked := e.row(0, 0, 0, r.blocks[0], 256)
		marked[0] ^= 0xff // a block of the engine's own must not be written
		e.step(Step{})
		for _, p := range e.wait() {
			require.Equal(t, []string{"apc"}, p.Received)
		}
		want := make([]byte, testRow)
		pattern(want, 0, 0, 0, r.Tokens[256], 256)
		require.NotEqual(t, want, marked)
		marked[0] ^= 0xff
		e.check(r, 0, 512)
		r.ComputedTokens = 512
		e.run(r, New, 600-512)
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "QUERY->2", "FREE[0,304)", "REPORT 38 blocks 600 tokens", "END_SESSION")
		worker(t, "RETRIEVE[256,512) 16 blocks skip 48")
	})
	run("partial", func(t *testing.T) {
		r := newRequest("partial", append(append([]uint32(nil), tokens[:256]...), prompt(2, 400)...))
		require.Equal(t, 256, e.match(r, 0))
		e.alloc(r, 256)
		e.step(Step{})
		load(t, r, 256)
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "QUERY->1", "REPORT 41 blocks 656 tokens", "END_SESSION")
		worker(t, "RETRIEVE[0,256) 16 blocks skip 0", "STORE[256,512) 16 blocks")
	})
	run("prompt of exactly 512", func(t *testing.T) {
		r := newRequest("exact", tokens[:512])
		require.Equal(t, 511, e.match(r, 0))
		e.alloc(r, 511)
		e.step(Step{})
		load(t, r, 511)
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "QUERY->2", "REPORT 32 blocks 512 tokens", "END_SESSION")
		worker(t, "RETRIEVE[0,512) 32 blocks skip 0")
	})
	run("prompt of 100", func(t *testing.T) {
		r := newRequest("short", prompt(3, 100))
		e.cold(r)
		scheduler(t, "LOOKUP[0,0)", "QUERY->0", "REPORT 7 blocks 100 tokens", "END_SESSION")
		worker(t)
	})
	run("chunked prefill", func(t *testing.T) {
		r := newRequest("chunked", prompt(4, 600))
		require.Zero(t, e.match(r, 0))
		e.grow(r, 300)
		e.sched.Allocated(&r.Request, r.blocks, 0)
		e.run(r, New, 300)
		e.run(r, Running, 300)
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "QUERY->0", "REPORT 19 blocks 304 tokens", "REPORT 19 blocks 296 tokens", "END_SESSION")
		worker(t, "STORE[0,256) 16 blocks", "STORE[256,512) 16 blocks")
	})
	run("decode beyond a chunk", func(t *testing.T) {
		r := newRequest("decode", prompt(5, 500))
		require.Zero(t, e.match(r, 0))
		e.alloc(r, 0)
		e.run(r, New, 500)
		for i := range 29 {
			r.Tokens = append(r.Tokens, uint32(i))
			e.run(r, Running, 1)
		}
		e.finish(r)
		scheduler(t, "LOOKUP[0,256)", "QUERY->0", "REPORT 32 blocks 500 tokens", "REPORT 1 blocks 1 tokens", "REPORT 1 blocks 1 tokens", "END_SESSION")
		worker(t, "STORE[0,256) 16 blocks")
	})
	run("another connector loads", func(t *testing.T) {
		r := newRequest("other", tokens)
		require.Equal(t, 512, e.match(r, 0))
		e.alloc(r, 0)
		r.ComputedTokens = 599
		e.run(r, New, 1)
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "QUERY->2", "FREE[0,512)", "REPORT 38 blocks 600 tokens", "END_SESSION")
		worker(t)
	})
	run("abort before the answer", func(t *testing.T) {
		r := newRequest("abort-1", tokens)
		_, ready := e.sched.Match(&r.Request, 0)
		if ready {
			t.Skip("the answer was there at once")
		}
		<-e.sched.trackers[r.ID].lookup.asks[0].ack.Done()
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "FREE[0,512)", "END_SESSION") // the reference sends no FREE
		worker(t)
	})
	run("abort after the hit", func(t *testing.T) {
		r := newRequest("abort-2", tokens)
		require.Equal(t, 512, e.match(r, 0))
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "QUERY->2", "FREE[0,512)", "END_SESSION") // the reference sends no FREE
		worker(t)
	})
	run("abort with blocks, before the load", func(t *testing.T) {
		r := newRequest("abort-3", tokens)
		require.Equal(t, 512-304, e.match(r, 304))
		e.alloc(r, 512-304)
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "QUERY->2", "FREE[0,304)", "FREE[256,512)", "END_SESSION")
		worker(t)
	})
	run("preempt and resume", func(t *testing.T) {
		r := newRequest("preempted", prompt(6, 600))
		require.Zero(t, e.match(r, 0))
		e.alloc(r, 0)
		e.run(r, New, 600)
		r.Tokens = append(r.Tokens, 1)
		e.run(r, Running, 1)
		r.Tokens = append(r.Tokens, 2)
		m := e.step(Step{Preempted: true})
		require.True(t, m.Flush)
		awaitStored(t, url, 1, r.Tokens, 256, 2)
		r.Preempted, r.ComputedTokens, r.blocks = true, 0, [][]int64{nil}
		require.Equal(t, 512, e.match(r, 0))
		e.alloc(r, 512)
		e.step(Step{})
		e.wait()
		e.check(r, 0, 512)
		r.ComputedTokens, r.Preempted = 512, false
		m = e.run(r, Resumed, 90)
		require.True(t, m.Flush)
		e.finish(r)
		scheduler(t, "LOOKUP[0,512)", "QUERY->0", "REPORT 38 blocks 600 tokens", "LOOKUP[0,512)", "QUERY->2", "REPORT 38 blocks 602 tokens", "END_SESSION")
		worker(t, "STORE[0,512) 32 blocks", "RETRIEVE[0,512) 32 blocks skip 0")
	})
	run("decode side of disaggregated prefill", func(t *testing.T) {
		r := newRequest("pd", prompt(7, 600))
		require.Zero(t, e.match(r, 0))
		e.alloc(r, 600)
		r.ComputedTokens = 599
		e.compute(0, &r.Request, r.blocks[0], 0, 600)
		e.run(r, New, 1)
		for i := range 254 {
			r.Tokens = append(r.Tokens, uint32(i))
			e.run(r, Running, 1)
		}
		require.Empty(t, e.workers[0].flights, "255 tokens were scheduled")
		r.Tokens = append(r.Tokens, 1)
		m := e.run(r, Running, 1)
		require.Len(t, m.Stores, 1)
		e.finish(r)
		worker(t, "STORE[0,256) 16 blocks")
		e.s.take()
	})
	run("engine stop", func(t *testing.T) {
		e.t = t
		require.NoError(t, e.workers[0].Close(t.Context()))
		want := "UNREGISTER_KV_CACHE"
		if mode == ModeEngineDriven {
			want += "_ENGINE_DRIVEN_CONTEXT"
		}
		requireTrace(t, "worker", e.w[0], want)
	})
	require.Empty(t, rows, "rows that were not run")
}
