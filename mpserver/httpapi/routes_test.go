package httpapi

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// answers is the status and body of a request.
func answers(t *testing.T, s *fake) func(method, target, body string, status int, want string) {
	t.Helper()
	h := NewHandler(s, Options{})
	return func(method, target, body string, status int, want string) {
		t.Helper()
		r := do(h, method, target, body)
		if got := text(t, r); r.StatusCode != status || !strings.Contains(got, want) {
			t.Errorf("%s %s %.100s: got %d %.300s, want %d %s", method, target, body, r.StatusCode, got, status, want)
		}
	}
}

func TestConfigIsIndented(t *testing.T) {
	r := do(NewHandler(&fake{}, Options{}), "GET", "/config", "")
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
	require.Equal(t, "{\n  \"mp\": {\n    \"x\": 30.0\n  }\n}", text(t, r))
}

func TestDeleteObjects(t *testing.T) {
	f := answers(t, recordedServer())
	f("DELETE", "/cache/objects", `{"tier":"all","keys":[]}`, 503, "no L2 adapters configured")
	f("DELETE", "/cache/objects", `{"tier":"l1"}`, 422, `"loc":["body","keys"]`)
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":7}`, 422, `"type":"list_type"`)
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[7,null]}`, 422, `"loc":["body","keys",1]`)
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[{"model_name":1}]}`, 422, `"type":"missing","loc":["body","keys",0,"chunk_hash_hex"]`)
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[{"model_name":1}]}`, 422, `"type":"string_type","loc":["body","keys",0,"model_name"]`)
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[{"chunk_hash_hex":"abc","model_name":"m","kv_rank":"1"}]}`, 400, "keys[0]: non-hexadecimal number found in fromhex() arg at position 3")
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[{"chunk_hash_hex":"ab","model_name":"m","kv_rank":1.5}]}`, 422, `"loc":["body","keys",0,"kv_rank"]`)
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[{"chunk_hash_hex":"ab","model_name":"m","kv_rank":1,"cache_salt":"`+strings.Repeat("x", 129)+`"}]}`, 400, "cache_salt exceeds max length 128 (got 129)")
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[{"chunk_hash_hex":"ab","model_name":"m","kv_rank":1,"cache_salt":"a\\b"}]}`, 400, `frozenset({'\\\\'}) (got 'a\\\\b')`)
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[7]}`, 422, `"type":"dataclass_type","loc":["body","keys",0]`)
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[{"chunk_hash_hex":" ab cd ","model_name":"m","kv_rank":1}],"adapter":null}`, 200, `"ok":true`)
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[{"chunk_hash_hex":"a b","model_name":"m","kv_rank":1}]}`, 400, "fromhex() arg at position 1")
	f("DELETE", "/cache/objects", `{"tier":"l1","keys":[],"adapter":5}`, 422, `"type":"string_type","loc":["body","adapter"]`)
	f("DELETE", "/cache/objects", manyKeys(10000), 200, `{"deleted":0,"skipped":0,"ok":true}`)
	f("DELETE", "/cache/objects", `{"keys":"`+strings.Repeat("x", 33<<20)+`"}`, 413, "larger than")
}

func TestListL1(t *testing.T) {
	o := func(hash byte) Object {
		return Object{ObjectKey{ChunkHash: []byte{hash}, Model: "m", KVRank: 7, Salt: "s"}, 4096}
	}
	f := answers(t, &fake{pages: [][]Object{{o(1)}, {}, {o(2)}, {o(3)}}})
	one := `{"adapter":"l1","shared":false,"entries":[{"key":{"chunk_hash_hex":"%02d","model_name":"m","kv_rank":7,"object_group_id":0,"cache_salt":"s"},"size_bytes":4096}],"next_page_token":%s}`
	f("GET", "/cache/objects?tier=l1&page_size=1", "", 200, fmt.Sprintf(one, 1, `"1"`))
	f("GET", "/cache/objects?tier=l1&page_size=1&page_token=1", "", 200, fmt.Sprintf(one, 2, `"3"`))
	f("GET", "/cache/objects?tier=l1&page_size=1&page_token=3", "", 200, fmt.Sprintf(one, 3, `null`))
	f("GET", "/cache/objects?tier=l1", "", 200, `"next_page_token":null`)
	f("GET", "/cache/objects?tier=l1&page_token=99", "", 200, `"entries":[],"next_page_token":null`)
	f("GET", "/cache/objects?page_size=x", "", 422, `"type":"int_parsing"`)
	f("GET", "/cache/objects?page_size=%205.0", "", 503, "no L2 adapters configured")
	f("GET", "/cache/objects?page_size=0", "", 422, `"type":"greater_than_equal","loc":["query","page_size"]`)
	f("GET", "/cache/objects?page_size=5001", "", 422, `"type":"less_than_equal"`)
}

