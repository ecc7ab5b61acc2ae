package simengine

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/connector/multi"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// source is a connector that has every prompt, and can fail. All of it runs on
// the engine's goroutine but fail and the counters.
type source struct {
	e    *Engine
	fail func(id string) bool

	reqs    map[string]*connector.Request
	ordered []order
	done    connector.Progress

	mu      sync.Mutex
	endings []multi.Ending // guarded by mu
}

type order struct {
	r      *connector.Request
	blocks [][]int64
	from   int
}

func (s *source) Enqueued(*connector.Request) {}

func (s *source) Match(r *connector.Request, computed int) (int, bool) {
	if s.reqs[r.ID] != nil {
		return 0, true
	}
	return r.PromptTokens - computed, true
}

func (s *source) Allocated(r *connector.Request, blocks [][]int64, external int) {
	if external == 0 {
		return
	}
	s.reqs[r.ID] = r
	s.ordered = append(s.ordered, order{r, [][]int64{slices.Clone(blocks[0])}, r.PromptTokens - external})
}

func (s *source) BuildMeta(*connector.Step) any {
	out := s.ordered
	s.ordered = nil
	return out
}

func (s *source) Finish(r *connector.Request, e multi.Ending) (multi.Finished, error) {
	delete(s.reqs, r.ID)
	s.mu.Lock()
	s.endings = append(s.endings, e)
	s.mu.Unlock()
	if string(r.Params["do_remote_decode"]) == "true" {
		return multi.Finished{Params: map[string]json.RawMessage{"do_remote_prefill": json.RawMessage("true")}}, nil
	}
	return multi.Finished{}, nil
}
func (s *source) Close() error { return nil }

type sourceWorker struct{ *source }

func (w sourceWorker) Prepare(context.Context, any) error { return nil }

func (w sourceWorker) Load(meta any) {
	for _, o := range meta.([]order) {
		w.done.Received = append(w.done.Received, o.r.ID)
		if w.fail(o.r.ID) {
			// Those that it was to write: the ones before are good, and maybe others' too.
			w.done.BadBlocks = append(w.done.BadBlocks, o.blocks[0][o.from/w.e.opts.BlockTokens:]...)
			continue
		}
		prefix := newRequest(context.Background(), Completion{Tokens: o.r.Tokens}, nil)
		prefix.blocks = o.blocks
		w.e.kv.compute(prefix, o.from, o.r.PromptTokens)
	}
}
func (w sourceWorker) Save(any) {}

func (w sourceWorker) Poll([]string) connector.Progress {
	p := w.done
	w.done = connector.Progress{}
	return p
}
func (w sourceWorker) Close(context.Context) error { return nil }

func withSource(t *testing.T, policy connector.FailurePolicy, fail func(id string) bool) (*Engine, *source) {
	t.Helper()
	s := &source{fail: fail, reqs: make(map[string]*connector.Request)}
	c, err := connector.ParseTransferConfig([]byte(`{"kv_connector":"NixlConnector","kv_role":"kv_both"}`))
	require.NoError(t, err)
	c.FailurePolicy = policy
	return start(t, Options{Model: "m", Connector: c, links: func(e *Engine) (multi.Scheduler, multi.Worker) {
		s.e = e
		return s, sourceWorker{s}
	}}), s
}

// What the engine does with a load that failed is what the config says.
func TestLoadFailurePolicy(t *testing.T) {
	p := work(1, 200)[0]
	want, err := start(t, Options{}).Complete(t.Context(), Completion{Tokens: p, MaxTokens: 8}, nil)
	require.NoError(t, err)
	failing := func(string) bool { return true }

	e, _ := withSource(t, connector.PolicyRecompute, func(string) bool { return false })
	got, err := e.Complete(t.Context(), Completion{Tokens: p, MaxTokens: 8}, nil)
	require.NoError(t, err)
	require.Equal(t, want.Tokens, got.Tokens)
	require.Equal(t, len(p), got.Cached)
	require.EqualValues(t, 8, e.Stats().ComputedTokens, "only the last token of the prompt, and the answer")

	e, _ = withSource(t, connector.PolicyRecompute, failing)
	got, err = e.Complete(t.Context(), Completion{Tokens: p, MaxTokens: 8}, nil)
	require.NoError(t, err)
	require.Equal(t, want.Tokens, got.Tokens, "computed here")
	require.EqualValues(t, 1, e.Stats().FailedLoads)
	settled(t, e)

	e, s := withSource(t, connector.PolicyFail, failing)
	_, err = e.Complete(t.Context(), Completion{Tokens: p, MaxTokens: 8}, nil)
	require.ErrorIs(t, err, ErrLoadFailed)
	settled(t, e)
	require.Len(t, s.endings, 1)
	require.Equal(t, multi.Failed, s.endings[0].Reason)
	h := serveHTTP(t, e)
	status, body := h.post("/v1/completions", `{"prompt":"Hello","max_tokens":3}`)
	require.Equal(t, 500, status)
	require.JSONEq(t, `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`, body)
	status, body = h.post("/v1/completions", `{"prompt":"Hello","max_tokens":3,"stream":true}`)
	require.Equal(t, 200, status, "a stream has begun")
	require.Equal(t, `data: {"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`+"\n\ndata: [DONE]", body)
}

