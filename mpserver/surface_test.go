package mpserver

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// request is one HTTP request to s.
func ask(t *testing.T, s *Server, method, path, body string) (status int, header http.Header, answer string) {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.HTTPAddr()+path, r)
	require.NoError(t, err)
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header, string(data)
}

// get is a GET that must be answered 200 with JSON.
func get(t *testing.T, s *Server, path string) map[string]any {
	t.Helper()
	status, _, body := ask(t, s, "GET", path, "")
	require.Equal(t, 200, status, body)
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &out))
	return out
}

// shmName is a segment of this test's own.
func shmName(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("test-%d-%s", os.Getpid(), t.Name())
}

// hashesOf is the chunk hashes of a prompt as keys write them.
func hashesOf(t *testing.T, s *Server, tokens []uint32) []string {
	t.Helper()
	p, _, err := s.hasher.Prompt(wire.AppendTokens(nil, tokens), len(tokens))
	require.NoError(t, err)
	out := make([]string, 0, len(p.Chunks()))
	for _, h := range p.Chunks() {
		out = append(out, hex.EncodeToString(h[:]))
	}
	return out
}

// exchange is one recorded request of the reference, and its answer.
type exchange struct {
	Request struct {
		Method, Path string
		Body         json.RawMessage
		RawBody      string `json:"raw_body"`
	}
	Status      int
	ContentType string `json:"content_type"`
	Allow       string
	Body        json.RawMessage
	Note        string
}

// differences are the requests that are answered otherwise on purpose.
var differences = map[string]string{
	"GET /version":                "our version",
	"GET /lmc_version":            "our version",
	"GET /commit_id":              "our commit",
	"POST /run_script":            "not offered: 404 in JSON like every unknown path",
	"GET /cache/objects?tier=l1":  "L1 is listed",
	"GET /quota/tenantA current":  "usage is of L1",
	"POST /cache/prefetches body": "request ids are random",
}

// TestExchanges replays every recorded exchange, in order, against a server in
// the state that the reference was in.
func TestExchanges(t *testing.T) {
	s := startServer(t, func(o *Options) {
		o.HTTPPort, o.ChunkSize, o.L1.ShmName = 0, 256, shmName(t)
		o.L1.SizeBytes = 10737418
	})
	data, err := os.ReadFile("httpapi/testdata/exchanges.json")
	require.NoError(t, err)
	p := connect(t, s)
	c := wire.EngineDrivenContext{InstanceID: 4242, Model: testModel, WorldSize: 1, BlockSize: 16, NumLayers: 4, HiddenDim: 64, DType: "bfloat16"}
	_, refused := p.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &c))
	require.False(t, refused)
	tokens := prompt(1, 1024)
	k := keyOf("r", tokens)
	k.End = 1024
	require.Len(t, p.prepareStore(k, 4242).Slots, 4)
	require.True(t, p.commitStore(k, 4242))
	first := k
	first.RequestID, first.End = "held", 256
	require.Equal(t, 1, p.lookup(first))

	// The hashes of the recording stand for ours.
	ours := hashesOf(t, s, tokens)
	names := []string{}
	for i, h := range []string{
		"e9984c4139f91d406d95c164a9b928be9d044644c102b759ad9111867d442909",
		"55110123254d0e377b1d7be2e915c8f163b49c32028260824201e657e2d527e1",
		"4aed55f89c834250ae5342e621bc9940e7611d46fc9ad40fdac0c846d5d88f17",
		"2e6a1c26acfbca4e8fa0267878be7a4dc4f614979631ce6876cd912891df7deb",
	} {
		names = append(names, h, ours[i])
	}
	var exchanges []exchange
	require.NoError(t, json.Unmarshal(bytes.NewBufferString(strings.NewReplacer(names...).Replace(string(data))).Bytes(), &exchanges))
	id, stored := "", false
	for _, e := range exchanges {
		path, body := e.Request.Path, string(e.Request.Body)
		switch {
		case e.Request.RawBody != "":
			body = e.Request.RawBody
		case strings.HasPrefix(body, `"10001 keys`):
			body = `{"tier":"l1","keys":[` + strings.TrimSuffix(strings.Repeat(`{"chunk_hash_hex":"00","model_name":"m","kv_rank":1},`, 10001), ",") + `]}`
		case strings.HasPrefix(body, `"512 token ids`):
			// Both resident in L1, says the recording: what was deleted above is stored again.
			require.False(t, stored)
			again := keyOf("again", tokens)
			again.End = 512
			require.Len(t, p.prepareStore(again, 4242).Slots, 2)
			require.True(t, p.commitStore(again, 4242))
			text, err := json.Marshal(map[string]any{"model_name": testModel, "world_size": 1, "token_ids": tokens[:512]})
			require.NoError(t, err)
			body, stored = string(text), true
		case strings.HasPrefix(path, "/cache/prefetches/"):
			path = "/cache/prefetches/" + id
			e.Body = bytes.ReplaceAll(e.Body, []byte("c691da37c1ed47fa8bf9f6436897b0b7"), []byte(id))
		}
		what := e.Request.Method + " " + e.Request.Path
		status, header, got := ask(t, s, e.Request.Method, path, body)
		if what == "GET /cache/objects?tier=l1" {
			require.Equal(t, 200, status)
			require.Contains(t, got, ours[3])
			continue
		}
		require.Equal(t, e.Status, status, what+" "+e.Note)
		require.Equal(t, e.Allow, header.Get("Allow"), what)
		if _, different := differences[what]; different {
			continue
		}
		if e.ContentType != "" {
			require.Equal(t, e.ContentType, header.Get("Content-Type"), what)
		}
		if header.Get("Content-Type") != "application/json" {
			require.JSONEq(t, string(e.Body), fmt.Sprintf("%q", got), what)
			continue
		}
		if status == 202 && strings.Contains(got, "request_id") {
			var a struct {
				ID string `json:"request_id"`
			}
			require.NoError(t, json.Unmarshal([]byte(got), &a))
			id = a.ID
			require.Len(t, id, 32)
			e.Body = bytes.ReplaceAll(e.Body, []byte("c691da37c1ed47fa8bf9f6436897b0b7"), []byte(id))
		}
		require.JSONEq(t, string(e.Body), got, what+" "+e.Note)
	}
	require.True(t, stored)
}

