package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

// running starts a server of this program's own and returns its URL.
func running(t *testing.T) string {
	t.Helper()
	s, err := mpserver.New(mpserver.Options{
		L1: mpserver.L1Options{SizeBytes: 4 << 20}, InstanceID: "prefiller", Version: "v1.2.3", Commit: "gabc", Logger: slog.New(slog.DiscardHandler),
		Shown: map[string]any{"mp.max_workers": int64(3)},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return "http://" + s.HTTPAddr()
}

// TestToolsAgainstOurServer: every command that asks a server, against ours.
func TestToolsAgainstOurServer(t *testing.T) {
	url := running(t)
	f := func(line, want string) {
		t.Helper()
		code, out, errs := ask(t, url, strings.Fields(line)...)
		require.Equal(t, exitOK, code, line+": "+errs)
		require.Regexp(t, want, out, line)
	}
	f("ping kvcache", `Status: +OK`)
	f("version", `server v1.2.3-gabc\n`)
	f("describe kvcache", `(?s)Health: +OK.*Engine type: +MPCacheServer.*Chunk size: +256.*L1 used \(GB\): +0.00 \(0.0%\).*Eviction policy: +LRU.*Cached objects: +0`)
	f("describe kvcache --json", `"eviction_policy": "LRU"`)
	f("status", `(?s)Health: +OK.*Instance ID: +prefiller.*Evicted: watermark: +0.*\(none\)`)
	f("kvcache clear", `Status: +OK`)
	f("kvcache clear --force", `Status: +OK`)
	f("kvcache ls", `(?s)Listed: +0.*More: +False.*model.*chunk hash.*\(none\)`)
	f("quota list", `Info: +No quotas configured`)
	f("quota set tA --limit-gb 1.5", `(?s)Cache salt: +tA.*Limit \(GB\): +1.50.*Status: +ok`)
	f("quota set _default --limit-gb 2", `Cache salt: +_default`)
	f("quota get tA", `Exists: +True`)
	f("quota list", `(?s)Salt: _default.*Salt: tA.*Current usage \(GB\): +0.00`)
	f("quota delete tA", `Status: +removed`)
	f("quota delete tA", `Status: +not_found`)

	_, out, _ := ask(t, url, "status", "--json")
	var tree map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &tree))
	require.Equal(t, "prefiller", tree["lmcache_go"].(map[string]any)["instance_id"])
	code, _, errs := ask(t, url, "kvcache", "ls", "--tier", "l2")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "Server error: no L2 adapters configured")
	code, _, errs = ask(t, url, "kvcache", "checksum", "--instance-id", "7", "--block-ids", "1")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "instance_id 7 not registered")
	code, _, errs = ask(t, url, "quota", "set", "tA", "--limit-gb", "-1")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "limit_gb must be non-negative")
}
