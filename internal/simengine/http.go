package simengine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// maxBody bounds a request to the HTTP surface.
const maxBody = 64 << 20

// NewHandler serves the part of OpenAI's API that routers and load generators
// use: /v1/completions, /v1/chat/completions (JSON and SSE), /v1/models,
// /health and /metrics. A token is a byte; prompts may also be lists of ids.
func NewHandler(e *Engine) http.Handler {
	h := &handler{e: e, started: time.Now()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", h.models)
	mux.HandleFunc("GET /metrics", h.metrics)
	mux.HandleFunc("POST /v1/completions", h.completions)
	mux.HandleFunc("POST /v1/chat/completions", h.completions)
	mux.HandleFunc("POST /reset_prefix_cache", func(http.ResponseWriter, *http.Request) { e.ResetPrefixCache() })
	return mux
}

type handler struct {
	e       *Engine
	started time.Time
}

// body is what is read of a request; everything else is ignored.
type body struct {
	Prompt   json.RawMessage `json:"prompt"`
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	MaxTokens           *int   `json:"max_tokens"`
	MaxCompletionTokens *int   `json:"max_completion_tokens"`
	Stream              bool   `json:"stream"`
	CacheSalt           string `json:"cache_salt"`
}

// defaultMaxTokens is OpenAI's for completions.
const defaultMaxTokens = 16

// tokens of the prompt, and whether it was a chat.
func (b *body) tokens() ([]uint32, bool, error) {
	text, chat := "", len(b.Messages) > 0
	if chat {
		var s strings.Builder
		for _, m := range b.Messages {
			fmt.Fprintf(&s, "<%s>%s\n", m.Role, m.Content)
		}
		text = s.String()
	} else {
		var ids []uint32
		if json.Unmarshal(b.Prompt, &ids) == nil && len(ids) > 0 {
			return ids, false, nil
		}
		if err := json.Unmarshal(b.Prompt, &text); err != nil {
			return nil, false, errors.New("prompt must be a string or a list of token ids")
		}
	}
	out := make([]uint32, len(text))
	for i := range out {
		out[i] = uint32(text[i])
	}
	return out, chat, nil
}

func (h *handler) fail(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": err.Error(), "code": status}}) // the client may have gone
}

func (h *handler) completions(w http.ResponseWriter, r *http.Request) {
	var b body
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&b); err != nil {
		h.fail(w, http.StatusBadRequest, err)
		return
	}
	tokens, chat, err := b.tokens()
	if err != nil {
		h.fail(w, http.StatusBadRequest, err)
		return
	}
	c := Completion{Tokens: tokens, MaxTokens: defaultMaxTokens, Salt: b.CacheSalt}
	for _, n := range []*int{b.MaxTokens, b.MaxCompletionTokens} {
		if n != nil {
			c.MaxTokens = *n
		}
	}
	kind := "cmpl-"
	if chat {
		kind = "chatcmpl-"
	}
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = fmt.Sprintf("%d", h.e.seq.Add(1))
	}
	c.ID = fmt.Sprintf("%s%s-%d", kind, id, h.e.seq.Add(1)) // clients may repeat theirs
	out := reply{h: h, id: kind + id, chat: chat}
	if b.Stream {
		out.stream(r.Context(), w, c)
		return
	}
	answer, err := h.e.Complete(r.Context(), c, nil)
	switch {
	case errors.Is(err, ErrTooLong):
		h.fail(w, http.StatusBadRequest, err)
	case err != nil:
		h.fail(w, http.StatusInternalServerError, err)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out.object(text(answer), "length", len(tokens), len(answer))) // the client may have gone
	}
}

func text(tokens []uint32) string {
	b := make([]byte, len(tokens))
	for i, t := range tokens {
		b[i] = byte(t)
	}
	return string(b)
}

// reply makes the objects of an answer.
type reply struct {
	h    *handler
	id   string
	chat bool
}

func (o *reply) head(object string) map[string]any {
	return map[string]any{"id": o.id, "object": object, "created": time.Now().Unix(), "model": o.h.e.opts.Model}
}

func (o *reply) object(text, reason string, prompt, answer int) map[string]any {
	m := o.head("text_completion")
	choice := map[string]any{"index": 0, "text": text, "finish_reason": reason}
	if o.chat {
		m = o.head("chat.completion")
		choice = map[string]any{"index": 0, "message": map[string]string{"role": "assistant", "content": text}, "finish_reason": reason}
	}
	m["choices"] = []any{choice}
	m["usage"] = map[string]int{"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
	return m
}

// chunk is one item of a stream.
func (o *reply) chunk(text string, reason any) map[string]any {
	m := o.head("text_completion")
	choice := map[string]any{"index": 0, "text": text, "finish_reason": reason}
	if o.chat {
		m = o.head("chat.completion.chunk")
		choice = map[string]any{"index": 0, "delta": map[string]string{"content": text}, "finish_reason": reason}
	}
	m["choices"] = []any{choice}
	return m
}

// stream answers with server-sent events.
func (o *reply) stream(ctx context.Context, w http.ResponseWriter, c Completion) {
	tokens := make(chan uint32, max(1, min(c.MaxTokens, o.h.e.opts.MaxModelTokens))) // never blocks the engine
	failed := make(chan error, 1)
	go func() {
		_, err := o.h.e.Complete(ctx, c, func(t uint32) { tokens <- t })
		close(tokens)
		failed <- err
	}()
	rc := http.NewResponseController(w)
	send := func(v any) {
		data, err := json.Marshal(v)
		if err == nil {
			fmt.Fprintf(w, "data: %s\n\n", data)
			_ = rc.Flush() // the client may have gone; ctx tells
		}
	}
	first, ok := <-tokens
	if !ok {
		status := http.StatusInternalServerError
		err := <-failed
		if errors.Is(err, ErrTooLong) {
			status = http.StatusBadRequest
		}
		o.h.fail(w, status, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send(o.chunk(text([]uint32{first}), nil))
	for t := range tokens {
		send(o.chunk(text([]uint32{t}), nil))
	}
	if err := <-failed; err != nil {
		send(map[string]any{"error": map[string]any{"message": err.Error(), "code": http.StatusInternalServerError}})
	} else {
		send(o.chunk("", "length"))
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (h *handler) models(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": []any{map[string]any{
		"id": h.e.opts.Model, "object": "model", "created": h.started.Unix(), "owned_by": "lmcache-go", "max_model_len": h.e.opts.MaxModelTokens,
	}}}) // the client may have gone
}

// metrics has the counters of vLLM that a dashboard for KV transfers reads.
func (h *handler) metrics(w http.ResponseWriter, _ *http.Request) {
	s := h.e.Stats()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, m := range []struct {
		name  string
		value int64
	}{
		{"vllm:prompt_tokens_total", s.PromptTokens},
		{"vllm:generation_tokens_total", s.Generated},
		{"vllm:prefix_cache_queries_total", s.PromptTokens},
		{"vllm:prefix_cache_hits_total", s.LocalHits},
		{"vllm:external_prefix_cache_queries_total", s.PromptTokens - s.LocalHits},
		{"vllm:external_prefix_cache_hits_total", s.ExternalHits},
		{"vllm:num_preemptions_total", s.Preempted},
	} {
		fmt.Fprintf(w, "# TYPE %s counter\n%s{model_name=%q} %d\n", m.name, m.name, h.e.opts.Model, m.value)
	}
}
