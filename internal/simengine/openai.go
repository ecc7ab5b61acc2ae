package simengine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// body is what is read of a request; everything else is ignored, as routers add
// fields of their own.
type body struct {
	Model    string          `json:"model"`
	Prompt   json.RawMessage `json:"prompt"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	MaxTokens           *int  `json:"max_tokens"`
	MaxCompletionTokens *int  `json:"max_completion_tokens"`
	N                   *int  `json:"n"`
	Stream              bool  `json:"stream"`
	Echo                *bool `json:"echo"`
	StreamOptions       *struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	CacheSalt        string                     `json:"cache_salt"`
	KVTransferParams map[string]json.RawMessage `json:"kv_transfer_params"`
}

// usage asked for in a stream.
func (b *body) usage() (final, continuous bool) {
	if b.StreamOptions == nil {
		return false, false
	}
	return b.StreamOptions.IncludeUsage, b.StreamOptions.IncludeUsage && b.StreamOptions.ContinuousUsageStats
}

// promptTokens reads the prompt of a completion: text, or token ids, or a list
// with one of these.
func (b *body) promptTokens() ([]uint32, error) {
	raw := b.Prompt
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && len(list) == 1 && len(list[0]) > 0 && bytes.ContainsAny(list[0][:1], `"[`) {
		raw = list[0]
	}
	var ids []uint32
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		return ids, nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil || len(raw) == 0 || string(raw) == "null" {
		return nil, &apiError{status: http.StatusBadRequest, param: "prompt", text: "prompt must be a string or a list of token ids; lists of prompts are not simulated"}
	}
	if text == "" {
		return nil, &apiError{status: http.StatusBadRequest, param: "prompt", text: "The decoder prompt cannot be empty"}
	}
	return tokensOf(text), nil
}

// chatTokens renders messages by a template of our own.
func (b *body) chatTokens() ([]uint32, error) {
	if len(b.Messages) == 0 {
		return nil, &apiError{status: http.StatusBadRequest, param: "messages", text: "messages must be a list with at least one message"}
	}
	var s strings.Builder
	for _, m := range b.Messages {
		text, err := contentText(m.Content)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&s, "<%s>%s\n", m.Role, text)
	}
	return tokensOf(s.String()), nil
}

// contentText reads a message's content: a string, or parts with text.
func contentText(raw json.RawMessage) (string, error) {
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil { // null is ""
		return text, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", &apiError{status: http.StatusBadRequest, param: "messages", text: "content must be a string or a list of parts"}
	}
	for _, p := range parts {
		if p.Type != "text" {
			return "", &apiError{status: http.StatusBadRequest, param: "messages", text: fmt.Sprintf("content of type %q is not simulated: use text", p.Type)}
		}
		text += p.Text
	}
	return text, nil
}

// tokensOf is the tokenizer: a token is a byte.
func tokensOf(text string) []uint32 {
	out := make([]uint32, len(text))
	for i := range out {
		out[i] = uint32(text[i])
	}
	return out
}

func text(tokens []uint32) string {
	b := make([]byte, len(tokens))
	for i, t := range tokens {
		b[i] = byte(t)
	}
	return string(b)
}

// The objects have vLLM 0.33's fields in its order; nulls are sent where it
// sends them (entrypoints/openai/{completion,chat_completion}/protocol.py).

type usage struct {
	PromptTokens     int            `json:"prompt_tokens"`
	TotalTokens      int            `json:"total_tokens"`
	CompletionTokens int            `json:"completion_tokens"`
	Details          *promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type choice struct {
	Index        int      `json:"index"`
	Text         *string  `json:"text,omitempty"`
	Message      *message `json:"message,omitempty"`
	Logprobs     *string  `json:"logprobs"` // always null
	FinishReason *string  `json:"finish_reason"`
	StopReason   *string  `json:"stop_reason"` // always null
}

type completion struct {
	ID               string   `json:"id"`
	Object           string   `json:"object"`
	Created          int64    `json:"created"`
	Model            string   `json:"model"`
	Choices          []choice `json:"choices"`
	ServiceTier      *string  `json:"service_tier"`       // always null
	Fingerprint      *string  `json:"system_fingerprint"` // always null
	Usage            usage    `json:"usage"`
	KVTransferParams kvParams `json:"kv_transfer_params"`
}

type delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chunkChoice struct {
	Index        int     `json:"index"`
	Text         *string `json:"text,omitempty"`
	Delta        *delta  `json:"delta,omitempty"`
	Logprobs     *string `json:"logprobs"` // always null
	FinishReason *string `json:"finish_reason"`
}

type chunk struct {
	ID               string        `json:"id"`
	Object           string        `json:"object"`
	Created          int64         `json:"created"`
	Model            string        `json:"model"`
	Choices          []chunkChoice `json:"choices"`
	Usage            *usage        `json:"usage,omitempty"`
	KVTransferParams kvParams      `json:"kv_transfer_params,omitempty"`
}

// kvParams are kv_transfer_params that are written in vLLM's order.
type kvParams map[string]json.RawMessage

// paramOrder is that of vLLM 0.33 (nixl/pull_scheduler.py, core/sched/scheduler.py).
var paramOrder = []string{
	"do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port",
	"tp_size", "dcp_size", "pp_size", "remote_num_tokens", "remote_blocks_expiry_time", "remote_registration_generation", "transfer_mode",
	"remote_prefill_cached_tokens",
}

// MarshalJSON writes the known keys first, and the others by name.
func (p kvParams) MarshalJSON() ([]byte, error) {
	if p == nil {
		return []byte("null"), nil
	}
	keys := slices.DeleteFunc(slices.Clone(paramOrder), func(k string) bool { _, ok := p[k]; return !ok })
	for _, k := range slices.Sorted(maps.Keys(p)) {
		if !slices.Contains(paramOrder, k) {
			keys = append(keys, k)
		}
	}
	b := []byte{'{'}
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		name, err := json.Marshal(k)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, name...), ':'), p[k]...)
	}
	return append(b, '}'), nil
}

// apiError is an error with vLLM's shape.
type apiError struct {
	status int
	param  string
	text   string
}

func (e *apiError) Error() string { return e.text }

type errorInfo struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// describe turns an error of the engine into what the client gets. A failed
// load is told as vLLM tells it, without the reason: that is in the log.
func describe(err error) map[string]errorInfo {
	info := errorInfo{Message: err.Error(), Type: "InternalServerError", Code: http.StatusInternalServerError}
	var api *apiError
	switch {
	case errors.As(err, &api):
		info.Code = api.status
		if api.param != "" {
			info.Param = &api.param
		}
	case errors.Is(err, ErrTooLong):
		info.Code = http.StatusBadRequest
	case errors.Is(err, ErrLoadFailed):
		info.Message = "Internal server error"
	}
	switch info.Code {
	case http.StatusBadRequest:
		info.Type = "BadRequestError"
	case http.StatusNotFound:
		info.Type = "NotFoundError"
	}
	return map[string]errorInfo{"error": info}
}
