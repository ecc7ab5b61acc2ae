package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func do(h http.Handler, method, target, body string, header ...string) *http.Response {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	return string(data)
}

func TestRoutes(t *testing.T) {
	h := NewHandler(&fake{}, Options{Version: "v1.2.3", Commit: "gabc"})
	f := func(method, target string, status int, contentType, body string) {
		t.Helper()
		r := do(h, method, target, "")
		got := text(t, r)
		if r.StatusCode != status || r.Header.Get("Content-Type") != contentType || got != body {
			t.Errorf("%s %s: got %d %q %s, want %d %q %s", method, target, r.StatusCode, r.Header.Get("Content-Type"), got, status, contentType, body)
		}
	}
	const j, p = "application/json", "text/plain; charset=utf-8"
	f("GET", "/", 200, j, `{"status":"ok","service":"LMCache HTTP API"}`)
	f("GET", "/healthcheck", 200, j, `{"status":"healthy"}`)
	f("GET", "/healthcheck?verbose=1", 200, j, `{"status":"healthy"}`)
	f("GET", "/version", 200, j, `"v1.2.3-gabc"`)
	f("GET", "/lmc_version", 200, j, `"v1.2.3"`)
	f("GET", "/commit_id", 200, j, `"gabc"`)
	f("GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8", "lmcache_go_healthy 1\n")
	f("POST", "/metrics/reset", 200, p, "ok")
	f("GET", "/config/adapters", 200, j, `{"adapters":[]}`)
	f("GET", "/cache/objects?page_size=5000", 503, j, `{"detail":"no L2 adapters configured"}`)
	f("GET", "/cache/objects?tier=l1&page_token=x", 400, j, `{"detail":"page_token 'x' was not issued by this server"}`)
	f("GET", "/cache/objects?tier=all", 400, j, `{"detail":"tier 'all' not supported; only 'l2'"}`)
	f("GET", "/reconfigure/a&b/l2/status", 200, j, `{"enabled":false,"backend":"a&b","num_adapters":0,"adapters":[]}`)
	f("POST", "/cache/clear", 200, j, `{"status":"ok","cleared":{"tier":"l1"}}`)
	f("GET", "/nosuch", 404, j, `{"detail":"Not Found"}`)
	f("GET", "//status", 404, j, `{"detail":"Not Found"}`)
	f("GET", "/nosuch/", 404, j, `{"detail":"Not Found"}`)
	f("POST", "/status", 405, j, `{"detail":"Method Not Allowed"}`)
	f("GET", "/cache/clear", 405, j, `{"detail":"Method Not Allowed"}`)
	f("HEAD", "/healthcheck", 405, j, `{"detail":"Method Not Allowed"}`)
	f("OPTIONS", "/status", 405, j, `{"detail":"Method Not Allowed"}`)
	// Not offered at all: these hand out the environment and run code.
	f("GET", "/env", 404, j, `{"detail":"Not Found"}`)
	f("POST", "/run_script", 404, j, `{"detail":"Not Found"}`)

	require.Equal(t, "GET", do(h, "POST", "/status", "").Header.Get("Allow"))
	require.Equal(t, "POST", do(h, "HEAD", "/cache/clear", "").Header.Get("Allow"))
}

func TestStatusIsCompact(t *testing.T) {
	r := do(NewHandler(&fake{}, Options{}), "GET", "/status", "")
	body := text(t, r)
	require.Equal(t, 200, r.StatusCode)
	require.NotContains(t, body, "\n")
	require.NotContains(t, body, `": `)
	require.Contains(t, body, `"total_object_count":0`)
	require.Equal(t, fmt.Sprint(len(body)), r.Header.Get("Content-Length"))
}

func TestUnhealthy(t *testing.T) {
	h := NewHandler(&fake{sick: "request loop has not answered for 5s"}, Options{})
	r := do(h, "GET", "/healthcheck", "")
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, `{"status":"unhealthy","reason":"request loop has not answered for 5s"}`, text(t, r))
}

func TestTrailingSlash(t *testing.T) {
	h := NewHandler(&fake{}, Options{})
	f := func(method, target, location string) {
		t.Helper()
		r := do(h, method, target, "")
		if r.StatusCode != 307 || r.Header.Get("Location") != location {
			t.Errorf("%s %s: got %d %q, want 307 %q", method, target, r.StatusCode, r.Header.Get("Location"), location)
		}
	}
	f("GET", "/status/", "/status")
	f("GET", "/status///", "/status")
	f("GET", "/status/?a=b", "/status?a=b")
	f("POST", "/cache/clear/", "/cache/clear")
	// A path that is somebody's host name leads nowhere.
	require.Equal(t, 404, do(h, "GET", "//example.com/", "").StatusCode)
	require.Equal(t, 404, do(h, "GET", "//example.com/status/", "").StatusCode)
}

