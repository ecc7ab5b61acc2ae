package metrics

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scrape writes m and parses it strictly: every sample has a value, every
// family of ours one HELP and one TYPE line before it, no series twice.
func scrape(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	var b strings.Builder
	n, err := m.WriteTo(&b)
	require.NoError(t, err)
	require.Equal(t, int64(b.Len()), n)
	return parse(t, b.String())
}

func parse(t *testing.T, text string) map[string]float64 {
	t.Helper()
	samples := map[string]float64{}
	types := map[string]string{}
	sc := bufio.NewScanner(strings.NewReader(text))
	for sc.Scan() {
		line := sc.Text()
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, typ, _ := strings.Cut(rest, " ")
			require.NotContains(t, types, name, "second TYPE line")
			types[name] = typ
			continue
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		require.Positive(t, i, line)
		name, value := line[:i], line[i+1:]
		v, err := strconv.ParseFloat(value, 64)
		require.NoError(t, err, line)
		require.NotContains(t, samples, name, "series written twice")
		samples[name] = v
		if base := baseName(name); strings.HasPrefix(base, "lmcache_") {
			require.Contains(t, types, base, "series without TYPE: "+line)
		}
	}
	require.NoError(t, sc.Err())
	return samples
}

// baseName is the family of a series.
func baseName(name string) string {
	name, _, _ = strings.Cut(name, "{")
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		base := strings.TrimSuffix(name, suffix)
		if f, ok := known[base]; ok && f.kind == histogram {
			return base
		}
	}
	return name
}

