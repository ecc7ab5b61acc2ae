package connector

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

func schedulerKey(world int, id string, tokens []uint32) wire.Key {
	return wire.Key{Model: testModel, WorldSize: world, Tokens: wire.AppendTokens(nil, tokens), TokenCount: len(tokens), End: len(tokens), RequestID: id, NumKVReaders: 1}
}

func params1(t *testing.T, text string) map[string]json.RawMessage {
	t.Helper()
	var p map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(text), &p))
	return p
}

// The line of the deployment page "disaggregated prefill", as it stands there.
const seedConfig = `{"kv_connector":"MultiConnector","kv_role":"kv_producer","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_load_failure_policy":"fail"},{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_connector_extra_config":{"lmcache.mp.host":"tcp://localhost","lmcache.mp.port":6555}}]}}`

func TestTheSeedsConfig(t *testing.T) {
	c, err := ParseTransferConfig([]byte(seedConfig))
	require.NoError(t, err)
	require.Equal(t, RoleProducer, c.Role)
	require.Len(t, c.Children, 2)
	require.NotNil(t, c.Find(NixlConnector))
	mp, err := c.Find(MPConnector).MP()
	require.NoError(t, err)
	want := DefaultConfig()
	want.Servers = []string{"tcp://localhost:6555"}
	require.Equal(t, want, mp)
	require.Nil(t, c.Find("OffloadingConnector"))
	require.Len(t, c.Warnings(), 1, "the policy")
	require.Contains(t, c.Warnings()[0], "recompute")
}

func mpConfig(t *testing.T, extra string) (Config, error) {
	t.Helper()
	c, err := ParseTransferConfig([]byte(`{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_connector_extra_config":` + extra + `}`))
	require.NoError(t, err)
	return c.MP()
}

func TestKeysOfTheConnector(t *testing.T) {
	f := func(extra string, change func(*Config)) {
		t.Helper()
		got, err := mpConfig(t, extra)
		want := DefaultConfig()
		change(&want)
		if err != nil {
			t.Errorf("%s: %v", extra, err)
		}
		require.Equal(t, want, got, extra)
	}
	f(`{}`, func(*Config) {})
	f(`{"lmcache.mp.host":"10.0.0.1","lmcache.mp.port":"6555"}`, func(c *Config) { c.Servers = []string{"tcp://10.0.0.1:6555"} })
	f(`{"lmcache.mp.server_urls":"a:1, tcp://b:2,","lmcache.mp.port":9}`, func(c *Config) { c.Servers = []string{"tcp://a:1", "tcp://b:2"} })
	f(`{"lmcache.mp.server_urls":["tcp://a:1"," b:2 "]}`, func(c *Config) { c.Servers = []string{"tcp://a:1", "tcp://b:2"} })
	f(`{"lmcache.mp.server_urls":[]}`, func(*Config) {})
	f(`{"lmcache.mp.server_urls":null}`, func(*Config) {})
	f(`{"lmcache.mp.mq_timeout":1.5,"lmcache.mp.heartbeat_interval":2}`, func(c *Config) {
		c.Timeout, c.HeartbeatInterval = 1500*time.Millisecond, 2*time.Second
	})
	f(`{"lmcache.mp.save_decode_cache":true,"lmcache.mp.eager_prefetch":true}`, func(c *Config) { c.SaveDecodeCache, c.EagerPrefetch = true, true })
	f(`{"lmcache.mp.nonblocking_lookup_status":"0","lmcache.mp.isolated_ipc":"YES","lmcache.mp.use_vmm_api":1,"lmcache.mp.autostart":"on"}`, func(c *Config) {
		c.NonblockingLookup, c.IsolatedIPC, c.UseVMM, c.Autostart = false, true, true, true
	})
	f(`{"lmcache.mp.mp_transfer_mode":"lmcache_driven","lmcache.mp.hash_algorithm":"sha256_cbor"}`, func(c *Config) {
		c.Mode, c.HashAlgorithm = ModeLMCacheDriven, "sha256_cbor"
	})
	f(`{"lmcache.mp.lazy_offload":false,"lmcache.mp.lazy_offload_policy":"FIFO","lmcache.mp.autostart.server_args":"--x"}`, func(*Config) {})
	f(`{"lmcache.mp.no_such_key":1,"lmcache.b":1,"other":2}`, func(c *Config) { c.Unknown = []string{"lmcache.b", "lmcache.mp.no_such_key"} })
}

