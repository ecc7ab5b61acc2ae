package simengine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// maxBody bounds a request to the HTTP surface.
const maxBody = 64 << 20

// NewHandler serves the part of OpenAI's API that routers and load generators
// use, with vLLM's shapes: /v1/completions, /v1/chat/completions (JSON and SSE),
// /v1/models, /health and /metrics. A token is a byte; prompts may also be lists
// of ids. A client that goes away aborts its request.
func NewHandler(e *Engine) http.Handler {
	h := &handler{e: e, started: time.Now()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", h.health)
	mux.HandleFunc("GET /ping", h.health)
	mux.HandleFunc("GET /version", h.version)
	mux.HandleFunc("GET /v1/models", h.models)
	mux.HandleFunc("GET /metrics", h.metrics)
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { h.completions(w, r, false) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { h.completions(w, r, true) })
	mux.HandleFunc("POST /reset_prefix_cache", func(http.ResponseWriter, *http.Request) { e.ResetPrefixCache() })
	return mux
}

type handler struct {
	e       *Engine
	started time.Time
}

// health is 200 with an empty body, or 503 once the engine has ended.
func (h *handler) health(w http.ResponseWriter, _ *http.Request) {
	select {
	case <-h.e.done:
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
	}
}

func (h *handler) version(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, map[string]string{"version": "0.33.0+lmcache-go"})
}