func TestSeries(t *testing.T) {
	m := New(Options{InstanceID: "prefiller", Version: "v1"})
	m.SetGauges(func() Gauges {
		return Gauges{
			Healthy: true, L1UsedBytes: 25, L1TotalBytes: 100, L1ConfiguredBytes: 200, L1StagingBytes: 5,
			EvictionTurns: 2, EvictionTurnsTriggered: 1, ActivePrefetchJobs: 3, Sessions: 2, Instances: 1,
		}
	})
	m.L1Written("", 4)
	m.L1Written("tenant", 2)
	m.L1Written("", 0)
	m.L1Read("", 3)
	m.L1Evicted("", "demand", 2)
	m.AllocationFailed(DuringStore, "test/model", 15)
	m.ReadFailed(ReadNotFound, "test/model", 8)
	m.LookupDone("test/model", "", 1024, 512, 2)
	m.LookupEarlyExit("test/model", "", ExitNoChunks)
	m.TimedOut("PendingLookup")
	m.Op("LOOKUP").Done(time.Millisecond)
	m.Op("LOOKUP").Count()
	m.Op("STORE").Failed("no_space")
	m.Dropped("frames")
	m.Panicked("handler")
	m.InstanceEvent("reaped")
	m.LeaseExpired("read", 2)
	m.TransferBegun(Store, "cpu")
	m.TransferEnded(Store, "cpu", 1000)
	m.TransferBegun(Retrieve, "cuda:0")
	m.ChunksLoaded(777, "test/model", "", 4)
	m.TransferSpeed(Store, "cuda:0", 777, "test/model", 2e9, time.Second)

	got := scrape(t, m)
	f := func(series string, want float64) {
		t.Helper()
		v, ok := got[series]
		if !ok {
			t.Errorf("%s is missing", series)
		} else if v != want {
			t.Errorf("%s = %v, want %v", series, v, want)
		}
	}
	f(`lmcache_mp_l1_write_chunks_total{l1_tag="_default"}`, 4)
	f(`lmcache_mp_l1_write_chunks_total{cache_salt="tenant",l1_tag="_default"}`, 2)
	f(`lmcache_mp_l1_read_chunks_total{l1_tag="_default"}`, 3)
	f(`lmcache_mp_l1_evicted_chunks_total{l1_tag="_default"}`, 2)
	f(`lmcache_go_l1_evicted_chunks_by_reason_total{reason="demand"}`, 2)
	f(`lmcache_mp_l1_eviction_loop_ticks_total`, 2)
	f(`lmcache_mp_l1_eviction_loop_triggered_total`, 1)
	f(`lmcache_mp_l1_allocation_failure_chunks_total{during="l1_store",model_name="test/model"}`, 15)
	f(`lmcache_mp_l1_read_failure_chunks_total{during="l1_retrieve",model_name="test/model",reason="not_found"}`, 8)
	f(`lmcache_mp_lookup_requested_tokens_total{cache_salt="",model_name="test/model"}`, 1024)
	f(`lmcache_mp_lookup_hit_tokens_total{cache_salt="",model_name="test/model"}`, 512)
	f(`lmcache_mp_lookup_hit_l1_tokens_total{cache_salt="",model_name="test/model"}`, 512)
	f(`lmcache_mp_lookup_hit_l2_tokens_total{cache_salt="",model_name="test/model"}`, 0)
	f(`lmcache_mp_lookup_hit_l1_keys_total{cache_salt="",model_name="test/model"}`, 2)
	f(`lmcache_mp_lookups_requests_total{cache_salt="",model_name="test/model"}`, 2)
	f(`lmcache_mp_lookup_early_exit_requests_total{cache_salt="",model_name="test/model",reason="empty_chunk_hashes"}`, 1)
	f(`lmcache_mp_timeouts_total{exception_type="PendingLookup"}`, 1)
	f(`lmcache_mp_l1_memory_usage_bytes{backend="dram",l1_tag="_default"}`, 25)
	f(`lmcache_mp_l1_usage_ratio{backend="dram",l1_tag="_default"}`, 0.25)
	f(`lmcache_mp_l1_staging_bytes{backend="dram",l1_tag="_default"}`, 5)
	f(`lmcache_mp_active_prefetch_jobs`, 3)
	f(`lmcache_mp_num_submitted_stores_total{device="cpu"}`, 1)
	f(`lmcache_mp_num_finished_stores_total{device="cpu"}`, 1)
	f(`lmcache_mp_num_submitted_retrieves_total{device="cuda:0"}`, 1)
	f(`lmcache_mp_num_chunks_loaded_total{cache_salt="",model_name="test/model",worker_id="777"}`, 4)
	f(`lmcache_mp_l0_l1_store_throughput_GB_per_second_bucket{device="cuda:0",engine_id="777",model_name="test/model",le="2.5"}`, 1)
	f(`lmcache_mp_l0_l1_store_throughput_GB_per_second_bucket{device="cuda:0",engine_id="777",model_name="test/model",le="1"}`, 0)
	f(`lmcache_go_requests_total{op="LOOKUP"}`, 2)
	f(`lmcache_go_request_duration_seconds_count{op="LOOKUP"}`, 1)
	f(`lmcache_go_request_failures_total{op="STORE",reason="no_space"}`, 1)
	f(`lmcache_go_dropped_frames_total{reason="frames"}`, 1)
	f(`lmcache_go_panics_total{where="handler"}`, 1)
	f(`lmcache_go_instance_events_total{event="reaped"}`, 1)
	f(`lmcache_go_expired_leases_total{kind="read"}`, 2)
	f(`lmcache_go_transfer_bytes_total{device="cpu",direction="store"}`, 1000)
	f(`lmcache_go_healthy`, 1)
	var target, build bool
	for name := range got {
		target = target || strings.HasPrefix(name, `target_info{service_instance_id="prefiller"`)
		build = build || strings.HasPrefix(name, `lmcache_go_build_info{`) && strings.Contains(name, `version="v1"`)
	}
	require.True(t, target, "target_info")
	require.True(t, build, "build info")
	require.Positive(t, got["process_resident_memory_bytes"])
	require.Positive(t, got["process_open_fds"])
}

