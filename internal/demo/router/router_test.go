package router

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type captured struct {
	Path    string
	Headers [][2]string
	Body    string
}

type capture struct {
	Name     string
	Path     string
	Headers  map[string]string
	Body     json.RawMessage
	Prefill  []captured
	Decode   []captured
	Status   int
	Response string
}

func captures(t *testing.T) []capture {
	t.Helper()
	data, err := os.ReadFile("testdata/capture.json")
	require.NoError(t, err)
	var f struct{ Cases []capture }
	require.NoError(t, json.Unmarshal(data, &f))
	require.NotEmpty(t, f.Cases)
	return f.Cases
}

// engine answers like the fake engines of the capture, and keeps the bytes that
// it was sent.
type engine struct {
	l   net.Listener
	wg  sync.WaitGroup
	mu  sync.Mutex
	got []string // guarded by mu
	say string
}

func startEngine(t *testing.T, say string) *engine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e := &engine{l: l, say: say}
	e.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.wg.Go(func() { e.serve(c) })
		}
	})
	t.Cleanup(func() { require.NoError(t, l.Close()); e.wg.Wait() })
	return e
}

func (e *engine) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	var head strings.Builder
	n := 0
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		head.WriteString(line)
		if v, ok := strings.CutPrefix(line, "content-length: "); ok {
			_, _ = fmt.Sscan(v, &n)
		}
		if line == "\r\n" {
			break
		}
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return
	}
	e.mu.Lock()
	e.got = append(e.got, head.String()+string(data))
	e.mu.Unlock()
	status := "200 OK"
	if strings.Contains(string(data), "please-fail-"+e.say[:6]) {
		status = "500 Internal Server Error"
	}
	answer := `{"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}`
	if status[0] == '2' {
		answer = e.say
	}
	answer = strings.TrimPrefix(strings.TrimPrefix(answer, "prefil"), "decode")
	fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(answer), answer)
}

func (e *engine) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	got := e.got
	e.got = nil
	return got
}

var stamp = regexp.MustCompile(`___prefill_addr_(\S+?)___decode_addr_(\S+?)_([0-9a-f]{32})`)

// Every request of the capture reaches the engines byte for byte; what differs
// from run to run, addresses and the id, is put back first.
func TestCapturedRequests(t *testing.T) {
	for _, c := range captures(t) {
		t.Run(c.Name, func(t *testing.T) {
			params := "null"
			for _, d := range c.Decode {
				var b map[string]json.RawMessage
				require.NoError(t, json.Unmarshal([]byte(d.Body), &b))
				params = string(b[kvParams])
			}
			p := startEngine(t, `prefil{"id":"x","kv_transfer_params":`+params+`}`)
			d := startEngine(t, "decode"+c.Response)
			r, err := New(Options{Prefill: []string{"http://" + p.l.Addr().String()}, Decode: []string{"http://" + d.l.Addr().String()}})
			require.NoError(t, err)
			s := httptest.NewServer(r)
			defer s.Close()
			q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+c.Path, strings.NewReader(string(c.Body)))
			require.NoError(t, err)
			for k, v := range c.Headers {
				q.Header.Set(k, v)
			}
			resp, err := s.Client().Do(q)
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, resp.Body.Close())
			require.NoError(t, err)
			here := func(s string) string {
				s = strings.ReplaceAll(s, p.l.Addr().String(), "127.0.0.1:38101")
				return strings.ReplaceAll(s, d.l.Addr().String(), "127.0.0.1:38102")
			}
			require.Equal(t, c.Status, resp.StatusCode)
			require.Equal(t, c.Response, here(string(body)))
			check := func(got []string, want []captured) {
				t.Helper()
				require.Len(t, got, len(want))
				for i := range want {
					id := stamp.FindString(got[i])
					text := "POST " + want[i].Path + " HTTP/1.1\r\n"
					for _, h := range want[i].Headers {
						v := h[1]
						if h[0] == "x-request-id" {
							v = here(id)
						}
						text += h[0] + ": " + v + "\r\n"
					}
					require.Equal(t, text+"\r\n"+want[i].Body, here(got[i]))
				}
			}
			check(p.take(), c.Prefill)
			check(d.take(), c.Decode)
		})
	}
}

