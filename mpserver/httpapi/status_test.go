package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tree decodes JSON keeping whole numbers and floats apart.
func tree(t *testing.T, data []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	return v
}

// typeOf names the JSON type as a client's language sees it.
func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case string:
		return "string"
	case json.Number:
		if strings.ContainsAny(v.String(), ".e") {
			return "float"
		}
		return "int"
	case []any:
		return "list"
	case map[string]any:
		return "object"
	}
	return fmt.Sprintf("%T", v)
}

// missing lists the paths of want that got lacks or has with another type.
func missing(path string, want, got any) []string {
	if typeOf(want) != typeOf(got) {
		return []string{fmt.Sprintf("%s is a %s, want a %s", path, typeOf(got), typeOf(want))}
	}
	var out []string
	switch want := want.(type) {
	case map[string]any:
		got, _ := got.(map[string]any)
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if _, ok := got[k]; !ok {
				out = append(out, path+"."+k+" is missing")
				continue
			}
			out = append(out, missing(path+"."+k, want[k], got[k])...)
		}
	case []any:
		got, _ := got.([]any)
		if len(want) > 0 && len(got) == 0 {
			out = append(out, path+" is empty")
		}
		for i := range min(len(want), len(got)) {
			out = append(out, missing(fmt.Sprintf("%s[%d]", path, i), want[i], got[i])...)
		}
	}
	return out
}

// ours fills the tree as a server in the given state does.
func ours(mode string, objects int, used, pool int64, instances ...int64) Status {
	l1 := L1Manager{
		IsHealthy: true, TotalObjectCount: objects, MemoryUsedBytes: used,
		MemoryTotalBytes: pool, MemoryConfiguredBytes: pool, WriteTTLSeconds: 600, ReadTTLSeconds: 300,
	}
	evict := EvictionController{IsHealthy: true, ThreadAlive: true, EvictionPolicy: "LRU", TriggerWatermark: 0.8, EvictionRatio: 0.2}
	s := NewStatus(NewStorageManager(l1, evict))
	s.ChunkSize, s.HashAlgorithm = 256, "blake3"
	s.WorkerLiveness = WorkerLiveness{Enabled: true, ReapTimeoutSeconds: 120, RegistrationGraceSeconds: 3600, TrackedInstances: len(instances)}
	if mode != "engine_driven" {
		s.RegisteredGPUIDs, s.CacheContextMeta = []int64{}, map[string]CacheContextMeta{}
	}
	if mode != "lmcache_driven" {
		s.RegisteredNonCUDAInstanceIDs, s.NonCUDAContextMeta = []int64{}, map[string]NonCUDAContextMeta{}
		for _, id := range instances {
			s.RegisteredNonCUDAInstanceIDs = append(s.RegisteredNonCUDAInstanceIDs, id)
			s.NonCUDAContextMeta[fmt.Sprint(id)] = NonCUDAContextMeta{ModelName: "test/model", WorldSize: 1, BlockSize: 16}
		}
	}
	return s
}

func TestStatusHasTheReferencesPaths(t *testing.T) {
	f := func(file string, s Status) {
		t.Helper()
		golden, err := os.ReadFile(filepath.Join("testdata", file))
		require.NoError(t, err)
		got, err := json.Marshal(s)
		require.NoError(t, err)
		if diff := missing("", tree(t, golden), tree(t, got)); len(diff) > 0 {
			t.Errorf("%s:\n%s", file, strings.Join(diff, "\n"))
		}
	}
	f("status_empty.json", ours("lmcache_driven", 0, 0, 1<<30))
	f("status_engine_driven_shm.json", ours("engine_driven", 4, 1<<20, 10737418, 4242))
	f("status_loaded.json", ours("auto", 8, 2<<20, 10737418, 4242))
	f("status_locked.json", ours("auto", 8, 2<<20, 10737418, 4242))

	// The other way round: keys of the modes not served must be absent.
	absent := func(s Status, keys ...string) {
		t.Helper()
		data, err := json.Marshal(s)
		require.NoError(t, err)
		for _, k := range keys {
			require.NotContains(t, tree(t, data), k)
		}
	}
	absent(ours("lmcache_driven", 0, 0, 1), "registered_non_cuda_instance_ids", "non_cuda_context_meta")
	absent(ours("engine_driven", 0, 0, 1), "registered_gpu_ids", "cache_context_meta")
}

// TestStatusKnowsEveryKey decodes the goldens strictly into our types and back:
// a key that we do not know, or that changes on the way, fails.
func TestStatusKnowsEveryKey(t *testing.T) {
	for _, file := range []string{
		"status_empty.json", "status_locked.json", "status_loaded.json",
		"status_engine_driven_shm.json", "status_lmcache_driven.json",
	} {
		golden, err := os.ReadFile(filepath.Join("testdata", file))
		require.NoError(t, err)
		var s Status
		d := json.NewDecoder(bytes.NewReader(golden))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&s), file)
		back, err := json.Marshal(s)
		require.NoError(t, err)
		var got map[string]any
		got, _ = tree(t, back).(map[string]any)
		delete(got, "lmcache_go")
		sm, _ := got["storage_manager"].(map[string]any)
		delete(sm, "eviction_controller")
		require.Equal(t, tree(t, golden), any(got), file)
	}
}

func TestStorageManagerCopies(t *testing.T) {
	sm := NewStorageManager(
		L1Manager{IsHealthy: true, MemoryUsedBytes: 25, MemoryTotalBytes: 100, MemoryConfiguredBytes: 200},
		EvictionController{IsHealthy: false, EvictionPolicy: "LRU"},
	)
	require.False(t, sm.IsHealthy, "a dead loop makes the store ill")
	require.Equal(t, Float(0.25), sm.L1Manager.MemoryUsageRatio)
	require.Equal(t, sm.L1Manager, sm.L1Managers["_default"])
	require.Equal(t, [2]int64{25, 100}, sm.L1Usage)
	require.Equal(t, map[string]int64{"dram": 200}, sm.L1CapacityByBackend)
	require.Equal(t, "LRU", sm.EvictionController.EvictionPolicy)
	require.Zero(t, NewStorageManager(L1Manager{}, EvictionController{}).L1Manager.MemoryUsageRatio)
}

func TestFloat(t *testing.T) {
	f := func(v Float, want string) {
		t.Helper()
		got, err := json.Marshal(v)
		require.NoError(t, err)
		if string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	f(0, "0.0")
	f(30, "30.0")
	f(0.8, "0.8")
	f(0.09765625218278734, "0.09765625218278734")
	f(1e21, "1e+21")
	f(-2, "-2.0")
	f(Float(math.NaN()), "0.0")
	f(Float(math.Inf(1)), "0.0")
}

func BenchmarkStatus(b *testing.B) {
	s := ours("auto", 8, 2<<20, 10737418, 4242)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := json.Marshal(s); err != nil {
			b.Fatal(err)
		}
	}
}