func (h *handler) models(w http.ResponseWriter, _ *http.Request) {
	data := []any{}
	for _, name := range h.e.opts.names() {
		data = append(data, map[string]any{
			"id": name, "object": "model", "created": h.started.Unix(), "owned_by": "vllm", "root": h.e.opts.Model, "parent": nil,
			"max_model_len": h.e.opts.MaxModelTokens,
		})
	}
	respond(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

func respond(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}

func fail(w http.ResponseWriter, err error) {
	d := describe(err)
	respond(w, d["error"].Code, d)
}

// reply is one answer on its way to a client.
type reply struct {
	h       *handler
	b       *body
	c       Completion
	id      string
	chat    bool
	created int64
}

// read decodes and checks a request.
func (h *handler) read(w http.ResponseWriter, r *http.Request, chat bool) (*reply, error) {
	b := &body{}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(b); err != nil {
		return nil, &apiError{status: http.StatusBadRequest, text: "the body is not usable JSON: " + err.Error()}
	}
	if names := h.e.opts.names(); b.Model != "" && !slices.Contains(names, b.Model) {
		return nil, &apiError{status: http.StatusNotFound, param: "model", text: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", b.Model, names[0])}
	}
	if b.N != nil && *b.N != 1 {
		return nil, &apiError{status: http.StatusBadRequest, param: "n", text: "n other than 1 is not simulated"}
	}
	o := &reply{h: h, b: b, chat: chat, created: time.Now().Unix()}
	var err error
	if chat {
		o.c.Tokens, err = b.chatTokens()
	} else {
		o.c.Tokens, err = b.promptTokens()
	}
	if err != nil {
		return nil, err
	}
	o.c.Salt, o.c.Params = b.CacheSalt, b.KVTransferParams
	o.c.MaxTokens, err = o.limit()
	o.name(r.Header.Get("X-Request-Id"))
	return o, err
}

// defaultMaxTokens is that of completions; chats go on until the context is
// full.
const defaultMaxTokens = 16

// limit is how many tokens are to be generated.
func (o *reply) limit() (int, error) {
	asked, free := defaultMaxTokens, o.h.e.opts.MaxModelTokens-len(o.c.Tokens)
	if o.chat {
		asked = max(1, free)
	}
	for _, n := range []*int{o.b.MaxTokens, o.b.MaxCompletionTokens} {
		if n != nil {
			asked = *n
		}
	}
	if asked < 1 {
		return 0, &apiError{status: http.StatusBadRequest, param: "max_tokens", text: fmt.Sprintf("max_tokens must be at least 1, got %d.", asked)}
	}
	return asked, nil
}

// name gives the request vLLM's ids: what the client sees, and the internal
// one, which is unique even when clients repeat theirs.
func (o *reply) name(header string) {
	if header == "" {
		header = randomHex(16)
	}
	if o.chat {
		o.id = "chatcmpl-" + header
		o.c.ID = o.id + "-" + randomHex(4)
		return
	}
	o.id = "cmpl-" + header
	o.c.ID = o.id + "-0-" + randomHex(4)
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func (h *handler) completions(w http.ResponseWriter, r *http.Request, chat bool) {
	o, err := h.read(w, r, chat)
	if err == nil {
		err = h.e.fits(o.c)
	}
	if err != nil {
		if o != nil {
			h.e.reject(r.Context(), o.c)
		}
		fail(w, err)
		return
	}
	if o.b.Stream {
		o.stream(r.Context(), w)
		return
	}
	a, err := h.e.Complete(r.Context(), o.c, nil)
	if err != nil {
		h.e.opts.Logger.Error("request failed", "request_id", o.id, "err", err)
		fail(w, err)
		return
	}
	respond(w, http.StatusOK, o.whole(a))
}

func (o *reply) usage(tokens, cached int) usage {
	u := usage{PromptTokens: len(o.c.Tokens), CompletionTokens: tokens, TotalTokens: len(o.c.Tokens) + tokens}
	if o.h.e.opts.PromptTokensDetails && cached > 0 {
		u.Details = &promptDetails{cached}
	}
	return u
}

// cached is what the usage tells: a decoder tells the hits of its prefiller,
// since its own are the transfer.
func (o *reply) cached(a Answer) int {
	if raw, ok := o.c.Params["remote_prefill_cached_tokens"]; ok {
		var n int
		if json.Unmarshal(raw, &n) == nil {
			return n
		}
	}
	return a.Cached
}

// reason is why every answer ends: nothing but the limit ends it.
var reason = "length"

func (o *reply) whole(a Answer) completion {
	said := text(a.Tokens)
	c := choice{FinishReason: &reason, Text: &said}
	out := completion{ID: o.id, Object: "text_completion", Created: o.created, Model: o.h.e.opts.names()[0], Usage: o.usage(len(a.Tokens), o.cached(a)), KVTransferParams: a.Params}
	if o.chat {
		out.Object = "chat.completion"
		c.Text, c.Message = nil, &message{"assistant", said}
	} else if o.b.Echo != nil && *o.b.Echo {
		said = text(o.c.Tokens) + said
	}
	out.Choices = []choice{c}
	return out
}

// chunk is one event of a stream.
func (o *reply) chunk(choices ...chunkChoice) chunk {
	c := chunk{ID: o.id, Object: "text_completion", Created: o.created, Model: o.h.e.opts.names()[0], Choices: choices}
	if o.chat {
		c.Object = "chat.completion.chunk"
	}
	if c.Choices == nil {
		c.Choices = []chunkChoice{}
	}
	return c
}

// piece is the choice that carries some text.
func (o *reply) piece(said, role string, ends bool) chunkChoice {
	var c chunkChoice
	if o.chat {
		c.Delta = &delta{Role: role, Content: &said}
	} else {
		c.Text = &said
	}
	if ends {
		c.FinishReason = &reason
	}
	return c
}

// stream answers with server-sent events. Its status is sent before the engine
// has said anything, so errors are events too.
func (o *reply) stream(ctx context.Context, w http.ResponseWriter) {
	tokens := make(chan uint32, o.c.MaxTokens) // never blocks the engine
	type result struct {
		a   Answer
		err error
	}
	ended := make(chan result, 1)
	go func() {
		a, err := o.h.e.Complete(ctx, o.c, func(t uint32) { tokens <- t })
		close(tokens)
		ended <- result{a, err}
	}()
	rc := http.NewResponseController(w)
	send := func(v any) {
		data, err := json.Marshal(v)
		if err == nil {
			fmt.Fprintf(w, "data: %s\n\n", data)
			_ = rc.Flush() // the client may have gone; ctx tells
		}
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush()
	if o.chat {
		send(o.chunk(o.piece("", "assistant", false)))
	}
	final, continuous := o.b.usage()
	n := 0
	event := func(t uint32, ends bool) chunk {
		n++
		c := o.chunk(o.piece(text([]uint32{t}), "", ends))
		if continuous {
			u := o.usage(n, 0)
			c.Usage = &u
		}
		return c
	}
	var last uint32
	for t := range tokens {
		if last = t; n < o.c.MaxTokens-1 {
			send(event(t, false))
		}
	}
	r := <-ended
	if r.err != nil {
		o.h.e.opts.Logger.Error("request failed", "request_id", o.id, "err", r.err)
		send(describe(r.err))
	} else {
		c := event(last, true)
		c.KVTransferParams = r.a.Params
		send(c)
		if final {
			c := o.chunk()
			u := o.usage(n, o.cached(r.a))
			c.Usage = &u
			send(c)
		}
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