func TestRequestsFollowTheWorkersInStep(t *testing.T) {
	var p, d []string
	var engines []*engine
	for range 2 {
		e, f := startEngine(t, `prefil{"kv_transfer_params":null}`), startEngine(t, `decode{}`)
		p, d = append(p, "http://"+e.l.Addr().String()), append(d, "http://"+f.l.Addr().String())
		engines = append(engines, e, f)
	}
	r, err := New(Options{Prefill: p, Decode: d})
	require.NoError(t, err)
	s := httptest.NewServer(r)
	defer s.Close()
	for range 4 {
		resp, err := s.Client().Post(s.URL+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x"}`))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	for i, e := range engines {
		got := e.take()
		require.Len(t, got, 2)
		id := stamp.FindStringSubmatch(got[0])
		require.Equal(t, []string{strings.TrimPrefix(p[i/2], "http://"), strings.TrimPrefix(d[i/2], "http://")}, id[1:3])
	}
}

func TestOwnRoutes(t *testing.T) {
	live := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"object":"list"}`) }))
	defer live.Close()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone := "http://" + dead.Addr().String()
	require.NoError(t, dead.Close())
	f := func(decode, method, path string, status int, want string) {
		t.Helper()
		r, err := New(Options{Prefill: []string{live.URL}, Decode: []string{decode}})
		require.NoError(t, err)
		w := httptest.NewRecorder()
		ctx, cancel := context.WithTimeout(t.Context(), healthLimit)
		defer cancel()
		r.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, strings.NewReader("[]")))
		require.Equal(t, status, w.Code, path)
		require.Equal(t, want, w.Body.String(), path)
	}
	f(live.URL, "GET", "/health", 200, "All servers healthy")
	f(live.URL, "GET", "/liveness", 200, "OK")
	f(live.URL, "GET", "/readiness", 200, `{"status":"ready","prefill":{"healthy":1,"total":1},"decode":{"healthy":1,"total":1}}`)
	f(live.URL, "GET", "/v1/models", 200, `{"object":"list"}`)
	f(live.URL, "GET", "/metrics", 405, "Only POST requests are supported for transparent proxy")
	f(live.URL, "POST", "/v1/embeddings", 501, "Embeddings endpoint not implemented for PD router")
	f(live.URL, "POST", "/v1/completions", 400, "the body must be a JSON object")
	f(gone, "GET", "/health", 503, fmt.Sprintf(`Unhealthy servers: ["Decode: %s"]`, gone))
	f(gone, "GET", "/readiness", 503, `{"status":"not_ready","prefill":{"healthy":1,"total":1},"decode":{"healthy":0,"total":1}}`)
}

func TestBadWorkers(t *testing.T) {
	_, err := New(Options{Prefill: []string{"localhost:1"}})
	require.ErrorContains(t, err, "use http://host:port")
	require.ErrorContains(t, err, "no Decode worker")
}

func TestStringsAndNesting(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		o, err := parseObject([]byte(in))
		require.NoError(t, err)
		got, err := o.bytes()
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	f(` { "a" : [ 1 , 2.50 , { "b" : null , "c" : [ ] , "d" : { } } , true ] , "e" : "x" } `, `{"a":[1,2.50,{"b":null,"c":[],"d":{}},true],"e":"x"}`)
	f("{\"a\":\"\\u00e9<&>\\u0001\\n\\\"\"}", `{"a":"é<&>\u0001\n\""}`)
	f(`{"a":1,"a":2}`, `{"a":2}`)
	for _, bad := range []string{"", "[]", "{", `{"a"}`, `{"a":1}x`} {
		_, err := parseObject([]byte(bad))
		require.ErrorIs(t, err, errBody, bad)
	}
}