func TestClear(t *testing.T) {
	f := func(body string, status int, want string, clears ...bool) {
		t.Helper()
		s := &fake{}
		r := do(NewHandler(s, Options{}), "POST", "/cache/clear", body)
		got := text(t, r)
		if r.StatusCode != status || !strings.Contains(got, want) {
			t.Errorf("%s: got %d %s, want %d %s", body, r.StatusCode, got, status, want)
		}
		require.Equal(t, clears, s.clears, body)
	}
	ok := `{"status":"ok","cleared":{"tier":"l1"}}`
	f(``, 200, ok, false)
	f(` `, 200, ok, false)
	f(`null`, 200, ok, false)
	f(`{}`, 200, ok, false)
	f(`{"tier":"l1","force":true}`, 200, ok, true)
	f(`{"force":"Yes","else":[1]}`, 200, ok, true)
	f(`{"force":"0"}`, 200, ok, false)
	f(`{"force":1}`, 200, ok, true)
	f(`{"tier":"l2"}`, 400, `{"detail":"tier 'l2' not supported; only 'l1'"}`)
	f(`{"tier":"all","force":true}`, 400, `{"detail":"tier 'all' not supported; only 'l1'"}`)
	f(`{"tier":"x"}`, 422, `{"detail":[{"type":"enum","loc":["body","tier"],"msg":"Input should be 'l1', 'l2' or 'all'","input":"x","ctx":{"expected":"'l1', 'l2' or 'all'"}}]}`)
	f(`{"tier":null}`, 422, `"loc":["body","tier"]`)
	f(`{"force":"maybe"}`, 422, `{"detail":[{"type":"bool_parsing","loc":["body","force"],"msg":"Input should be a valid boolean, unable to interpret input","input":"maybe"}]}`)
	f(`{"force":2}`, 422, `"type":"bool_parsing"`)
	f(`{"force":null}`, 422, `"type":"bool_type"`)
	f(`{"force":"maybe","tier":"x"}`, 422, `"loc":["body","force"]`) // both problems, not the first
	f(`{"force":"maybe","tier":"x"}`, 422, `"loc":["body","tier"]`)
	f(`x`, 422, `"type":"json_invalid","loc":["body",0]`)
	f(`{}x`, 422, `"type":"json_invalid","loc":["body",2]`)
	f(`{"tier":"l1",}`, 422, `"type":"json_invalid","loc":["body",13]`)
	f(`{`, 422, `"type":"json_invalid","loc":["body",1]`)
	f(`{"force":true} x`, 422, `"type":"json_invalid"`)
	f(`[]`, 422, `"type":"dataclass_type","loc":["body"]`)
	f(`"l1"`, 422, `"type":"dataclass_type"`)
	f(strings.Repeat("[", 20000), 422, `"type":"json_invalid"`)
	f(`{"tier":"`+strings.Repeat("x", 2<<20)+`"}`, 413, `{"detail":"request body is larger than 1048576 bytes"}`)
}

// TestExchanges replays what was recorded from the reference, as far as the
// routes exist here; the list of routes to come can only shrink.
func TestExchanges(t *testing.T) {
	data, err := os.ReadFile("testdata/exchanges.json")
	require.NoError(t, err)
	var exchanges []struct {
		Request struct {
			Method, Path string
			Body         json.RawMessage
			RawBody      string `json:"raw_body"`
		}
		Status      int
		ContentType string `json:"content_type"`
		Allow       string
		Body        json.RawMessage
	}
	require.NoError(t, json.Unmarshal(data, &exchanges))
	h := NewHandler(recordedServer(), Options{Version: "0.5.6", Commit: "g3e11e108"})
	replayed := 0
	for _, e := range exchanges {
		what := e.Request.Method + " " + e.Request.Path
		if strings.Contains(what, " /cache/checksums") || what == "GET /cache/objects?tier=l1" {
			continue // the server's own; ours lists L1
		}
		body := string(e.Request.Body)
		switch {
		case e.Request.RawBody != "":
			body = e.Request.RawBody
		case strings.HasPrefix(body, `"10001 keys`):
			body = manyKeys(10001)
		case strings.HasPrefix(body, `"512 token ids`):
			body = `{"model_name":"test/model","world_size":1,"token_ids":[` + strings.TrimSuffix(strings.Repeat("1,", 512), ",") + `]}`
		}
		what += " " + body[:min(len(body), 200)]
		r := do(h, e.Request.Method, e.Request.Path, body)
		got := text(t, r)
		require.Equal(t, e.Status, r.StatusCode, what)
		replayed++
		if e.Request.Path == "/run_script" {
			continue // refused as every unknown path, in JSON
		}
		if e.ContentType != "" {
			require.Equal(t, e.ContentType, r.Header.Get("Content-Type"), what)
		}
		require.Equal(t, e.Allow, r.Header.Get("Allow"), what)
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
			require.JSONEq(t, string(e.Body), got, what)
		} else {
			require.JSONEq(t, string(e.Body), fmt.Sprintf("%q", got), what)
		}
	}
	require.GreaterOrEqual(t, replayed, 63)
}