// TestReconfigure: whoever asks to change a tier that is not there hears of a
// mistake of his own first. Recorded from the reference.
func TestReconfigure(t *testing.T) {
	f := answers(t, &fake{})
	const noDevice, noSize = `{"error":"L1 is not Device-DAX backed (--l1-devdax-path not set)"}`, `{"error":"size must be a positive integer byte count or a string like '100GiB'"}`
	f("GET", "/reconfigure/dax/l1/status", "", 409, noDevice)
	f("GET", "/reconfigure/%20DAX/l2/status", "", 200, `{"enabled":false,"backend":"dax","num_adapters":0,"adapters":[]}`)
	f("GET", "/reconfigure/%20/l2/status", "", 400, `{"error":"backend must be non-empty"}`)
	add := func(body string, status int, want string) {
		t.Helper()
		f("POST", "/reconfigure/dax/l1/add", body, status, want)
	}
	for _, size := range []string{`1`, `"1"`, `"100GiB"`, `"1.5 tb"`, `" 7k "`} {
		add(`{"device_path":"/dev/dax0.0","size":`+size+`}`, 409, noDevice)
	}
	for _, size := range []string{`0`, `-1`, `"x"`, `"0"`, `"0.0GiB"`, `"1."`, `".5"`, `"-1"`, `""`, `"1 KiBs"`, `"1e3"`} {
		add(`{"device_path":"/dev/dax0.0","size":`+size+`}`, 400, noSize)
	}
	add(``, 422, `{"detail":[{"type":"missing","loc":["body"]`)
	add(`[]`, 422, `"type":"model_attributes_type","loc":["body"]`)
	add(`{}`, 422, `"type":"missing","loc":["body","device_path"]`)
	add(`{}`, 422, `"type":"missing","loc":["body","size"]`)
	add(`{"device_path":"x","size":1.5}`, 422, `"type":"int_type","loc":["body","size","int"]`)
	add(`{"device_path":"x","size":true}`, 422, `"type":"string_type","loc":["body","size","str"]`)
	add(`{"device_path":"x","size":1,"more":2}`, 422, `"type":"extra_forbidden","loc":["body","more"]`)
	f("POST", "/reconfigure/dax/l1/remove", `{"device_path":"x"}`, 409, noDevice)
	f("POST", "/reconfigure/dax/l1/remove", `{"device_path":"x","mode":"drain"}`, 409, noDevice)
	f("POST", "/reconfigure/dax/l1/remove", `{"device_path":"x","mode":"zz"}`, 422, `"type":"enum","loc":["body","mode"]`)

	f("POST", "/reconfigure/foo/l2/op", `{"any":1}`, 404, `{"error":"foo adapter not found"}`)
	f("POST", "/reconfigure/foo/l2/op", ``, 422, `"type":"missing","loc":["body"]`)
	f("POST", "/reconfigure/foo/l2/op", `[]`, 422, `"type":"dict_type","loc":["body"]`)
	f("POST", "/reconfigure/foo/l2/op", `{`, 422, `"type":"json_invalid","loc":["body",1]`)
	f("POST", "/reconfigure/foo/l2/op", `{"adapter_index":"x"}`, 422, `"type":"int_parsing","loc":["adapter_index"]`)
	f("POST", "/reconfigure/foo/l2/%20", `{}`, 400, `{"error":"operation must be non-empty"}`)
	f("POST", "/reconfigure/Dax/l2/op", `{"a":1}`, 400, `{"error":"unsupported dax reconfigure operation: op"}`)
	f("POST", "/reconfigure/dax/l2/add", `{}`, 422, `"type":"missing","loc":["device_path"]`)
	f("POST", "/reconfigure/dax/l2/add", `{"device_path":"x","size":"x"}`, 400, noSize)
	f("POST", "/reconfigure/dax/l2/Add", `{"device_path":"x","size":"1G","adapter_index":1}`, 404, `{"error":"dax adapter not found"}`)
	f("POST", "/reconfigure/dax/l2/add", `{"device_path":"x","size":1,"mode":"evict"}`, 422, `"type":"extra_forbidden","loc":["mode"]`)
	f("POST", "/reconfigure/dax/l2/remove", `{"device_path":"x","mode":"zz","force":"q"}`, 422, `"type":"literal_error","loc":["mode"]`)
	f("POST", "/reconfigure/dax/l2/remove", `{"device_path":"x","force":"q"}`, 422, `"type":"bool_parsing","loc":["force"]`)
	f("POST", "/reconfigure/dax/l2/resize", `{"device_path":"x","size":1,"mode":"drain"}`, 422, `"type":"literal_error","loc":["mode"]`)
	f("POST", "/reconfigure/dax/l2/resize", `{"device_path":"x","size":1,"mode":"evict","force":true}`, 404, `{"error":"dax adapter not found"}`)
}