// TestReferenceNames holds our families against a scrape of the reference after
// the same kind of traffic.
func TestReferenceNames(t *testing.T) {
	for _, file := range []string{"testdata/metrics_empty.txt", "testdata/metrics_loaded.txt"} {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(data)) {
			rest, ok := strings.CutPrefix(line, "# TYPE lmcache_mp_")
			if !ok {
				continue
			}
			name, typ, _ := strings.Cut("lmcache_mp_"+strings.TrimSpace(rest), " ")
			f, ok := known[name]
			switch {
			case !ok:
				t.Errorf("%s: %s is not among the families", file, name)
			case string(f.kind) != typ:
				t.Errorf("%s is a %s, the reference has a %s", name, f.kind, typ)
			}
		}
	}
}

func TestLabelsAreBounded(t *testing.T) {
	m := New(Options{MaxModels: 2, MaxPairs: 3})
	for i := range 50 {
		model, salt := fmt.Sprintf("model%d", i), fmt.Sprintf("salt%d", i)
		m.LookupDone(model, salt, 10, 0, 0)
		m.LookupEarlyExit(model, salt, ExitNoContext)
		m.L1Written(salt, 1)
		m.AllocationFailed(DuringStore, model, 1)
		m.ChunksLoaded(int64(i), model, salt, 1)
		m.TransferSpeed(Store, "cpu", int64(i), model, 1, time.Second)
	}
	m.LookupDone(strings.Repeat("m", 1000), "", 10, 0, 0)
	got := scrape(t, m)
	perFamily := map[string]int{}
	sums := map[string]float64{}
	for s, v := range got {
		if strings.HasPrefix(s, "lmcache_mp") && !strings.Contains(s, "_bucket") {
			perFamily[baseName(s)]++
			sums[baseName(s)] += v
		}
	}
	for name, n := range perFamily {
		require.LessOrEqual(t, n, 16, name)
	}
	// Nothing is lost: what has no series of its own is counted under "other".
	require.Equal(t, 510.0, sums[nameRequestedTokens])
	require.Equal(t, 50.0, sums[nameEarlyExit])
	require.Equal(t, 50.0, sums[nameL1Write])
	require.Equal(t, 50.0, sums[nameAllocFailure])
	require.Equal(t, 50.0, sums[nameChunksLoaded])
	require.Equal(t, 1.0, got[`lmcache_mp_l1_allocation_failure_chunks_total{during="l1_store",model_name="model1"}`])
	require.Equal(t, 48.0, got[`lmcache_mp_l1_allocation_failure_chunks_total{during="l1_store",model_name="other"}`])
}

