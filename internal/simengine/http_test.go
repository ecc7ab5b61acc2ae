package simengine

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

// surface is the HTTP side of an engine.
type surface struct {
	t *testing.T
	*httptest.Server
}

func serveHTTP(t *testing.T, e *Engine) *surface {
	t.Helper()
	s := httptest.NewServer(NewHandler(e))
	t.Cleanup(func() { s.Client().CloseIdleConnections(); s.Close() })
	return &surface{t, s}
}

// post returns status and body.
func (s *surface) post(path, in string) (int, string) {
	s.t.Helper()
	q, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.URL+path, strings.NewReader(in))
	require.NoError(s.t, err)
	q.Header.Set("X-Request-Id", "abc")
	r, err := s.Client().Do(q)
	require.NoError(s.t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(s.t, err)
	return r.StatusCode, strings.TrimSpace(string(body))
}

var created = regexp.MustCompile(`"created":\d+`)

// golden is a body without its time.
func golden(body string) string { return created.ReplaceAllString(body, `"created":1`) }

func TestShapesOfAnswers(t *testing.T) {
	s := serveHTTP(t, start(t, Options{Model: "m"}))
	f := func(path, in, want string) {
		t.Helper()
		status, got := s.post(path, in)
		require.Equal(t, 200, status, got)
		require.Equal(t, want, golden(got))
	}
	_, body := s.post("/v1/completions", `{"prompt":"Hello","max_tokens":3}`)
	var whole completion
	require.NoError(t, json.Unmarshal([]byte(body), &whole))
	text := *whole.Choices[0].Text
	require.Len(t, text, 3)
	f("/v1/completions", `{"model":"m","prompt":"Hello","max_tokens":3,"no_stop_trim":false,"min_tokens":1}`,
		`{"id":"cmpl-abc","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"`+text+`","logprobs":null,"finish_reason":"length","stop_reason":null}],`+
			`"service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3,"prompt_tokens_details":null},"kv_transfer_params":null}`)
	f("/v1/completions", `{"prompt":[[72,101,108,108,111]],"max_tokens":3,"echo":true}`,
		`{"id":"cmpl-abc","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"Hello`+text+`","logprobs":null,"finish_reason":"length","stop_reason":null}],`+
			`"service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3,"prompt_tokens_details":null},"kv_transfer_params":null}`)

	chunk := func(text, reason, more string) string {
		return `data: {"id":"cmpl-abc","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"` + text + `","logprobs":null,"finish_reason":` + reason + `}]` + more + "}\n\n"
	}
	usage := `,"usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3,"prompt_tokens_details":null}`
	f("/v1/completions", `{"prompt":"Hello","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`,
		chunk(text[:1], "null", "")+chunk(text[1:2], "null", "")+chunk(text[2:], `"length"`, "")+
			`data: {"id":"cmpl-abc","object":"text_completion","created":1,"model":"m","choices":[]`+usage+"}\n\ndata: [DONE]")

	_, body = s.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"max_completion_tokens":1}`)
	require.NoError(t, json.Unmarshal([]byte(body), &whole))
	said := whole.Choices[0].Message.Content
	f("/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"H"},{"type":"text","text":"i"}]}],"max_tokens":1}`,
		`{"id":"chatcmpl-abc","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"`+said+`"},"logprobs":null,"finish_reason":"length","stop_reason":null}],`+
			`"service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":9,"total_tokens":10,"completion_tokens":1,"prompt_tokens_details":null},"kv_transfer_params":null}`)
	head := `data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":`
	f("/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"stream":true}`,
		head+`{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`+"\n\n"+
			head+`{"content":"`+said+`"},"logprobs":null,"finish_reason":"length"}]}`+"\n\ndata: [DONE]")
}