func TestBadKeys(t *testing.T) {
	f := func(extra string, names ...string) {
		t.Helper()
		_, err := mpConfig(t, extra)
		require.ErrorIs(t, err, ErrConfig, extra)
		for _, n := range names {
			if !strings.Contains(err.Error(), n) {
				t.Errorf("%s: %q does not name %s", extra, err, n)
			}
		}
	}
	f(`{"lmcache.mp.save_decode_cache":"true"}`, "save_decode_cache")
	f(`{"lmcache.mp.eager_prefetch":1}`, "eager_prefetch")
	f(`{"lmcache.mp.port":"x","lmcache.mp.mq_timeout":-1,"lmcache.mp.heartbeat_interval":"10"}`, "lmcache.mp.port", "mq_timeout", "heartbeat_interval")
	f(`{"lmcache.mp.mp_transfer_mode":"gpu"}`, "mp_transfer_mode")
	f(`{"lmcache.mp.host":5}`, "lmcache.mp.host")
	f(`{"lmcache.mp.host":"grpc://x"}`, "grpc")
	f(`{"lmcache.mp.server_urls":{"a":1}}`, "server_urls")
	f(`{"lmcache.mp.server_urls":"a"}`, "port")
	f(`{"lmcache.mp.lazy_offload":true,"lmcache.mp.transfer_intermediate_tensors":true}`, "lazy_offload", "intermediate")
}

func TestBadTransferConfigs(t *testing.T) {
	f := func(text, name string) {
		t.Helper()
		_, err := ParseTransferConfig([]byte(text))
		require.ErrorIs(t, err, ErrConfig, text)
		require.ErrorContains(t, err, name)
	}
	f(`{`, "JSON")
	f(`{"kv_role":"kv_both"}`, "kv_connector")
	f(`{"kv_connector":"X"}`, "kv_role")
	f(`{"kv_connector":"X","kv_role":"both"}`, "kv_both")
	f(`{"kv_connector":"X","kv_role":"kv_both","kv_load_failure_policy":"retry"}`, "recompute")
	f(`{"kv_connector":"MultiConnector","kv_role":"kv_both"}`, "connectors")
	f(`{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"X","kv_role":"kv_bot"}]}}`, "connector 0")
	f(`{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{}]}}]}}`, "inside")
}

func TestModeOfTheEnvironment(t *testing.T) {
	c, err := ParseTransferConfig([]byte(`{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}`))
	require.NoError(t, err)
	env := func(key string) string { return map[string]string{ModeEnv: "engine_driven"}[key] }
	mp, err := c.MPWithEnv(env)
	require.NoError(t, err)
	require.Equal(t, ModeEngineDriven, mp.Mode)
	c.Extra = params1(t, `{"lmcache.mp.mp_transfer_mode":"lmcache_driven"}`)
	mp, err = c.MPWithEnv(env)
	require.NoError(t, err)
	require.Equal(t, ModeLMCacheDriven, mp.Mode, "the key goes first")
}

func TestParallel(t *testing.T) {
	f := func(p Parallel, rank, world, worker, readers, server int, writes bool) {
		t.Helper()
		require.NoError(t, p.Check())
		got := []any{p.KVWorldSize(), p.KVWorkerID(rank), p.Readers(), p.Server(rank), p.Writes(rank)}
		require.Equal(t, []any{world, worker, readers, server, writes}, got, "%+v rank %d", p, rank)
	}
	f(Parallel{}, 0, 1, 0, 1, 0, true)
	f(Parallel{WorldSize: 4}, 3, 4, 3, 1, 0, true)
	f(Parallel{WorldSize: 8, TPSize: 4}, 5, 8, 5, 1, 0, true)
	f(Parallel{WorldSize: 4, Servers: 2}, 3, 2, 1, 1, 1, true)
	f(Parallel{WorldSize: 8, MLA: true}, 0, 1, 0, 8, 0, true)
	f(Parallel{WorldSize: 8, MLA: true}, 5, 1, 0, 8, 0, false)
	f(Parallel{WorldSize: 8, TPSize: 4, MLA: true}, 4, 2, 1, 4, 0, true)
	f(Parallel{WorldSize: 8, MLA: true, Servers: 2}, 4, 1, 0, 4, 1, true)
	f(Parallel{WorldSize: 8, MLA: true, DCPSize: 2}, 3, 2, 1, 4, 0, false)
	f(Parallel{WorldSize: 8, MLA: true, DCPSize: 3}, 2, 3, 2, 3, 0, true)
	bad := func(p Parallel) {
		t.Helper()
		require.ErrorIs(t, p.Check(), ErrConfig)
	}
	bad(Parallel{WorldSize: 3, TPSize: 2})
	bad(Parallel{WorldSize: 3, Servers: 2})
	bad(Parallel{WorldSize: 4, TPSize: 2, Servers: 2})
	bad(Parallel{WorldSize: 4, Servers: 2, DCPSize: 4})
	require.Equal(t, "m", Parallel{DCPSize: 2}.KeyModel("m"))
	require.Equal(t, "m##lmcache-dcp-layout-v1-d2-interleave16", Parallel{WorldSize: 2, DCPSize: 2, Interleave: 16}.KeyModel("m"))
}

