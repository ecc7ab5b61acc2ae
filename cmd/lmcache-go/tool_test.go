package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// respond makes a server that answers "METHOD /path" with a status and a body,
// and everything else with 404 as the reference does. It remembers the requests.
func respond(t *testing.T, answers map[string]string) (url string, asked *[]string) {
	t.Helper()
	asked = new([]string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		line := r.Method + " " + r.URL.RequestURI()
		*asked = append(*asked, strings.TrimSpace(line+" "+string(body)))
		text, ok := answers[line]
		if !ok {
			text = `404 {"detail":"Not Found"}`
		}
		var status int
		_, err := fmt.Sscan(text, &status)
		if err != nil {
			status = 200
		} else {
			text = text[4:]
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, asked
}

// ask runs a tool against url.
func ask(t *testing.T, url string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runHere(t, noEnv, append(args, "--url", url)...)
}

// TestCommandSamples runs the command lines that were recorded from the
// reference's own commands and compares what they print.
func TestCommandSamples(t *testing.T) {
	status, err := os.ReadFile("testdata/status_lmcache_driven.json")
	require.NoError(t, err)
	var tree map[string]any
	require.NoError(t, json.Unmarshal(status, &tree))
	tree["active_sessions"], tree["cache_context_meta"] = 0, map[string]any{}
	l1 := tree["storage_manager"].(map[string]any)["l1_manager"].(map[string]any)
	l1["total_object_count"], l1["memory_used_bytes"], l1["memory_usage_ratio"] = 4, 1048576, 0.09765625218278734
	status, err = json.Marshal(tree)
	require.NoError(t, err)
	url, _ := respond(t, map[string]string{
		"GET /healthcheck":  `{"status":"healthy"}`,
		"GET /status":       string(status),
		"POST /cache/clear": `{"status":"ok","cleared":{"tier":"l1"}}`,
		"PUT /quota/tA":     `{"cache_salt":"tA","limit_gb":1.0,"status":"ok"}`,
		"GET /quota":        `{"users":{"tA":{"limit_gb":1.0,"current_usage_gb":0.0}}}`,
		"GET /quota/tA":     `{"cache_salt":"tA","limit_gb":1.0,"current_usage_gb":0.0,"exists":true}`,
		"DELETE /quota/tA":  `{"cache_salt":"tA","status":"removed"}`,
	})
	const recorded, nobody = "http://127.0.0.1:18090", "http://127.0.0.1:18099"
	closed := httptest.NewServer(nil)
	closed.Close()

	data, err := os.ReadFile("testdata/cli_samples.txt")
	require.NoError(t, err)
	samples := strings.Split(string(data), "$ lmcache ")[1:]
	require.Len(t, samples, 11)
	milliseconds := regexp.MustCompile(`: *\d+\.\d+\n`)
	for _, sample := range samples {
		line, want, _ := strings.Cut(sample, "\n")
		line, comment, _ := strings.Cut(line, "#")
		args := strings.Fields(strings.NewReplacer(recorded, url, nobody, closed.URL).Replace(line))
		code, out, errs := runHere(t, noEnv, args...)
		if strings.Contains(comment, "rc=1") {
			require.Equal(t, exitInvalid, code, line)
		} else {
			require.Equal(t, exitOK, code, line+errs)
		}
		got := strings.NewReplacer(url, recorded, closed.URL, nobody).Replace(out + errs)
		// The policy is found where the reference sends it; its own command looks elsewhere.
		want = strings.Replace(want, "Eviction policy:                               N/A", "Eviction policy:                               LRU", 1)
		want = strings.Replace(want, `"eviction_policy": null`, `"eviction_policy": "LRU"`, 1)
		if args[0] == "ping" {
			want, got = milliseconds.ReplaceAllString(want, " MS\n"), milliseconds.ReplaceAllString(got, " MS\n")
		}
		if strings.HasPrefix(line, "describe") { // the URL's length moves the padding
			space := regexp.MustCompile(` +`)
			want, got = space.ReplaceAllString(want, " "), space.ReplaceAllString(got, " ")
		}
		require.Equal(t, strings.TrimSpace(want), strings.TrimSpace(got), line)
	}
}

// TestTableWidths: the columns stand where the reference puts them.
func TestTableWidths(t *testing.T) {
	r := newReport("Ping KV Cache", widthPing)
	r.add("status", "Status", "OK")
	r.add("ms", "Round trip time (ms)", 12.12)
	require.Equal(t, "======= Ping KV Cache ========\nStatus:                     OK\nRound trip time (ms):    12.12\n==============================\n", r.terminal())
	require.Equal(t, "====================== Quota List =====================", center(" Quota List ", widthQuotas, "="))
	require.Equal(t, "x", center("x", 1, "="))
	require.Equal(t, "long", center("long", 2, "="))

	r = newReport("T", 20)
	table := r.table("rows", "Rows", column{"n", "n"}, column{"name", "name"})
	require.Contains(t, r.terminal(), "(none)")
	table.row(jsonNumber("1"), "alpha")
	table.row(jsonNumber("10"), nil)
	require.Equal(t, "======== T =========\n------- Rows -------\n n  name\n 1  alpha\n10  N/A\n====================\n", r.terminal())
	text, err := r.json()
	require.NoError(t, err)
	require.JSONEq(t, `{"title":"T","metrics":{"rows":[{"n":1,"name":"alpha"},{"n":10,"name":null}]}}`, text)
}

func jsonNumber(s string) json.Number { return json.Number(s) }

func TestOutput(t *testing.T) {
	url, _ := respond(t, map[string]string{"GET /quota": `{"users":{"b":{"limit_gb":2.0,"current_usage_gb":0.5},"a":{"limit_gb":1.0,"current_usage_gb":0.0}}}`})
	want := `{"title":"Quota List","metrics":{"quotas":[{"cache_salt":"a","limit_gb":1.0,"current_usage_gb":0.0},{"cache_salt":"b","limit_gb":2.0,"current_usage_gb":0.5}]}}`
	code, out, _ := ask(t, url, "quota", "list", "--json")
	require.Equal(t, exitOK, code)
	require.JSONEq(t, want, out)
	require.Contains(t, out, `"limit_gb": 1.0`, "a float stays one")

	path := filepath.Join(t.TempDir(), "out.json")
	code, out, _ = ask(t, url, "quota", "list", "-q", "--format", "json", "--output", path)
	require.Equal(t, exitOK, code)
	require.Empty(t, out)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, want, string(data))
	code, _, errs := ask(t, url, "quota", "list", "-q", "--output", t.TempDir())
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "--output")

	url, _ = respond(t, map[string]string{"GET /quota": `{"users":{}}`})
	_, out, _ = ask(t, url, "quota", "list")
	require.Contains(t, out, "No quotas configured")
}

