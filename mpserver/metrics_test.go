package mpserver

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// series reads GET /metrics: the value of each series as it is written.
func series(t *testing.T, s *Server) map[string]string {
	t.Helper()
	_, _, body := ask(t, s, "GET", "/metrics", "")
	out := map[string]string{}
	for line := range strings.Lines(body) {
		if name, v, ok := strings.Cut(strings.TrimSpace(line), "} "); ok {
			out[name+"}"] = v
		} else if name, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			out[name] = v
		}
	}
	return out
}

// TestMetricsOfBothModes: a store and a load count under the reference's names,
// whoever copies.
func TestMetricsOfBothModes(t *testing.T) {
	f := func(m map[string]string, name, want string) {
		t.Helper()
		if m[name] != want {
			t.Errorf("%s = %q, want %s", name, m[name], want)
		}
	}
	common := func(m map[string]string, model, device, instance string, bytes string) {
		t.Helper()
		f(m, `lmcache_mp_l1_write_chunks_total{l1_tag="_default"}`, "4")
		f(m, `lmcache_mp_l1_read_chunks_total{l1_tag="_default"}`, "4")
		f(m, `lmcache_mp_lookup_hit_tokens_total{cache_salt="",model_name="`+model+`"}`, "64")
		f(m, `lmcache_mp_num_submitted_stores_total{device="`+device+`"}`, "1")
		f(m, `lmcache_mp_num_finished_stores_total{device="`+device+`"}`, "1")
		f(m, `lmcache_mp_num_submitted_retrieves_total{device="`+device+`"}`, "1")
		f(m, `lmcache_mp_num_finished_retrieves_total{device="`+device+`"}`, "1")
		f(m, `lmcache_mp_num_chunks_loaded_total{cache_salt="",model_name="`+model+`",worker_id="`+instance+`"}`, "4")
		f(m, `lmcache_go_transfer_bytes_total{device="`+device+`",direction="store"}`, bytes)
		f(m, `lmcache_go_transfer_bytes_total{device="`+device+`",direction="retrieve"}`, bytes)
		require.NotEqual(t, "0", m["lmcache_go_prompt_cache_bytes"])
		require.Contains(t, m, "lmcache_mp_l1_eviction_loop_ticks_total")
		require.Contains(t, m, "lmcache_mp_l1_eviction_loop_triggered_total")
	}
	tokens := prompt(1, 4*testChunk)

	s := startServer(t, func(o *Options) { o.HTTPPort, o.L1.ShmName, o.MetricsSampleRate = 0, shmName(t), 1 })
	p := connect(t, s)
	p.register(4242)
	p.store(s, keyOf("a", tokens), 4242, tokens)
	require.Equal(t, 4, p.lookup(keyOf("b", tokens)))
	requirePattern(t, s, p.prepareRetrieve(keyOf("b", tokens), 4242), tokens[0])
	require.True(t, p.commitRetrieve(keyOf("b", tokens), 4242))
	common(series(t, s), testModel, "shm", "4242", "8192")
	f(series(t, s), `lmcache_mp_l1_chunk_reuse_gap_seconds_count{l1_tag="_default"}`, "4")
	p.none(wire.OpClear, boolFrame(false))
	f(series(t, s), `lmcache_mp_l1_chunk_lifetime_seconds_count{l1_tag="_default"}`, "4")
	// A retrieve that nobody looked up.
	require.False(t, p.prepareRetrieve(keyOf("c", tokens), 4242).Success)
	f(series(t, s), `lmcache_mp_l1_read_failure_chunks_total{during="l1_retrieve",model_name="test/model",reason="not_found"}`, "4")
	f(series(t, s), `lmcache_go_request_failures_total{op="prepare_retrieve",reason="not_held"}`, "1")

	s = startServer(t, withHTTP)
	e := newEngine(t, s, 777, false, []kvGroup{{layers: 2, heads: 2, headBytes: 16}})
	e.registerKV()
	require.True(t, e.storeKV(e.keyOf("a", tokens), e.ids(0, 4)))
	require.Equal(t, 4, e.lookup(e.keyOf("b", tokens)))
	require.True(t, e.retrieveKV(e.keyOf("b", tokens), e.ids(8, 4), 0))
	m := series(t, s)
	common(m, testModel, "cpu", "777", "4096")
	f(m, `lmcache_mp_l0_l1_store_throughput_GB_per_second_count{device="cpu",engine_id="777",model_name="test/model"}`, "1")
	f(m, `lmcache_mp_l0_l1_load_throughput_GB_per_second_count{device="cpu",engine_id="777",model_name="test/model"}`, "1")
}

// TestCopyingTime: what a copy waits for before it begins says nothing of its speed.
func TestCopyingTime(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	c := &copyJob{q: &copyQueue{}, begin: at(10)}
	require.Equal(t, 30*time.Second, c.copying(at(40)))
	c.q.free = at(5)
	require.Equal(t, 30*time.Second, c.copying(at(40)), "the one before had ended long ago")
	c.q.free = at(15)
	require.Equal(t, 25*time.Second, c.copying(at(40)))
	reached := at(20)
	c.reached.Store(&reached)
	require.Equal(t, 20*time.Second, c.copying(at(40)))
	c.q.free = at(35)
	require.Equal(t, 5*time.Second, c.copying(at(40)))
}

// TestBlocksOfEngines: what a scheduler reports of its own blocks becomes the
// reference's histograms.
func TestBlocksOfEngines(t *testing.T) {
	s := startServer(t, func(o *Options) { o.HTTPPort, o.MetricsSampleRate = 0, 1 })
	p := connect(t, s)
	report := func(request string, tokens ...int64) {
		t.Helper()
		records := wire.AppendBlockAllocationRecords(nil, []wire.BlockAllocationRecord{{RequestID: request, BlockIDs: []int64{3}, TokenIDs: tokens}})
		p.none(wire.OpReportBlockAllocation, intFrame(99), wire.AppendString(nil, testModel), records)
	}
	end := func(request string) { p.none(wire.OpEndSession, wire.AppendString(nil, request)) }
	for _, request := range []string{"a", "b", "c"} {
		report(request, 1, 2)
		end(request)
	}
	report("d", 7, 8)
	m := series(t, s)
	for _, name := range []string{"lifetime", "idle_before_evict", "reuse_gap"} {
		require.Equal(t, "1", m[`lmcache_mp_l0_block_`+name+`_seconds_count{instance_id="99",model_name="test/model"}`], name)
	}
	p.none(wire.OpReportBlockAllocation, intFrame(99), wire.AppendString(nil, testModel), intFrame(1))
	require.Equal(t, "1", series(t, s)[`lmcache_go_request_failures_total{op="report_block_allocation",reason="payload"}`])
}