func TestLabelsOfAnyBytes(t *testing.T) {
	m := New(Options{InstanceID: "a\"b\nc"})
	for _, evil := range []string{"a\"b", `a\`, "a\nb", "a\xffb", "{}", "} 1\nfake 2", "\x00"} {
		m.LookupDone(evil, evil, 1, 1, 1)
		m.LookupEarlyExit(evil, evil, ExitNoLayout)
		m.L1Evicted(evil, "clear", 1)
		m.ReadFailed(ReadWriteLocked, evil, 1)
		m.ChunksLoaded(1, evil, evil, 1)
	}
	got := scrape(t, m)
	require.NotContains(t, got, "fake")
	require.Equal(t, 1.0, got[`lmcache_mp_lookups_requests_total{cache_salt="a\"b",model_name="a\"b"}`]-1)
}

func TestHide(t *testing.T) {
	m := New(Options{Hide: true, InstanceID: "x"})
	m.L1Written("", 1)
	got := scrape(t, m)
	for name := range got {
		require.False(t, strings.HasPrefix(name, "lmcache_"), name)
	}
	require.Positive(t, got["process_resident_memory_bytes"])
}

// TestFamiliesAreListed: everything written is described, and nothing is
// described that nobody writes.
func TestFamiliesAreListed(t *testing.T) {
	names := map[string]bool{}
	for _, f := range families {
		require.NotContains(t, names, f.name)
		names[f.name] = true
		require.NotEmpty(t, f.help)
	}
	m := New(Options{SampleRate: 1})
	m.SetGauges(func() Gauges { return Gauges{GPUs: []GPU{{UUID: "a", MemoryBytes: 1}, {UUID: "b", UsedBytes: -1}}} })
	m.L1Evicted("", "x", 1)
	m.AllocationFailed(DuringPrefetch, "m", 1)
	m.ReadFailed(ReadWriteLocked, "m", 1)
	m.LookupEarlyExit("m", "", ExitNoContext)
	for _, d := range []Direction{Store, Retrieve} {
		m.TransferBegun(d, "cpu")
		m.TransferEnded(d, "cpu", 1)
		m.TransferSpeed(d, "cpu", 1, "m", 1, 1)
	}
	m.ChunksLoaded(1, "m", "", 1)
	m.TimedOut("x")
	m.Op("x").Done(1)
	m.Op("x").Failed("x")
	m.Dropped("x")
	m.Panicked("x")
	m.ObjectStored(ObjectID{}, time.Time{})
	m.ObjectRead(ObjectID{}, time.Time{})
	m.InstanceEvent("x")
	m.LeaseExpired("x", 1)
	for tokens := range int64(2) {
		m.BlocksAllocated(1, "m", []BlockAllocation{{"r", []int64{1}, []int64{tokens}}}, time.Time{})
	}
	got := scrape(t, m)
	require.Contains(t, got, `lmcache_go_gpu_memory_bytes{uuid="a"}`)
	for _, unknown := range []string{nameGPUMemory, nameGPUUsed} {
		require.NotContains(t, got, unknown+`{uuid="b"}`, "what is not known is not told")
	}
	for s := range got {
		delete(names, baseName(s))
	}
	require.Empty(t, slices.Collect(maps.Keys(names)), "families that nobody writes")
}

func TestNoAllocations(t *testing.T) {
	m := New(Options{MaxModels: 1, MaxPairs: 1})
	op := m.Op("LOOKUP")
	hot := map[string]func(){
		"lookup":         func() { m.LookupDone("model", "salt", 1, 1, 1) },
		"lookup over":    func() { m.LookupDone("model", "salt2", 1, 1, 1) },
		"early exit":     func() { m.LookupEarlyExit("model", "salt", ExitNoContext) },
		"write":          func() { m.L1Written("", 1) },
		"write salt":     func() { m.L1Written("salt", 1) },
		"write over":     func() { m.L1Written("salt2", 1) },
		"evicted":        func() { m.L1Evicted("salt", "demand", 1) },
		"no room":        func() { m.AllocationFailed(DuringStore, "model", 1) },
		"op":             func() { op.Done(time.Millisecond) },
		"op failed":      func() { op.Failed("no_space") },
		"op by name":     func() { m.Op("LOOKUP").Count() },
		"dropped":        func() { m.Dropped("frames") },
		"transfer":       func() { m.TransferBegun(Store, "cpu"); m.TransferEnded(Store, "cpu", 1) },
		"transfer speed": func() { m.TransferSpeed(Store, "cpu", 1, "model", 1, time.Second) },
		"loaded":         func() { m.ChunksLoaded(1, "model", "salt", 1) },
	}
	for name, f := range hot {
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	m := New(Options{MaxPairs: 4})
	m.SetGauges(func() Gauges { return Gauges{Healthy: true} })
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				salt := strconv.Itoa((g + i) % 8)
				m.LookupDone("m", salt, 1, 0, 0)
				m.L1Written(salt, 1)
				m.Op("STORE").Failed("no_space")
				if i%50 == 0 {
					scrape(t, m)
				}
			}
		})
	}
	wg.Wait()
	got := scrape(t, m)
	sum := 0.0
	for s, v := range got {
		if baseName(s) == nameLookups {
			sum += v
		}
	}
	require.Equal(t, 800.0, sum)
	require.Equal(t, 800.0, got[`lmcache_go_request_failures_total{op="STORE",reason="no_space"}`])
}

func BenchmarkLookupDone(b *testing.B) {
	m := New(Options{})
	b.ReportAllocs()
	for b.Loop() {
		m.LookupDone("some/model-name", "tenant", 1024, 512, 2)
	}
}

func BenchmarkOpDone(b *testing.B) {
	op := New(Options{}).Op("LOOKUP")
	b.ReportAllocs()
	for b.Loop() {
		op.Done(50 * time.Microsecond)
	}
}