func manyKeys(n int) string {
	key := `{"chunk_hash_hex":"00ff","model_name":"m","kv_rank":1},`
	return `{"tier":"l1","keys":[` + strings.TrimSuffix(strings.Repeat(key, n), ",") + `]}`
}

func TestPanicIsContained(t *testing.T) {
	var where string
	var log bytes.Buffer
	h := NewHandler(&fake{panics: true}, Options{
		OnPanic: func(w string) { where = w },
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
	})
	r := do(h, "GET", "/status", "")
	require.Equal(t, 500, r.StatusCode)
	require.Equal(t, "Internal Server Error", text(t, r))
	require.Equal(t, "http", where)
	require.Contains(t, log.String(), "broken invariant")
	require.Equal(t, 200, do(h, "GET", "/healthcheck", "").StatusCode)
}

// TestCrossSite: without authentication, a web page must not be able to clear
// the cache through the browser of somebody on this host.
func TestCrossSite(t *testing.T) {
	s := &fake{}
	h := NewHandler(s, Options{})
	r := do(h, "POST", "/cache/clear", "", "Sec-Fetch-Site", "cross-site")
	require.Equal(t, 403, r.StatusCode)
	require.Contains(t, text(t, r), `"detail"`)
	require.Equal(t, 403, do(h, "POST", "/cache/clear", "", "Origin", "https://example.org").StatusCode)
	require.Empty(t, s.clears)
	require.Equal(t, 200, do(h, "POST", "/cache/clear", "", "Sec-Fetch-Site", "same-origin").StatusCode)
}

// TestOverNetwork uses a real connection: the limits of NewServer hold, and a
// request of nonsense costs only itself.
func TestOverNetwork(t *testing.T) {
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = NewServer(NewHandler(&fake{}, Options{}), nil)
	srv.Start()
	defer srv.Close()
	require.NotZero(t, srv.Config.ReadHeaderTimeout)
	require.NotZero(t, srv.Config.ReadTimeout)
	require.NotZero(t, srv.Config.WriteTimeout)
	require.NotZero(t, srv.Config.IdleTimeout)

	get := func(path string, header string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+path, nil)
		require.NoError(t, err)
		if header != "" {
			req.Header.Set("X-Large", header)
		}
		r, err := srv.Client().Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
		}
		return r, err
	}
	r, err := get("/status", strings.Repeat("x", 200<<10))
	if err == nil { // or the connection is cut while the header is sent
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, r.StatusCode)
	}
	r, err = get("/status/", "")
	require.NoError(t, err)
	require.Equal(t, 200, r.StatusCode, "the redirect must be followed")
}

func FuzzRequest(f *testing.F) {
	f.Add("GET", "/status/", "")
	f.Add("POST", "/cache/clear", `{"tier":"l1","force":true}`)
	f.Add("POST", "/cache/clear", `{"tier":1e400,"force":"\ud800"}`)
	f.Add("PUT", "/quota/a%2Fb", `{"limit_gb":NaN}`)
	f.Add("GET", "//x/..//status", "")
	h := NewHandler(&fake{}, Options{})
	f.Fuzz(func(t *testing.T, method, path, body string) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
		if err != nil || r.URL.Host != "localhost" {
			t.Skip()
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code < 200 || w.Code >= 500 {
			t.Errorf("%s %q %q: %d", method, path, body, w.Code)
		}
		if loc := w.Header().Get("Location"); loc != "" && (!strings.HasPrefix(loc, "/") || strings.HasPrefix(loc, "//")) {
			t.Errorf("%q leads to %q", path, loc)
		}
		if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %q: invalid JSON %q", method, path, w.Body.Bytes())
		}
	})
}