func TestToolErrors(t *testing.T) {
	f := func(answer, want string) {
		t.Helper()
		url, _ := respond(t, map[string]string{"GET /status": answer})
		code, out, errs := ask(t, url, "describe", "kvcache")
		if code != exitInvalid || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: got %d, stdout %q, stderr %q, want %q", answer, code, out, errs, want)
		}
	}
	f(`503 {"error":"engine not initialized"}`, "Server unhealthy: engine not initialized")
	f(`503 {"detail":"server not initialized"}`, "Server unhealthy: server not initialized")
	f(`400 {"detail":"tier 'l2' not supported"}`, "Server error: tier 'l2' not supported (HTTP 400")
	f(`422 {"detail":[{"loc":["body","tier"],"msg":"bad word"},{"loc":["body"],"msg":"no"}]}`, "body tier: bad word; body: no")
	f(`500 Internal Server Error`, "HTTP 500 from http://")
	f(`<html>`, "did not answer in JSON")

	url, _ := respond(t, map[string]string{"GET /healthcheck": `503 {"status":"unhealthy","reason":"the loop is stuck"}`})
	code, out, errs := ask(t, url, "ping", "kvcache")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, out, "FAIL")
	require.Equal(t, "HTTP 503: Service Unavailable: the loop is stuck\n", errs)
}

