package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// Float is a number that JSON writes with a decimal point even when it is whole,
// as Python does: clients that look at types see a float in both servers.
type Float float64

// MarshalJSON implements [json.Marshaler]. What JSON cannot say is written as 0.
func (f Float) MarshalJSON() ([]byte, error) {
	v := float64(f)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		v = 0
	}
	b := strconv.AppendFloat(nil, v, 'g', -1, 64)
	if !bytes.ContainsAny(b, ".e") {
		b = append(b, '.', '0')
	}
	return b, nil
}

// writeJSON answers with v in compact JSON.
func writeJSON(w http.ResponseWriter, status int, v any) { writeValue(w, status, v, "") }

// writeIndented answers with v in JSON for people.
func writeIndented(w http.ResponseWriter, status int, v any) { writeValue(w, status, v, "  ") }

func writeValue(w http.ResponseWriter, status int, v any, indent string) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		writeText(w, http.StatusInternalServerError, "Internal Server Error")
		return
	}
	body := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone: nobody else to tell
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// writeDetail is the error shape of the cache and config routes and of routing itself.
func writeDetail(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, status, map[string]string{"detail": detail})
}

// writeError is the error shape of the status, quota and reconfigure routes.
func writeError(w http.ResponseWriter, status int, text string) {
	writeJSON(w, status, map[string]string{"error": text})
}

// invalid is one entry of a 422 answer: what is wrong, and where. Its words are
// the reference's types; its messages need not be (pydantic writes those).
type invalid struct {
	Type  string `json:"type"`
	Loc   []any  `json:"loc"`
	Msg   string `json:"msg"`
	Input any    `json:"input"`
	Ctx   any    `json:"ctx,omitempty"`
}

func writeInvalid(w http.ResponseWriter, list ...invalid) {
	writeJSON(w, http.StatusUnprocessableEntity, map[string][]invalid{"detail": list})
}

// What the reference calls a body that is no object, by how a route declares it.
const (
	dataclassBody = "dataclass_type"        // the cache group
	modelBody     = "model_attributes_type" // /reconfigure/dax/l1
	dictBody      = "dict_type"             // /reconfigure/{backend}/l2
)

// readObject reads a JSON object from the body. An empty body or null gives nil.
// When it reports false, the answer has been written; object is the type of the
// problem of a body that is something else.
func readObject(w http.ResponseWriter, r *http.Request, object string) (map[string]json.RawMessage, bool) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			writeDetail(w, http.StatusRequestEntityTooLarge,
				"request body is larger than "+strconv.FormatInt(tooLarge.Limit, 10)+" bytes")
		} else {
			writeDetail(w, http.StatusBadRequest, "request body could not be read")
		}
		return nil, false
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, true
	}
	var parsed any
	if err := json.Unmarshal(data, &parsed); err != nil {
		pos := len(data)
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) && syntax.Error() != "unexpected end of JSON input" {
			pos = int(syntax.Offset) - 1 // the byte that should not be there
		}
		writeInvalid(w, invalid{
			Type: "json_invalid", Loc: []any{"body", pos}, Msg: "JSON decode error",
			Input: struct{}{}, Ctx: map[string]string{"error": err.Error()},
		})
		return nil, false
	}
	switch parsed.(type) {
	case nil:
		return nil, true
	case map[string]any:
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(data, &fields); err == nil {
			return fields, true
		}
	}
	writeInvalid(w, invalid{Type: object, Loc: []any{"body"}, Msg: "Input should be a dictionary", Input: parsed})
	return nil, false
}

// Words that the reference's validator takes for a boolean (pydantic, lax mode).
var boolWords = map[string]bool{
	"true": true, "t": true, "yes": true, "y": true, "on": true, "1": true,
	"false": false, "f": false, "no": false, "n": false, "off": false, "0": false,
}

// boolField reads an optional boolean, false by default, as leniently as the reference.
func boolField(fields map[string]json.RawMessage, name string) (bool, *invalid) {
	raw, ok := fields[name]
	if !ok {
		return false, nil
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		v = string(raw)
	}
	bad := &invalid{Type: "bool_parsing", Loc: []any{"body", name}, Msg: "Input should be a valid boolean, unable to interpret input", Input: v}
	switch v := v.(type) {
	case bool:
		return v, nil
	case string:
		if b, ok := boolWords[strings.ToLower(v)]; ok {
			return b, nil
		}
		return false, bad
	case float64:
		if v == 0 || v == 1 {
			return v == 1, nil
		}
		return false, bad
	}
	bad.Type, bad.Msg = "bool_type", "Input should be a valid boolean"
	return false, bad
}

// enumField reads an optional string that must be one of words.
func enumField(fields map[string]json.RawMessage, name, def string, words ...string) (string, *invalid) {
	raw, ok := fields[name]
	if !ok {
		return def, nil
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		v = string(raw)
	}
	if s, ok := v.(string); ok {
		for _, w := range words {
			if s == w {
				return s, nil
			}
		}
	}
	expected := orList(words)
	return def, &invalid{
		Type: "enum", Loc: []any{"body", name}, Msg: "Input should be " + expected,
		Input: v, Ctx: map[string]string{"expected": expected},
	}
}

// orList quotes and joins words: 'a', 'b' or 'c'.
func orList(words []string) string {
	var b strings.Builder
	for i, w := range words {
		switch {
		case i > 0 && i == len(words)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString("'" + w + "'")
	}
	return b.String()
}
