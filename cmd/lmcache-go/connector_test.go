package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

func TestConnectorJSON(t *testing.T) {
	require.Equal(t, `{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_load_failure_policy":"recompute",`+
		`"kv_connector_extra_config":{"lmcache.mp.host":"tcp://localhost","lmcache.mp.port":6555,"lmcache.mp.mp_transfer_mode":"engine_driven"}}`, connectorJSON("localhost", 6555, mpserver.TransferEngineDriven))
	require.Contains(t, connectorJSON("localhost", 6555, mpserver.TransferLMCacheDriven), `"lmcache.mp.mp_transfer_mode":"lmcache_driven"`)
	f := func(host, want string) {
		t.Helper()
		var c connectorConfig
		require.NoError(t, json.Unmarshal([]byte(connectorJSON(host, 1, "")), &c))
		if c.Extra.Host != want {
			t.Errorf("%s: got %s, want %s", host, c.Extra.Host, want)
		}
	}
	f("", "tcp://localhost")
	f("*", "tcp://localhost") // an engine shares memory or GPUs with the server
	f("0.0.0.0", "tcp://localhost")
	f("::", "tcp://localhost")
	f("10.1.2.3", "tcp://10.1.2.3")
	f("::1", "tcp://[::1]")
	f("[::1]", "tcp://[::1]")
	f("cache.internal", "tcp://cache.internal")
}

func TestTransferModeOfAnEngine(t *testing.T) {
	f := func(served mpserver.TransferMode, gpus bool, want mpserver.TransferMode) {
		t.Helper()
		require.Equal(t, want, transferMode(served, gpus))
	}
	f(mpserver.TransferAuto, false, mpserver.TransferEngineDriven)
	f(mpserver.TransferAuto, true, mpserver.TransferAuto)
	f("", false, mpserver.TransferEngineDriven)
	f(mpserver.TransferLMCacheDriven, false, mpserver.TransferLMCacheDriven)
	f(mpserver.TransferEngineDriven, true, mpserver.TransferEngineDriven)
}

func TestPrintConnector(t *testing.T) {
	f := func(o mpserver.Options, gpus bool, want string) {
		t.Helper()
		var b strings.Builder
		printConnector(&b, "localhost", 6555, o, gpus)
		require.Contains(t, b.String(), "--kv-transfer-config '{\"kv_connector\"")
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		last := lines[len(lines)-1]
		if !strings.Contains(last, want) {
			t.Errorf("got %q, want %q", last, want)
		}
	}
	f(mpserver.Options{TransferMode: mpserver.TransferAuto}, true, "add --shm-name NAME")
	f(mpserver.Options{TransferMode: mpserver.TransferEngineDriven, L1: mpserver.L1Options{ShmName: "x"}}, false, "/dev/shm/lmcache_l1_pool_x")
	f(mpserver.Options{TransferMode: mpserver.TransferLMCacheDriven}, true, "--kv-transfer-config")
	f(mpserver.Options{TransferMode: mpserver.TransferLMCacheDriven}, false, "sees no GPU")
}

func TestPortOf(t *testing.T) {
	f := func(endpoint string, want int) {
		t.Helper()
		if got := portOf(endpoint); got != want {
			t.Errorf("portOf(%s) = %d, want %d", endpoint, got, want)
		}
	}
	f("tcp://127.0.0.1:6555", 6555)
	f("tcp://[::1]:6555", 6555)
	f("127.0.0.1:8080", 8080)
	f("inproc://x", 0)
	f("", 0)
}