func TestToolUsage(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		code, out, errs := runHere(t, noEnv, strings.Fields(line)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: got %d, stdout %q, stderr %q, want %q", line, code, out, errs, want)
		}
	}
	f("ping", "lmcache-go ping: error: the following arguments are required: target")
	f("ping mars", "argument target: invalid choice: 'mars' (choose from 'kvcache', 'engine')")
	f("ping kvcache again", "unrecognized arguments: again")
	f("kvcache clear", "the following arguments are required: --url")
	f("kvcache drop", "argument action: invalid choice: 'drop' (choose from 'clear', 'ls', 'checksum')")
	f("kvcache checksum --instance-id 7", "the following arguments are required: --block-ids")
	f("kvcache checksum --instance-id 7 --block-ids x", "argument --block-ids: invalid value: 'x'")
	f("kvcache checksum --instance-id 7 --block-ids 9-3", "invalid value: '9-3'")
	f("kvcache ls --page-size 0", "--page-size must be between 1 and 5000")
	f("quota", "required: one of 'set', 'get', 'delete', 'list'")
	f("quota set", "the following arguments are required: salt, --limit-gb")
	f("quota set tA --limit-gb many", "argument --limit-gb: invalid float value: 'many'")
	f("status --format yaml", "argument --format: invalid choice: 'yaml'")
	f("status --form json", "flags are not abbreviated here: write --format")
	code, _, _ := runHere(t, noEnv, "kvcache")
	require.Equal(t, exitInvalid, code, "as the reference")
}

func TestToolHelp(t *testing.T) {
	for _, args := range [][]string{
		{"ping", "--help"},
		{"describe", "-h"},
		{"status", "--help"},
		{"kvcache", "--help"},
		{"kvcache", "clear", "--help"},
		{"quota", "set", "--help"},
		{"help", "quota"},
		{"help", "quota", "set"},
		{"version", "--help"},
	} {
		code, out, errs := runHere(t, noEnv, args...)
		require.Equal(t, exitOK, code, args)
		require.Contains(t, out, "usage: lmcache-go ", args)
		require.Empty(t, errs)
	}
}

func TestKVCacheClear(t *testing.T) {
	url, asked := respond(t, map[string]string{"POST /cache/clear": `{"status":"ok","cleared":{"tier":"l1"}}`})
	code, _, errs := ask(t, url, "kvcache", "clear")
	require.Equal(t, exitOK, code, errs)
	code, _, errs = ask(t, strings.TrimPrefix(url, "http://")+"/", "kvcache", "clear", "--force")
	require.Equal(t, exitOK, code, errs)
	require.Equal(t, []string{`POST /cache/clear {"tier":"l1"}`, `POST /cache/clear {"force":true,"tier":"l1"}`}, *asked)
}

func TestKVCacheList(t *testing.T) {
	page := func(next string, hashes ...string) string {
		var entries []string
		for _, h := range hashes {
			entries = append(entries, `{"key":{"chunk_hash_hex":"`+h+`","model_name":"m","kv_rank":16777472,"object_group_id":0,"cache_salt":"s"},"size_bytes":4096}`)
		}
		return `{"entries":[` + strings.Join(entries, ",") + `],"next_page_token":` + next + `}`
	}
	url, asked := respond(t, map[string]string{
		"GET /cache/objects?page_size=2&tier=l1":                           page(`"7"`, "aa", "bb"),
		"GET /cache/objects?page_size=2&page_token=7&tier=l1":              page(`null`, "cc"),
		"GET /cache/objects?page_size=1&tier=l1":                           page(`"3"`, "aa"),
		"GET /cache/objects?model_name=m&page_size=100&tier=l2&adapter=fs": `503 {"detail":"no L2 adapters configured"}`,
		"GET /cache/objects?page_size=100&tier=l1":                         `400 {"detail":"tier 'l1' not supported; only 'l2'"}`,
	})
	code, out, errs := ask(t, url, "kvcache", "ls", "--page-size", "2", "--json")
	require.Equal(t, exitOK, code, errs)
	var got struct {
		Metrics struct {
			Listed  int
			More    bool
			Objects []map[string]any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, 3, got.Metrics.Listed)
	require.False(t, got.Metrics.More)
	require.Len(t, got.Metrics.Objects, 3)
	require.Equal(t, map[string]any{"model_name": "m", "kv_rank": 16777472.0, "object_group_id": 0.0, "cache_salt": "s", "chunk_hash_hex": "cc", "size_bytes": 4096.0}, got.Metrics.Objects[2])
	require.Len(t, *asked, 2)

	_, out, _ = ask(t, url, "kvcache", "ls", "--limit", "1")
	require.Contains(t, out, "m      16777472      0  s     aa           4096")
	require.Regexp(t, `More: +True`, out)
	code, _, errs = ask(t, url, "kvcache", "ls")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "try --tier l2")
}

