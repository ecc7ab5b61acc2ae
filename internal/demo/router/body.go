package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// field is one key of an object whose order matters.
type field struct {
	key string
	raw json.RawMessage
}

// object is a JSON object in its order, with the operations of the map that the
// router uses (serde_json's, with preserve_order).
type object []field

var errBody = errors.New("the body must be a JSON object")

func parseObject(data []byte) (object, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errBody
	}
	var o object
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errBody, err)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, fmt.Errorf("%w: %w", errBody, err)
		}
		name, ok := key.(string)
		if !ok {
			return nil, errBody
		}
		o.set(name, raw)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("%w: %w", errBody, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w, and nothing behind it", errBody)
	}
	return o, nil
}

func (o *object) find(key string) int {
	return slices.IndexFunc(*o, func(f field) bool { return f.key == key })
}

func (o *object) get(key string) json.RawMessage {
	if i := o.find(key); i >= 0 {
		return (*o)[i].raw
	}
	return nil
}

// set replaces a value where it stands, or adds it at the end.
func (o *object) set(key string, raw json.RawMessage) {
	if i := o.find(key); i >= 0 {
		(*o)[i].raw = raw
		return
	}
	*o = append(*o, field{key, raw})
}

// remove puts the last field in the place of the removed one.
func (o *object) remove(key string) {
	if i := o.find(key); i >= 0 {
		last := len(*o) - 1
		(*o)[i] = (*o)[last]
		*o = (*o)[:last]
	}
}

func (o *object) bytes() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range *o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, f.key), ':')
		var err error
		if b, err = appendValue(b, f.raw); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// appendValue writes a value without blanks, its strings as serde_json does.
func appendValue(b []byte, raw json.RawMessage) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var closers []json.Delim
	first := true // of its level
	key := false  // the next string is one
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		if c, ok := t.(json.Delim); ok && (c == '}' || c == ']') {
			b = append(b, byte(c))
			closers = closers[:len(closers)-1]
			first, key = false, len(closers) > 0 && closers[len(closers)-1] == '}'
			continue
		}
		inObject := len(closers) > 0 && closers[len(closers)-1] == '}'
		if !first && len(closers) > 0 && (!inObject || key) {
			b = append(b, ',')
		}
		first = false
		switch v := t.(type) {
		case json.Delim:
			b = append(b, byte(v))
			closers = append(closers, v+2) // '{' and '}', '[' and ']' are two apart
			first, key = true, v == '{'
			continue
		case string:
			b = appendString(b, v)
		case json.Number:
			b = append(b, v...)
		case bool:
			b = strconv.AppendBool(b, v)
		case nil:
			b = append(b, "null"...)
		}
		if inObject {
			if key {
				b = append(b, ':')
			}
			key = !key
		}
	}
}

// appendString escapes what JSON demands and nothing else.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\b':
			b = append(b, '\\', 'b')
		case c == '\f':
			b = append(b, '\\', 'f')
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < 0x20:
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// schema is what the router knows of a path: the fields in their order, each
// with what stands for it when the client leaves it out ("" for nothing).
type schema []struct{ key, absent string }