func TestShapesOfErrors(t *testing.T) {
	s := serveHTTP(t, start(t, Options{Model: "m", Blocks: 16}))
	f := func(path, in string, status int, kind, param string) {
		t.Helper()
		got, body := s.post(path, in)
		var e map[string]errorInfo
		require.NoError(t, json.Unmarshal([]byte(body), &e), body)
		info := e["error"]
		require.Equal(t, status, got)
		require.Equal(t, status, info.Code)
		require.Equal(t, kind, info.Type)
		require.NotEmpty(t, info.Message)
		if param == "" {
			require.Nil(t, info.Param)
		} else {
			require.Equal(t, param, *info.Param)
		}
	}
	const bad, missing = "BadRequestError", "NotFoundError"
	f("/v1/completions", `{`, 400, bad, "")
	f("/v1/completions", `{"prompt":5}`, 400, bad, "prompt")
	f("/v1/completions", `{"prompt":""}`, 400, bad, "prompt")
	f("/v1/completions", `{}`, 400, bad, "prompt")
	f("/v1/completions", `{"prompt":["a","b"]}`, 400, bad, "prompt")
	f("/v1/completions", `{"prompt":"x","max_tokens":0}`, 400, bad, "max_tokens")
	f("/v1/completions", `{"prompt":"x","n":2}`, 400, bad, "n")
	f("/v1/completions", `{"prompt":"x","max_tokens":1000}`, 400, bad, "")
	f("/v1/completions", `{"prompt":"x","max_tokens":1000,"stream":true}`, 400, bad, "")
	f("/v1/completions", `{"prompt":"x","model":"other"}`, 404, missing, "model")
	f("/v1/chat/completions", `{"messages":[]}`, 400, bad, "messages")
	f("/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, bad, "messages")
	f("/v1/chat/completions", `{"messages":[{"role":"user","content":7}]}`, 400, bad, "messages")
}

// A client that goes away takes its request with it.
func TestAClientThatGoesAbortsItsRequest(t *testing.T) {
	e := start(t, Options{Model: "m", TokenCost: time.Millisecond})
	s := serveHTTP(t, e)
	for _, in := range []string{`{"prompt":"x","max_tokens":5000,"stream":true}`, `{"prompt":"x","max_tokens":5000}`} {
		before := e.Stats().Aborted
		ctx, cancel := context.WithCancel(t.Context())
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/completions", strings.NewReader(in))
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			r, err := s.Client().Do(q)
			if err == nil {
				_, _ = io.Copy(io.Discard, r.Body) // until it is cut
				_ = r.Body.Close()
			}
		}()
		testutil.Eventually(t, "the request runs", func() bool { return e.Stats().Running == 1 })
		cancel()
		testutil.Eventually(t, "it is aborted", func() bool { return e.Stats().Aborted == before+1 })
		<-done
		testutil.Eventually(t, "nothing runs", func() bool { return e.Stats().Running == 0 })
	}
	settled(t, e)
}

func TestMetricsAndModels(t *testing.T) {
	e := start(t, Options{Model: "m", ServedName: "alias"})
	s := serveHTTP(t, e)
	status, _ := s.post("/v1/completions", `{"model":"alias","prompt":"Hello","max_tokens":3}`)
	require.Equal(t, 200, status)
	get := func(path string) string {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, http.NoBody)
		require.NoError(t, err)
		r, err := s.Client().Do(q)
		require.NoError(t, err)
		defer r.Body.Close()
		require.Equal(t, 200, r.StatusCode)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return string(body)
	}
	text := get("/metrics")
	for _, line := range []string{
		`vllm:prompt_tokens_total{engine="0",model_name="alias"} 5`, `vllm:generation_tokens_total{engine="0",model_name="alias"} 3`,
		`vllm:num_requests_running{engine="0",model_name="alias"} 0`, `vllm:external_prefix_cache_hits_total{engine="0",model_name="alias"} 0`,
		`vllm:request_success_total{engine="0",model_name="alias",finished_reason="length"} 1`,
	} {
		require.Contains(t, text, line+"\n")
	}
	require.Contains(t, get("/v1/models"), `"id":"alias"`)
	require.Contains(t, get("/version"), "0.33.0")
	require.Empty(t, get("/health"))
}

func TestParamsAreWrittenInOrder(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	data, err := json.Marshal(kvParams{"z": raw("1"), "tp_size": raw("1"), "a": raw("2"), "do_remote_prefill": raw("true"), "remote_block_ids": raw("[[1]]")})
	require.NoError(t, err)
	require.Equal(t, `{"do_remote_prefill":true,"remote_block_ids":[[1]],"tp_size":1,"a":2,"z":1}`, string(data))
	data, err = json.Marshal(kvParams(nil))
	require.NoError(t, err)
	require.Equal(t, "null", string(data))
}