func TestPrefetch(t *testing.T) {
	f := answers(t, &fake{})
	f("POST", "/cache/prefetches", ``, 422, `{"detail":[{"type":"missing","loc":["body"],"msg":"Field required","input":null}]}`)
	f("POST", "/cache/prefetches", `{"model_name":"it's","world_size":2,"token_ids":[]}`, 503, `no layout registered for model_name=\"it's\" world_size=2;`)
	f("POST", "/cache/prefetches", `{"model_name":"m","world_size":"x","token_ids":[1,"b",null]}`, 422, `"loc":["body","token_ids",2]`)
	f("POST", "/cache/prefetches", `{"model_name":"m","world_size":1,"token_ids":[],"target_tier":"l2"}`, 400, "unsupported prefetch direction 'l2'->'l2'")
	f("POST", "/cache/prefetches", `{"model_name":"m","world_size":1,"token_ids":[],"target_tier":7}`, 422, `"loc":["body","target_tier"]`)
	f("GET", "/cache/prefetches/nope", "", 404, "unknown prefetch request_id='nope'")
}

func TestQuota(t *testing.T) {
	f := answers(t, &fake{})
	f("PUT", "/quota/s", `{"limit_gb":"1e2"}`, 200, `{"cache_salt":"s","limit_gb":100.0,"status":"ok"}`)
	f("PUT", "/quota/s", `{"limit_gb":true}`, 200, `"limit_gb":1.0`)
	f("PUT", "/quota/s", `{"limit_gb":1e300}`, 200, `"limit_gb":1e+300`)
	f("GET", "/quota/s", ``, 200, `"exists":true`)
	f("PUT", "/quota/s", `{"limit_gb":-Infinity}`, 400, `{"error":"limit_gb must be finite"}`)
	f("PUT", "/quota/s", `{"limit_gb":"nan"}`, 400, `finite`)
	f("PUT", "/quota/s", `{"limit_gb":1e400}`, 400, `finite`)
	f("PUT", "/quota/s", `{"limit_gb":"0x10"}`, 400, `numeric`)
	f("PUT", "/quota/s", `{"limit_gb":null}`, 400, `numeric`)
	f("PUT", "/quota/s", `{"NaN":1}`, 400, `body must be`)
	f("PUT", "/quota/s", `[NaN]`, 400, `body must be`)
	f("PUT", "/quota/s", `{"a\"NaN":NaN`, 400, `invalid JSON body`)
	f("PUT", "/quota/s", ``, 400, `invalid JSON body`)
	f("PUT", "/quota/full", `{"limit_gb":1}`, 400, `{"error":"too many quotas"}`)
	f("POST", "/quota/s", ``, 405, `Method Not Allowed`)
	f("GET", "/quota/a%2Fb", ``, 404, `Not Found`)
	f("GET", "/quota/a%20b", ``, 200, `{"cache_salt":"a b","limit_gb":0.0,"current_usage_gb":0.0,"exists":false}`)
}

