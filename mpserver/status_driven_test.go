package mpserver

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// The layout of a registration is told as the reference told that of the same
// one, which was recorded.
func TestStatusOfARegistration(t *testing.T) {
	data, err := os.ReadFile("httpapi/testdata/status_lmcache_driven.json")
	require.NoError(t, err)
	var want httpapi.Status
	require.NoError(t, json.Unmarshal(data, &want))
	s := startServer(t, func(o *Options) { o.ChunkSize = 256 })
	e := newEngine(t, s, 777, true, []kvGroup{{layers: 8, heads: 64, headBytes: 1024}})
	e.kvTensors("bfloat16", "HND", 4, 2, 256, 2, 16, 32)
	got := s.Status()
	require.Equal(t, []int64{777}, got.RegisteredGPUIDs)
	meta := got.CacheContextMeta["777"]
	require.Equal(t, want.CacheContextMeta["777"].KVCacheLayout, meta.KVCacheLayout)
	require.Equal(t, testModel, meta.ModelName)
	require.Equal(t, "cpu", got.Go.Instances[0].Transport)
	require.Empty(t, got.RegisteredNonCUDAInstanceIDs)
	e.none(wire.OpUnregisterKVCache, intFrame(777))
	require.Empty(t, s.Status().RegisteredGPUIDs)
}

// Copies on their way are counted, and an ended worker whose copies do not end
// is shown.
func TestStatusOfCopiesInFlight(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, nil)
	fire := dev.AddEvent("forward")
	e := registered(t, s, 1)
	uid := e.sendStore(e.keyOf("a", prompt(1, testChunk)), e.ids(4, 1), "forward")
	state := func(want string) bool {
		list := s.Status().Go.Instances
		return len(list) == 1 && list[0].State == want && list[0].PendingTransfers == 1
	}
	testutil.Eventually(t, "the copy is shown", func() bool { return state("alive") })
	e.send(wire.AppendOp(nil, wire.OpUnregisterKVCache), intFrame(1))
	testutil.Eventually(t, "the copy of the ended worker is shown", func() bool { return state("quarantined") })
	fire()
	_, ok := e.answer(uid)
	require.True(t, ok)
	e.recv()
	testutil.Eventually(t, "nothing is shown any more", func() bool { return len(s.Status().Go.Instances) == 0 })
}