func TestParams(t *testing.T) {
	p, err := parseParams(params1(t, `{"lmcache.b": {"y": [1, -2, 2.5, true, null], "x": "s"}, "lmcache.a": 18446744073709551616, "remote": 1}`))
	require.NoError(t, err)
	require.Equal(t, "\x82\xa9lmcache.a\xcb\x43\xf0\x00\x00\x00\x00\x00\x00\xa9lmcache.b\x82\xa1x\xa1s\xa1y\x95\x01\xfe\xcb\x40\x04\x00\x00\x00\x00\x00\x00\xc3\xc0", string(p.configs))
	require.Equal(t, -1, p.maxOffload)
	require.False(t, p.wantStats)
	// A key with them is one that servers read.
	k := schedulerKey(1, "r", prompt(1, 10))
	k.Configs = p.configs
	var back wire.Key
	require.NoError(t, wire.DecodeKey(wire.AppendKey(nil, &k), &back, nil))
	require.Equal(t, p.configs, back.Configs)
	_, err = parseParams(params1(t, `{"lmcache.max_offload_tokens": -1}`))
	require.ErrorIs(t, err, ErrConfig)
	p, err = parseParams(nil)
	require.NoError(t, err)
	require.Nil(t, p.configs)
}

func TestStartErrors(t *testing.T) {
	s := startServer(t, func(o *mpserver.Options) { o.ChunkSize = 48 })
	other := startServer(t, nil)
	f := func(want error, name string, o SchedulerOptions) {
		t.Helper()
		sched, err := NewScheduler(t.Context(), o)
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, name)
		require.Nil(t, sched)
	}
	at := func(urls ...string) Config {
		c := DefaultConfig()
		c.Servers = urls
		return c
	}
	gone := at("tcp://127.0.0.1:1")
	gone.Timeout = 200 * time.Millisecond
	f(ErrConfig, "--chunk-size", SchedulerOptions{Model: "m", Config: at(s.Addr()), BlockTokens: []int{32}})
	f(ErrConfig, "same --chunk-size", SchedulerOptions{Model: "m", Config: at(s.Addr(), other.Addr()), BlockTokens: []int{16}, Parallel: Parallel{WorldSize: 2}})
	f(ErrConfig, "multiple", SchedulerOptions{Model: "m", Config: at(s.Addr(), other.Addr()), BlockTokens: []int{16}})
	f(ErrConfig, "BlockTokens", SchedulerOptions{Model: "m", Config: at(s.Addr())})
	f(wire.ErrValue, "@", SchedulerOptions{Model: "a@b", Config: at(s.Addr()), BlockTokens: []int{16}})
	f(ErrUnreachable, "Cannot reach"[1:], SchedulerOptions{Model: "m", Config: gone, BlockTokens: []int{16}})

	w, err := NewWorker(t.Context(), WorkerOptions{Model: "m", Config: at(other.Addr()), Rank: 1})
	require.ErrorIs(t, err, ErrConfig)
	require.Nil(t, w)
	_, err = NewWorker(t.Context(), WorkerOptions{Model: "m", Config: gone})
	require.ErrorIs(t, err, ErrUnreachable)

	c := at(other.Addr())
	c.Mode = ModeLMCacheDriven
	w, err = NewWorker(t.Context(), WorkerOptions{Model: "m", Config: c})
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close(context.Background())) }()
	require.ErrorIs(t, w.Register(t.Context(), kvCaches(kvMemory(t, true), false)), ErrMode)
	short := kvCaches(HostMemory{make([]byte, 100)}, false)
	require.ErrorIs(t, w.Register(t.Context(), short), ErrConfig)
}

func FuzzParseTransferConfig(f *testing.F) {
	f.Add(seedConfig)
	f.Add(`{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_connector_extra_config":{"lmcache.mp.server_urls":"a:1,b","lmcache.mp.port":"7"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseTransferConfig([]byte(text))
		if err != nil {
			return
		}
		c.Warnings()
		if mp := c.Find(MPConnector); mp != nil {
			if cfg, err := mp.MP(); err == nil && len(cfg.Servers) == 0 {
				t.Error("no server and no error")
			}
		}
	})
}