// TestPeriodicThreads compares keys and types with what was recorded.
func TestPeriodicThreads(t *testing.T) {
	now := time.Now()
	s := &fake{threads: []PeriodicThread{
		{Name: "high", Level: LevelHigh, Interval: time.Millisecond, Running: true, LastRun: now.Add(-2 * time.Minute), Runs: 4, Failed: 1},
		{Name: "fresh", Level: LevelMedium, Interval: time.Minute, Running: true, LastRun: now, LastMessage: "done", Runs: 1},
		{Name: "never", Level: LevelMedium, Interval: time.Minute},
	}}
	h := NewHandler(s, Options{})
	golden, err := os.ReadFile("testdata/periodic_threads.json")
	require.NoError(t, err)
	got := tree(t, []byte(text(t, do(h, "GET", "/periodic-threads?running_only=true", ""))))
	want, _ := tree(t, golden).(map[string]any)
	want["threads"] = want["threads"].([]any)[:2]
	for _, th := range want["threads"].([]any) {
		th.(map[string]any)["last_summary"].(map[string]any)["extra_info"] = map[string]any{}
	}
	require.Empty(t, missing("", want, got))
	require.Empty(t, missing("", got, want), "nothing that the reference has not")

	f := answers(t, s)
	f("GET", "/periodic-threads", "", 200, `"total_count":3,"running_count":2,"active_count":1`)
	f("GET", "/periodic-threads?level=HIGH&active_only=1", "", 200, `"threads":[]`)
	f("GET", "/periodic-threads?active_only=perhaps", "", 422, `"loc":["query","active_only"]`)
	f("GET", "/periodic-threads/never", "", 200, `"last_run_time":0.0,"last_run_ago":null,"total_runs":0,"failed_runs":0,"success_rate":null,"last_summary":null}`)
	f("GET", "/periodic-threads/high", "", 200, `"success_rate":75.0`)
	f("GET", "/periodic-threads-health", "", 200, `{"healthy":false,"unhealthy_count":1,"unhealthy_threads":[{"name":"high","level":"high","last_run_ago":1`)
}

func TestThreads(t *testing.T) {
	h := NewHandler(&fake{}, Options{})
	all := text(t, do(h, "GET", "/threads", ""))
	require.Contains(t, all, "goroutine ")
	require.Contains(t, all, "TestThreads")
	require.Contains(t, all, "=== Thread Summary ===\nTotal threads: ")
	require.Contains(t, text(t, do(h, "GET", "/threads?name=no+such+function", "")), "Total threads: 0")
	require.Contains(t, text(t, do(h, "GET", "/threads?name=testthreads", "")), "Total threads: 1")
	require.Contains(t, text(t, do(h, "GET", "/threads?thread_id=999999999", "")), "Total threads: 0")
}

func TestLogLevel(t *testing.T) {
	level := new(slog.LevelVar)
	h := NewHandler(&fake{}, Options{LogLevel: level})
	f := func(target string, status int, want string, header ...string) {
		t.Helper()
		r := do(h, "GET", target, "", header...)
		if got := text(t, r); r.StatusCode != status || !strings.Contains(got, want) {
			t.Errorf("%s: got %d %s, want %d %s", target, r.StatusCode, got, status, want)
		}
	}
	f("/loglevel", 200, "lmcache: INFO\n")
	f("/loglevel?logger_name=lmcache&level=debug", 200, "Set lmcache level to DEBUG")
	require.Equal(t, slog.LevelDebug, level.Level())
	f("/loglevel?logger_name=x", 200, "x: DEBUG")
	f("/loglevel?logger_name=x&level=critical", 200, "CRITICAL")
	f("/loglevel", 200, "lmcache: CRITICAL")
	f("/loglevel?logger_name=x&level=info", 403, "another site", "Sec-Fetch-Site", "cross-site")
	require.Equal(t, slog.LevelError+4, level.Level())
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"a": `'a'`, "it's": `"it's"`, `"'`: `'"\''`, "\\\n": `'\\\n'`} {
		require.Equal(t, want, quote(in))
	}
}