func TestKVCacheChecksum(t *testing.T) {
	url, asked := respond(t, map[string]string{"POST /cache/checksums": `{"status":"success","chunk_size":2,"num_chunks":2,"chunk_checksums":["aa","bb"],"layerwise":false,"block_id_ranges":[[1,4]]}`})
	code, out, errs := ask(t, url, "kvcache", "checksum", "--instance-id", "777", "--block-ids", "1-2", "3,4", "--chunk-size", "2", "--json")
	require.Equal(t, exitOK, code, errs)
	require.Equal(t, []string{`POST /cache/checksums {"block_ids":[1,2,3,4],"chunk_size":2,"instance_id":777,"layerwise":false}`}, *asked)
	require.JSONEq(t, `{"title":"KV Cache Checksums","metrics":{"status":"success","chunk_size":2,"num_chunks":2,"checksums":[{"chunk":0,"md5":"aa"},{"chunk":1,"md5":"bb"}]}}`, out)

	url, _ = respond(t, map[string]string{"POST /cache/checksums": `{"status":"success","chunk_size":1,"num_chunks":1,"chunk_checksums":{"layer_0":["aa"],"layer_1":["bb"]},"layerwise":true}`})
	_, out, _ = ask(t, url, "kvcache", "checksum", "--instance-id", "777", "--block-ids", "5", "--layerwise")
	require.Contains(t, out, "0      0  aa")
	require.Contains(t, out, "1      0  bb")
}

func TestQuotaPaths(t *testing.T) {
	url, asked := respond(t, nil)
	for _, salt := range []string{"", "a b/c", "-1"} {
		_, _, _ = ask(t, url, "quota", "get", salt)
	}
	require.Equal(t, []string{"GET /quota/_default", "GET /quota/a%20b%2Fc", "GET /quota/-1"}, *asked)
}

func TestDescribeModels(t *testing.T) {
	status, err := os.ReadFile("testdata/status_lmcache_driven.json")
	require.NoError(t, err)
	url, _ := respond(t, map[string]string{"GET /status": string(status)})
	code, out, errs := ask(t, url, "describe", "kvcache")
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{
		"---------- Model: test/model-ld -----------", `GPU IDs: +777`, `Cache size per token \(bytes\): +1024`,
		`- Kernel group 0 \(test/model-ld\) -`, `MLA: +False`, `Engine KV shape: +NL x \[2, NB, NH, BS, HS\]`,
	} {
		require.Regexp(t, want, out)
	}
	_, out, _ = ask(t, url, "describe", "kvcache", "--json")
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	metrics := got["metrics"].(map[string]any)
	require.Equal(t, []string{"active_sessions", "cached_objects", "chunk_size", "engine_type", "eviction_policy", "health", "kernel_groups", "l1_capacity_gb", "l1_used_gb", "models", "url"}, slices.Sorted(maps.Keys(metrics)))
	require.Equal(t, "777", metrics["models"].([]any)[0].(map[string]any)["gpu_ids"])

	// An adapter of the reference.
	url, _ = respond(t, map[string]string{"GET /status": `{"is_healthy":false,"storage_manager":{"l2_adapters":[{"type":"FSL2Adapter","is_healthy":true,"base_path":"x","max_capacity_bytes":2048,"current_size_bytes":1024,"pool_size":4,"pool_free_slots":1}]}}`})
	_, out, _ = ask(t, url, "describe", "kvcache")
	for _, want := range []string{`Health: +UNHEALTHY`, `L1 used \(GB\): +N/A`, `- L2: FSL2Adapter -`, `Used: +1.00 KB / 2.00 KB \(50.0%\)`, `Pool used: +3 / 4 \(75.0%\)`} {
		require.Regexp(t, want, out)
	}
}