// The policy of one request's failure is no other request's business.
func TestOneFailedLoadAmongMany(t *testing.T) {
	prompts := work(16, 200)
	want := answers(t, start(t, Options{}), prompts, 6)
	e, _ := withSource(t, connector.PolicyFail, func(id string) bool { return id == "bad" })
	var wg sync.WaitGroup
	for i, p := range prompts {
		wg.Go(func() {
			a, err := e.Complete(t.Context(), Completion{Tokens: p, MaxTokens: 6}, nil)
			if err != nil || text(a.Tokens) != want[i] {
				t.Errorf("request %d: %q, %v", i, text(a.Tokens), err)
			}
		})
	}
	_, err := e.Complete(t.Context(), Completion{ID: "bad", Tokens: work(17, 200)[16], MaxTokens: 6}, nil)
	require.ErrorIs(t, err, ErrLoadFailed)
	wg.Wait()
	settled(t, e)
}

// Params of a prefill come back with what was cached; a request that cannot be
// served is finished as aborted, so that whoever holds blocks for it hears of it.
func TestParamsBothWays(t *testing.T) {
	e, s := withSource(t, connector.PolicyFail, func(string) bool { return false })
	h := serveHTTP(t, e)
	status, body := h.post("/v1/completions", `{"prompt":"Hello","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`)
	require.Equal(t, 200, status)
	require.Contains(t, body, `"kv_transfer_params":{"do_remote_prefill":true,"remote_prefill_cached_tokens":5}}`)
	status, _ = h.post("/v1/completions", `{"prompt":"Hello","max_tokens":1,"stream":true,"kv_transfer_params":{"do_remote_decode":true}}`)
	require.Equal(t, 200, status)

	status, _ = h.post("/v1/completions", `{"prompt":"Hello","max_tokens":100000,"kv_transfer_params":{"do_remote_prefill":true}}`)
	require.Equal(t, 400, status)
	last := s.endings[len(s.endings)-1]
	require.Equal(t, multi.Aborted, last.Reason)
	settled(t, e)
}

func TestUnknownConnector(t *testing.T) {
	c, err := connector.ParseTransferConfig([]byte(`{"kv_connector":"MooncakeConnector","kv_role":"kv_both"}`))
	require.NoError(t, err)
	_, err = New(t.Context(), Options{Connector: c})
	require.ErrorIs(t, err, errOptions)
	require.ErrorContains(t, err, "MooncakeConnector")
}

// library is NIXL, or the reason to skip.
func library(t *testing.T) *nixl.Library {
	t.Helper()
	l, err := nixl.Load(nixl.LoadOptions{Python: os.Getenv("LMCACHE_GO_PYTHON")})
	if err != nil {
		t.Skipf("needs NIXL: set LMCACHE_GO_PYTHON or NIXL_LIB_DIR: %v", err)
	}
	return l
}

// pair starts a prefill and a decode engine, each with a server of its own.
func pair(t *testing.T, log *slog.Logger) (p, d *Engine) {
	t.Helper()
	lib := library(t)
	one := func(role string) *Engine {
		url, _ := startServer(t)
		c, err := connector.ParseTransferConfig([]byte(`{"kv_connector":"MultiConnector","kv_role":"` + role + `","kv_connector_extra_config":{"connectors":[
			{"kv_connector":"NixlConnector","kv_role":"` + role + `","kv_load_failure_policy":"fail"},
			{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_connector_extra_config":{"lmcache.mp.server_urls":"` + url + `"}}]}}`))
		require.NoError(t, err)
		return start(t, Options{Model: "m", Connector: c, Library: lib, Logger: log, Getenv: func(k string) string {
			return map[string]string{"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": "0"}[k]
		}})
	}
	return one("kv_producer"), one("kv_consumer")
}

// The whole hand-over in one process: computed there, pulled here, the blocks
// freed by the notification, stored in the prefiller's server.
func TestPrefillAndDecode(t *testing.T) {
	p, d := pair(t, nil)
	prompts := work(8, 300)
	want := answers(t, start(t, Options{}), prompts, 12)
	var wg sync.WaitGroup
	for i, tokens := range prompts {
		wg.Go(func() {
			asked := map[string]json.RawMessage{"do_remote_decode": json.RawMessage("true"), "do_remote_prefill": json.RawMessage("false")}
			a, err := p.Complete(t.Context(), Completion{Tokens: tokens, MaxTokens: 1, Params: asked}, nil)
			if err != nil || a.Params == nil {
				t.Errorf("prefill %d: %v", i, errors.Join(err))
				return
			}
			b, err := d.Complete(t.Context(), Completion{Tokens: tokens, MaxTokens: 12, Params: a.Params}, nil)
			if err != nil || text(b.Tokens) != want[i] {
				t.Errorf("decode %d: %q instead of %q, %v", i, text(b.Tokens), want[i], err)
			}
		})
	}
	wg.Wait()
	settled(t, p)
	settled(t, d)
	require.Positive(t, d.Stats().Loads)
	require.Positive(t, p.mp.Stats().Lookups)
	r := &reporter{e: d, at: time.Now()}
	lines := r.lines(time.Now())
	require.Len(t, lines, 2)
	require.Regexp(t, regexp.MustCompile(`^Engine 000: Avg prompt throughput: .*External prefix cache hit rate: [0-9.]+%$`), lines[0])
	require.Regexp(t, regexp.MustCompile(`^KV Transfer metrics: NixlConnector=\{'Num successful transfers': 8, .*'Num notifs after expiry': 0\}, LMCacheMPConnector=\{'LMCache MP lookup count': 8, `), lines[1])
	require.Empty(t, (&reporter{e: d, last: d.Stats(), mp: d.mp.Stats(), at: time.Now()}).lines(time.Now()), "an idle engine says nothing")
}
