package simengine

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var segments atomic.Int64

// startServer runs a server with chunks of 64 tokens.
func startServer(t *testing.T) (url string, stop func()) {
	t.Helper()
	s, err := mpserver.New(mpserver.Options{
		Host: "127.0.0.1", HTTPPort: -1, ChunkSize: 64, Logger: slog.New(slog.DiscardHandler),
		L1: mpserver.L1Options{SizeBytes: 64 << 20, ShmName: fmt.Sprintf("simengine_%d_%d", os.Getpid(), segments.Add(1))},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return s.Addr(), stop
}

func config(t *testing.T, url, mode, policy string) *connector.TransferConfig {
	t.Helper()
	c, err := connector.ParseTransferConfig(fmt.Appendf(nil, `{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_load_failure_policy":%q,"kv_connector_extra_config":{"connectors":[
		{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_connector_extra_config":{"lmcache.mp.server_urls":%q,"lmcache.mp.mp_transfer_mode":%q,"lmcache.mp.heartbeat_interval":1}}]}}`, policy, url, mode))
	require.NoError(t, err)
	return c
}

func start(t *testing.T, o Options) *Engine {
	t.Helper()
	e, err := New(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// work is a set of prompts, some of which share a prefix.
func work(n, tokens int) [][]uint32 {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([][]uint32, n)
	for i := range out {
		out[i] = make([]uint32, tokens+r.IntN(64))
		shared := rand.New(rand.NewPCG(uint64(i%4), 9))
		for j := range out[i] {
			out[i][j] = shared.Uint32() % 256
			if j >= tokens/2 {
				out[i][j] = r.Uint32() % 256
			}
		}
	}
	return out
}

// answers completes all prompts at once.
func answers(t *testing.T, e *Engine, prompts [][]uint32, generate int) []string {
	t.Helper()
	out := make([]string, len(prompts))
	var wg sync.WaitGroup
	for i, p := range prompts {
		wg.Go(func() {
			a, err := e.Complete(t.Context(), Completion{Tokens: p, MaxTokens: generate}, nil)
			if err != nil {
				t.Errorf("request %d: %v", i, err)
			}
			out[i] = text(a.Tokens)
		})
	}
	wg.Wait()
	return out
}

// settled checks that nothing is left in the pool.
func settled(t *testing.T, e *Engine) {
	t.Helper()
	testutil.Eventually(t, "all blocks free", func() bool { return e.Stats().Blocks == 0 })
}

// Many requests at once over a pool of a tenth of what they need, twice: every
// text is that of an engine with a large pool.
func TestSmallPoolGivesTheSameTexts(t *testing.T) {
	prompts := work(64, 300)
	large := start(t, Options{Blocks: 4096})
	want := answers(t, large, prompts, 12)
	require.Len(t, uniq(want), len(want), "different prompts have different answers")
	for _, mode := range []string{"engine_driven", "lmcache_driven"} {
		t.Run(mode, func(t *testing.T) {
			url, _ := startServer(t)
			e := start(t, Options{Blocks: 144, MaxBatchTokens: 256, Connector: config(t, url, mode, "recompute")})
			require.Equal(t, want, answers(t, e, prompts, 12), "first time")
			settled(t, e)
			require.Equal(t, want, answers(t, e, prompts, 12), "second time")
			settled(t, e)
			s := e.Stats()
			t.Logf("%+v", s)
			require.Positive(t, s.ExternalHits)
			require.Positive(t, s.Loads)
			require.Positive(t, s.Evicted)
			require.Zero(t, s.FailedLoads)
		})
	}
}

func uniq(s []string) map[string]bool {
	out := make(map[string]bool)
	for _, x := range s {
		out[x] = true
	}
	return out
}

// A wrong byte in one page is another text.
func TestAWrongBlockChangesTheText(t *testing.T) {
	f := func(spoil bool) string {
		e := start(t, Options{})
		p := work(1, 200)[0]
		first := true
		a, err := e.Complete(t.Context(), Completion{Tokens: p, MaxTokens: 8}, func(uint32) {
			if spoil && first { // on the engine's own goroutine
				e.kv.row(1, 1, []int64{5}, 3)[2] ^= 1
			}
			first = false
		})
		require.NoError(t, err)
		return text(a.Tokens)
	}
	require.Equal(t, f(false), f(false))
	require.NotEqual(t, f(false), f(true))
}

func TestPreemption(t *testing.T) {
	prompts := work(8, 200)
	want := answers(t, start(t, Options{}), prompts, 60)
	url, _ := startServer(t)
	e := start(t, Options{Blocks: 48, MaxBatchTokens: 128, Connector: config(t, url, "engine_driven", "recompute")})
	require.Equal(t, want, answers(t, e, prompts, 60))
	require.Positive(t, e.Stats().Preempted)
	settled(t, e)
}

func TestAborts(t *testing.T) {
	url, _ := startServer(t)
	e := start(t, Options{Blocks: 144, MaxBatchTokens: 64, Connector: config(t, url, "engine_driven", "recompute")})
	prompts := work(32, 300)
	var wg sync.WaitGroup
	for i, p := range append(prompts, prompts...) {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			_, err := e.Complete(ctx, Completion{Tokens: p, MaxTokens: 50}, func(uint32) {
				if n++; n > i%7 {
					cancel()
				}
			})
			require.ErrorIs(t, err, context.Canceled)
		})
	}
	wg.Wait()
	settled(t, e)
	require.Equal(t, answers(t, start(t, Options{}), prompts[:4], 5), answers(t, e, prompts[:4], 5))
}

// With recompute a server that dies costs time; with fail it costs the request.
func TestServerDies(t *testing.T) {
	prompts := work(8, 300)
	want := answers(t, start(t, Options{}), prompts, 5)
	url, stop := startServer(t)
	e := start(t, Options{Connector: config(t, url, "engine_driven", "recompute")})
	require.Equal(t, want, answers(t, e, prompts, 5))
	e.ResetPrefixCache()
	stop()
	require.Equal(t, want, answers(t, e, prompts, 5))
	settled(t, e)
}

func TestHTTP(t *testing.T) {
	e := start(t, Options{Model: "m"})
	s := httptest.NewServer(NewHandler(e))
	defer s.Close()
	defer s.Client().CloseIdleConnections()
	post := func(path, in string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, strings.NewReader(in))
		require.NoError(t, err)
		req.Header.Set("X-Request-Id", "abc")
		r, err := s.Client().Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { r.Body.Close() })
		return r
	}
	var full struct {
		ID      string
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
		Usage map[string]int
	}
	r := post("/v1/completions", `{"prompt":"Hello, world","max_tokens":9,"unknown":1}`)
	require.Equal(t, 200, r.StatusCode)
	require.NoError(t, json.NewDecoder(r.Body).Decode(&full))
	require.Equal(t, "cmpl-abc", full.ID)
	require.Len(t, full.Choices[0].Text, 9)
	require.Equal(t, 21, full.Usage["total_tokens"])

	r = post("/v1/completions", `{"prompt":"Hello, world","max_tokens":9,"stream":true}`)
	streamed := ""
	lines := bufio.NewScanner(r.Body)
	last := ""
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		last = data
		var item struct{ Choices []struct{ Text string } }
		if json.Unmarshal([]byte(data), &item) == nil {
			streamed += item.Choices[0].Text
		}
	}
	require.Equal(t, "[DONE]", last)
	require.Equal(t, full.Choices[0].Text, streamed)

	r = post("/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":4}`)
	require.NoError(t, json.NewDecoder(r.Body).Decode(&full))
	require.Len(t, full.Choices[0].Message.Content, 4)
	require.Equal(t, 400, post("/v1/completions", `{"prompt":5}`).StatusCode)
	require.Equal(t, 400, post("/v1/completions", `{"prompt":"x","max_tokens":1000000}`).StatusCode)
	require.Equal(t, 400, post("/v1/completions", `{"prompt":"x","max_tokens":1000000,"stream":true}`).StatusCode)
	require.Equal(t, 400, post("/v1/completions", `{`).StatusCode)
	for _, path := range []string{"/health", "/v1/models", "/metrics"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		require.NoError(t, err)
		r, err := s.Client().Do(req)
		require.NoError(t, err)
		r.Body.Close()
		require.Equal(t, 200, r.StatusCode, path)
	}
}

func TestBadOptions(t *testing.T) {
	_, err := New(t.Context(), Options{Blocks: 1, Layers: -1})
	require.ErrorIs(t, err, errOptions)
	e := start(t, Options{Blocks: 4})
	_, err = e.Complete(t.Context(), Completion{Tokens: make([]uint32, 48), MaxTokens: 1}, nil)
	require.ErrorIs(t, err, ErrTooLong)
}