func TestDescribeEngine(t *testing.T) {
	url, _ := respond(t, map[string]string{
		"GET /v1/models": `{"data":[{"id":"llama","max_model_len":8192}]}`,
		"GET /health":    ``,
		"GET /metrics":   "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"a b\"} 2.0\nvllm:num_requests_running{model_name=\"c\"} 1.0\nother 7\n",
	})
	code, out, errs := ask(t, url, "describe", "engine")
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{`Model: +llama`, `Max context \(tokens\): +8192`, `Status: +OK`, `Running requests: +3`} {
		require.Regexp(t, want, out)
	}
	code, _, _ = ask(t, url, "ping", "engine")
	require.Equal(t, exitOK, code)
}

func TestStatusOfTheReference(t *testing.T) {
	status, err := os.ReadFile("testdata/status_lmcache_driven.json")
	require.NoError(t, err)
	url, _ := respond(t, map[string]string{"GET /status": string(status)})
	code, out, errs := ask(t, url, "status")
	require.Equal(t, exitOK, code, errs)
	for _, want := range []string{`Health: +OK`, `Used: +5.00 MB of 10.24 MB`, `Objects: +20`, `777 +test/model-ld +1`, `4242 +test/model +1`} {
		require.Regexp(t, want, out)
	}
	_, out, _ = ask(t, url, "status", "--json")
	require.JSONEq(t, string(status), out)
}

func TestStatusOfGPUs(t *testing.T) {
	url, _ := respond(t, map[string]string{"GET /status": `{"is_healthy":true,"lmcache_go":{"gpus":[
		{"uuid":"a-1","device":"cuda:0","name":"NVIDIA H200","memory_bytes":150323855360,"used_bytes":1073741824,"workers":2,"mapped_bytes":2147483648,"pending_copies":3,"quarantined_workers":1},
		{"uuid":"b-2","device":"","name":"NVIDIA H200","memory_bytes":150323855360,"used_bytes":-1,"workers":0,"mapped_bytes":0,"pending_copies":0,"quarantined_workers":0}]}}`})
	code, out, errs := ask(t, url, "status")
	require.Equal(t, exitOK, code, errs)
	require.Regexp(t, `a-1 +cuda:0 +NVIDIA H200 +1.00 GB +140.00 GB +2 +2.00 GB +3 +1\n`, out)
	require.Regexp(t, `b-2 +NVIDIA H200 +N/A +140.00 GB +0 +0 B +0 +0\n`, out)
	url, _ = respond(t, map[string]string{"GET /status": `{"is_healthy":true,"lmcache_go":{"gpus":[],"gpus_unknown":"no driver"}}`})
	_, out, _ = ask(t, url, "status")
	require.NotContains(t, out, "GPU")
}

func TestVersionOfAServer(t *testing.T) {
	url, _ := respond(t, map[string]string{"GET /version": `"0.5.6-g3e11e108"`})
	code, out, _ := ask(t, url, "version")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "server 0.5.6-g3e11e108\n")
	_, out, _ = ask(t, url, "version", "--json")
	require.Contains(t, out, `"server": "0.5.6-g3e11e108"`)
}

func TestToolTimeout(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ctx.Done() }))
	defer srv.Close()
	defer cancel()
	code, out, errs := ask(t, srv.URL, "ping", "kvcache", "--timeout-seconds", "0.05")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, out, "FAIL")
	require.Contains(t, errs, "timed out")
}