// Requests of vllm-router 0.1.17 (src/protocols/spec.rs). Keys that are not
// listed follow in the client's order.
var schemas = map[string]schema{
	"/v1/completions": {
		{"model", ""},
		{"prompt", ""},
		{"suffix", ""},
		{"max_tokens", ""},
		{"temperature", ""},
		{"top_p", ""},
		{"n", ""},
		{"stream", "false"},
		{"stream_options", ""},
		{"logprobs", ""},
		{"echo", "false"},
		{"stop", ""},
		{"presence_penalty", ""},
		{"frequency_penalty", ""},
		{"best_of", ""},
		{"logit_bias", ""},
		{"user", ""},
		{"seed", ""},
		{"top_k", ""},
		{"min_p", ""},
		{"min_tokens", ""},
		{"repetition_penalty", ""},
		{"regex", ""},
		{"ebnf", ""},
		{"json_schema", ""},
		{"stop_token_ids", ""},
		{"no_stop_trim", "false"},
		{"ignore_eos", "false"},
		{"skip_special_tokens", "true"},
		{"lora_path", ""},
		{"session_params", ""},
		{"return_hidden_states", "false"},
	},
	"/v1/chat/completions": {
		{"model", ""},
		{"messages", ""},
		{"temperature", ""},
		{"top_p", ""},
		{"n", ""},
		{"stream", "false"},
		{"stream_options", ""},
		{"stop", ""},
		{"max_tokens", ""},
		{"max_completion_tokens", ""},
		{"presence_penalty", ""},
		{"frequency_penalty", ""},
		{"logit_bias", ""},
		{"user", ""},
		{"seed", ""},
		{"logprobs", "false"},
		{"top_logprobs", ""},
		{"response_format", ""},
		{"tools", ""},
		{"tool_choice", ""},
		{"parallel_tool_calls", ""},
		{"functions", ""},
		{"function_call", ""},
		{"top_k", ""},
		{"min_p", ""},
		{"min_tokens", ""},
		{"repetition_penalty", ""},
		{"regex", ""},
		{"ebnf", ""},
		{"stop_token_ids", ""},
		{"no_stop_trim", "false"},
		{"ignore_eos", "false"},
		{"add_generation_prompt", ""},
		{"continue_final_message", "false"},
		{"skip_special_tokens", "true"},
		{"lora_path", ""},
		{"session_params", ""},
		{"separate_reasoning", "true"},
		{"stream_reasoning", "true"},
		{"chat_template_kwargs", ""},
		{"return_hidden_states", "false"},
		{"echo", ""},
		{"reasoning_effort", ""},
		{"include_reasoning", "true"},
		{"structured_outputs", ""},
	},
	"/generate": {
		{"text", ""}, {"stream", "false"}, {"return_logprob", "false"}, {"return_hidden_states", "false"},
	},
}

// floats are fields that the router reads as 32-bit floats.
var floats = []string{"temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty"}

// normalize puts a client's body into the router's form.
func normalize(path string, in object) object {
	known := schemas[path]
	if known == nil {
		return in
	}
	var out object
	listed := make(map[string]bool, len(known))
	for _, f := range known {
		listed[f.key] = true
		raw := in.get(f.key)
		switch {
		case raw != nil && string(raw) != "null":
			if slices.Contains(floats, f.key) {
				raw = float(raw)
			}
			out = append(out, field{f.key, raw})
		case f.absent != "":
			out = append(out, field{f.key, json.RawMessage(f.absent)})
		}
	}
	for _, f := range in {
		if !listed[f.key] {
			out = append(out, f)
		}
	}
	return out
}

// float writes a number as Rust does a 32-bit float.
func float(raw json.RawMessage) json.RawMessage {
	v, err := strconv.ParseFloat(string(raw), 32)
	if err != nil {
		return raw
	}
	s := strconv.FormatFloat(v, 'f', -1, 32)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return json.RawMessage(s)
}

const (
	one       = "1"
	kvParams  = "kv_transfer_params"
	forDecode = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
)

// prefillBody asks for one token, and for the KV to be kept.
func prefillBody(path string, o object) ([]byte, error) {
	o = slices.Clone(o)
	if path == "/v1/responses" {
		o.set("max_output_tokens", json.RawMessage(one))
	} else {
		o.set("max_tokens", json.RawMessage(one))
		o.set("min_tokens", json.RawMessage(one))
		if o.find("max_completion_tokens") >= 0 {
			o.set("max_completion_tokens", json.RawMessage(one))
		}
	}
	o.set("stream", json.RawMessage("false"))
	o.remove("stream_options")
	o.set(kvParams, json.RawMessage(forDecode))
	return o.bytes()
}

// decodeBody is the client's request with what the prefill engine answered.
func decodeBody(o object, params json.RawMessage) ([]byte, error) {
	if params == nil {
		params = json.RawMessage("null")
	}
	o = slices.Clone(o)
	o.set(kvParams, params)
	return o.bytes()
}