// paths lists every key path of a JSON tree with its type.
func paths(at string, v any, out map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		out[at] = "object"
		for k, x := range v {
			paths(at+"."+k, x, out)
		}
	case []any:
		out[at] = "list"
		for i, x := range v {
			paths(fmt.Sprintf("%s[%d]", at, i), x, out)
		}
	case json.Number:
		out[at] = "int"
		if strings.ContainsAny(v.String(), ".e") {
			out[at] = "float"
		}
	case nil:
		out[at] = "null"
	default:
		out[at] = fmt.Sprintf("%T", v)
	}
}

func pathsOf(t *testing.T, data []byte) map[string]string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	out := map[string]string{}
	paths("", v, out)
	return out
}

// TestConfigHasTheReferencesTree: same keys, same types, both ways.
func TestConfigHasTheReferencesTree(t *testing.T) {
	s := startServer(t, func(o *Options) {
		o.HTTPPort, o.InstanceID = 0, "prefiller"
		o.Shown = map[string]any{"mp.max_workers": int64(8), "storage_manager.prefetch_max_in_flight": int64(3), "observability.extra_logging_interval": 7.0, "no.such": 1}
	})
	golden, err := os.ReadFile("httpapi/testdata/config.json")
	require.NoError(t, err)
	status, header, body := ask(t, s, "GET", "/config", "")
	require.Equal(t, 200, status)
	require.Equal(t, "application/json", header.Get("Content-Type"))
	require.True(t, strings.HasPrefix(body, "{\n  \"mp\": {\n    \"transport\": \"zmq\",\n"), body)
	require.Equal(t, pathsOf(t, golden), pathsOf(t, []byte(body)))
	var got struct {
		MP struct {
			Port       int
			ChunkSize  int    `json:"chunk_size"`
			MaxWorkers int    `json:"max_workers"`
			Instance   string `json:"instance_id"`
		}
		HTTP struct {
			HTTPPort int `json:"http_port"`
		}
		Observability struct {
			Interval float64 `json:"extra_logging_interval"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(body), &got))
	require.Equal(t, testChunk, got.MP.ChunkSize)
	require.Equal(t, s.Addr(), fmt.Sprintf("tcp://127.0.0.1:%d", got.MP.Port))
	require.Equal(t, s.HTTPAddr(), fmt.Sprintf("127.0.0.1:%d", got.HTTP.HTTPPort))
	require.Equal(t, 8, got.MP.MaxWorkers)
	require.Equal(t, 7.0, got.Observability.Interval)
	require.Equal(t, 3, s.Status().StorageManager.PrefetchController.MaxInFlight, "the status tells it as well")
}

// TestStatusAgainstGoldens: a server in the recorded state tells every path of
// the recording with its type, and nothing else but our own two nodes.
func TestStatusAgainstGoldens(t *testing.T) {
	f := func(golden string, mode TransferMode, change func(*Options), prepare func(*Server, *peer), only func(path string) bool) {
		t.Helper()
		s := startServer(t, func(o *Options) {
			o.HTTPPort, o.TransferMode, o.L1.SizeBytes = 0, mode, 10737418
			if change != nil {
				change(o)
			}
		})
		if prepare != nil {
			prepare(s, connect(t, s))
		}
		want, err := os.ReadFile("httpapi/testdata/" + golden)
		require.NoError(t, err)
		_, _, body := ask(t, s, "GET", "/status", "")
		w, g := pathsOf(t, want), pathsOf(t, []byte(body))
		maps.DeleteFunc(g, func(path, _ string) bool {
			return strings.HasPrefix(path, ".lmcache_go") || strings.HasPrefix(path, ".storage_manager.eviction_controller")
		})
		if only != nil {
			maps.DeleteFunc(w, func(p, _ string) bool { return !only(p) })
			maps.DeleteFunc(g, func(p, _ string) bool { return !only(p) })
		}
		require.Equal(t, w, g, golden)
	}
	register := func(s *Server, p *peer) {
		p.register(4242)
		p.store(s, keyOf("r", prompt(1, 8*testChunk)), 4242, prompt(1, 8*testChunk))
	}
	f("status_empty.json", TransferLMCacheDriven, nil, nil, nil)
	f("status_loaded.json", TransferAuto, func(o *Options) { o.L1.ShmName = shmName(t) + "1" }, register, nil)
	f("status_locked.json", TransferAuto, func(o *Options) { o.L1.ShmName = shmName(t) + "2" }, func(s *Server, p *peer) {
		register(s, p)
		require.Equal(t, 8, p.lookup(keyOf("r2", prompt(1, 8*testChunk))))
		require.Equal(t, int64(8), s.cache.Stats().Leased)
	}, nil)
	f("status_engine_driven_shm.json", TransferEngineDriven, func(o *Options) { o.L1.ShmName = shmName(t) + "3" }, register, nil)
}

func TestQuotaOverHTTP(t *testing.T) {
	s := startServer(t, func(o *Options) { o.HTTPPort, o.L1.ShmName = 0, shmName(t) })
	p := connect(t, s)
	p.register(4242)
	tokens := prompt(1, 4*testChunk)
	k := keyOf("r", tokens)
	k.Salt = "tenantA"
	p.store(s, k, 4242, tokens)
	q := get(t, s, "/quota/tenantA")
	require.Equal(t, map[string]any{"cache_salt": "tenantA", "limit_gb": 0.0, "current_usage_gb": 4 * 4096 / float64(1<<30), "exists": false}, q, "L1 counts here")
	status, _, _ := ask(t, s, "PUT", "/quota/tenantA", `{"limit_gb":2}`)
	require.Equal(t, 200, status)
	users := get(t, s, "/quota")["users"].(map[string]any)
	require.Equal(t, []string{"tenantA"}, slices.Collect(maps.Keys(users)))
	require.InDelta(t, 4*4096/float64(1<<30), users["tenantA"].(map[string]any)["current_usage_gb"], 1e-12)

	var full quotas
	for i := range maxQuotas {
		require.NoError(t, full.set(fmt.Sprint(i), 1))
	}
	require.ErrorContains(t, full.set("one more", 1), "delete some")
	require.NoError(t, full.set("7", 2), "one that is there may change")
}

// TestLastErrors: /status tells what went wrong last, how often, and what to do.
func TestLastErrors(t *testing.T) {
	s := startServer(t, func(o *Options) { o.HTTPPort, o.L1.ShmName, o.L1.SizeBytes = 0, shmName(t), 8192 })
	require.Empty(t, get(t, s, "/status")["lmcache_go"].(map[string]any)["last_errors"])
	p := connect(t, s)
	p.register(4242)
	tokens := prompt(1, 4*testChunk)
	require.False(t, p.prepareStore(keyOf("r", tokens), 4242).Present, "four chunks do not fit")
	require.False(t, p.commitStore(keyOf("r", tokens), 99))
	require.False(t, p.commitStore(keyOf("r", tokens), 99))
	bad := wire.EngineDrivenContext{InstanceID: 5, Model: testModel, WorldSize: 1, BlockSize: 16, NumLayers: 1, HiddenDim: 64, DType: "float3"}
	_, refused := p.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &bad))
	require.True(t, refused)

	byKind := map[string]map[string]any{}
	last := -1.0
	for _, e := range get(t, s, "/status")["lmcache_go"].(map[string]any)["last_errors"].([]any) {
		e := e.(map[string]any)
		byKind[e["op"].(string)+" "+e["reason"].(string)] = e
		require.GreaterOrEqual(t, e["age_seconds"], last, "newest first")
		last = e["age_seconds"].(float64)
		require.NotEmpty(t, e["message"])
		require.NotEmpty(t, e["remedy"])
	}
	require.Len(t, byKind, 3)
	require.Contains(t, byKind["prepare_store too_large"]["message"], "4 objects of", "the store's own words")
	require.Contains(t, byKind["prepare_store too_large"]["remedy"], "--l1-size-gb")
	require.Equal(t, 2.0, byKind["commit_store unknown_instance"]["count"])
	require.Contains(t, byKind["register_kv_cache_engine_driven_context registration"]["message"], "float3")
}

// TestEveryReasonHasARemedy: GET /status must not tell of a failure without
// saying what to do.
func TestEveryReasonHasARemedy(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	literal := regexp.MustCompile(`(?:\bfailed\(r, |\bbecause\(|\brefuseInOrder\(r, [^"\n]*)"([a-z_]+)"`)
	function := regexp.MustCompile(`(?s)\nfunc \w*[rR]eason\(.*?\n}`)
	returned := regexp.MustCompile(`return "([a-z_]+)"`)
	n := 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		found := literal.FindAllSubmatch(text, -1)
		for _, body := range function.FindAll(text, -1) {
			found = append(found, returned.FindAllSubmatch(body, -1)...)
		}
		for _, m := range found {
			n++
			require.NotEmpty(t, remedies[string(m[1])].remedy, "%s: %s", f, m[1])
			require.NotEmpty(t, remedies[string(m[1])].meaning, "%s: %s", f, m[1])
		}
	}
	require.Greater(t, n, 50, "the reasons are found")
}

func TestFailureLogIsBounded(t *testing.T) {
	var f failureLog
	now := time.Unix(1000, 0)
	for i := range 2 * maxFailures {
		f.note(fmt.Sprint(i), "x", now.Add(time.Duration(i)*time.Second))
	}
	f.explain("127", "x", fmt.Errorf("%s", strings.Repeat("y", 10000)))
	f.explain("127", "never counted", io.EOF)
	list := f.list(now.Add(200 * time.Second))
	require.Len(t, list, maxFailures-1)
	require.Equal(t, "127", list[0].Op)
	require.LessOrEqual(t, len(list[0].Message), maxFailureBytes+len("…"))
}

func TestPeriodicThreadsOverHTTP(t *testing.T) {
	s := startServer(t, withHTTP)
	require.Eventually(t, func() bool {
		return get(t, s, "/periodic-threads-health")["healthy"] == true
	}, 5*time.Second, 10*time.Millisecond)
	require.Len(t, get(t, s, "/periodic-threads")["threads"], 3)
	require.Equal(t, "critical", get(t, s, "/periodic-threads/request-loop-probe")["level"])
}

func TestLogLevelOverHTTP(t *testing.T) {
	level := new(slog.LevelVar)
	s := startServer(t, func(o *Options) { o.HTTPPort, o.LogLevel = 0, level })
	status, _, _ := ask(t, s, "GET", "/loglevel?logger_name=lmcache&level=DEBUG", "")
	require.Equal(t, 200, status)
	require.Equal(t, slog.LevelDebug, level.Level())
}

func TestPrefetchOverHTTP(t *testing.T) {
	s := startServer(t, func(o *Options) { o.HTTPPort, o.L1.ShmName = 0, shmName(t) })
	p := connect(t, s)
	p.register(4242)
	tokens := prompt(1, 4*testChunk)
	k := keyOf("r", tokens)
	k.End = 2 * testChunk
	p.store(s, k, 4242, tokens)
	body := func(tokens any) string {
		text, err := json.Marshal(map[string]any{"model_name": testModel, "world_size": 1, "token_ids": tokens})
		require.NoError(t, err)
		return string(text)
	}
	status, _, text := ask(t, s, "POST", "/cache/prefetches", body(tokens))
	require.Equal(t, 202, status)
	var a struct {
		ID     string `json:"request_id"`
		Chunks int
	}
	require.NoError(t, json.Unmarshal([]byte(text), &a))
	require.Equal(t, 4, a.Chunks)
	got := get(t, s, "/cache/prefetches/"+a.ID)
	require.Equal(t, []any{2.0, 4.0}, []any{got["found_keys"], got["total_keys"]})
	require.Zero(t, s.cache.Stats().Leased)

	big := make([]int64, testChunk)
	big[3] = 1 << 32
	status, _, text = ask(t, s, "POST", "/cache/prefetches", body(big))
	require.Equal(t, 400, status)
	require.Contains(t, text, "token_ids[3]")
	status, _, text = ask(t, s, "POST", "/cache/prefetches", body(make([]int, 1_000_001)))
	require.Equal(t, 400, status)
	require.Contains(t, text, "too many token_ids in a single request (limit=1000000, got=1000001)")
}
