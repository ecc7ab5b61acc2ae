package httpapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// The routes that add and remove storage at run time. There is none to change
// here, but a body is looked at first, as in the reference (lmcache 0.5.6,
// v1/multiprocess/http_apis, reconfigure_api and l1_reconfigure_api): a script
// hears of its own mistake before it hears that there is no such tier.

// adapterStatus is the answer of GET /reconfigure/{backend}/l2/status.
type adapterStatus struct {
	Enabled     bool       `json:"enabled"`
	Backend     string     `json:"backend"`
	NumAdapters int        `json:"num_adapters"`
	Adapters    []struct{} `json:"adapters"`
}

// segment is a part of the path as the reference compares it.
func segment(r *http.Request, name string) string {
	return strings.ToLower(strings.TrimSpace(r.PathValue(name)))
}

func adaptersStatus(w http.ResponseWriter, r *http.Request) {
	backend := segment(r, "backend")
	if backend == "" {
		writeError(w, http.StatusBadRequest, "backend must be non-empty")
		return
	}
	writeJSON(w, http.StatusOK, adapterStatus{Backend: backend, Adapters: []struct{}{}})
}

func noDAX(w http.ResponseWriter, _ *http.Request) {
	writeError(w, http.StatusConflict, "L1 is not Device-DAX backed (--l1-devdax-path not set)")
}

const sizeWords = "size must be a positive integer byte count or a string like '100GiB'"

// changeDAX is POST /reconfigure/dax/l1/add and remove.
func changeDAX(size bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		in, ok := requireBody(w, r, modelBody)
		if !ok {
			return
		}
		in.text("device_path", true)
		fits := true
		if size {
			fits = in.size()
			in.forbid("device_path", "size")
		} else {
			in.word("enum", "drain")
			in.forbid("device_path", "mode")
		}
		switch {
		case len(*in.problems) > 0:
			writeInvalid(w, *in.problems...)
		case !fits:
			writeError(w, http.StatusBadRequest, sizeWords)
		default:
			noDAX(w, r)
		}
	}
}

// changeAdapter is POST /reconfigure/{backend}/l2/{operation}.
func changeAdapter(w http.ResponseWriter, r *http.Request) {
	in, ok := requireBody(w, r, dictBody)
	if !ok {
		return
	}
	backend, operation := segment(r, "backend"), segment(r, "operation")
	switch {
	case backend == "":
		writeError(w, http.StatusBadRequest, "backend must be non-empty")
		return
	case operation == "":
		writeError(w, http.StatusBadRequest, "operation must be non-empty")
		return
	}
	in.loc = []any{} // the reference reads these bodies by hand
	in.integer("adapter_index", false)
	fits := true
	if backend == "dax" {
		modes := map[string][]string{"add": nil, "remove": {"migrate", "evict", "drain"}, "resize": {"migrate", "evict"}}
		words, known := modes[operation]
		if !known {
			writeError(w, http.StatusBadRequest, "unsupported dax reconfigure operation: "+operation)
			return
		}
		names := []string{"adapter_index", "device_path"}
		in.text("device_path", true)
		if operation != "remove" {
			fits = in.size()
			names = append(names, "size")
		}
		if words != nil {
			in.word("literal_error", words...)
			_, bad := boolField(in.fields, "force")
			if bad != nil {
				bad.Loc = in.where("force")
			}
			in.note(bad)
			names = append(names, "mode", "force")
		}
		in.forbid(names...)
	}
	switch {
	case len(*in.problems) > 0:
		writeInvalid(w, *in.problems...)
	case !fits:
		writeError(w, http.StatusBadRequest, sizeWords)
	default:
		writeError(w, http.StatusNotFound, backend+" adapter not found")
	}
}

// word reads the optional mode, one of some words.
func (r reader) word(typ string, words ...string) {
	_, bad := enumField(r.fields, "mode", words[0], words...)
	if bad != nil {
		bad.Type, bad.Loc = typ, r.where("mode")
	}
	r.note(bad)
}

// sizeText is what the reference reads as a size: powers of 1024, whatever the
// unit is called.
var sizeText = regexp.MustCompile(`(?i)^(\d+(?:\.\d+)?)\s*(?:b|[kmgt](?:i?b)?)?$`)

// size reads the field of that name and reports whether it is a positive size.
// What is neither a string nor an integer is a problem noted.
func (r reader) size() bool {
	raw, ok := r.raw("size", true)
	if !ok {
		return true // noted
	}
	raw = bytes.TrimSpace(raw)
	var text string
	if json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		m := sizeText.FindStringSubmatch(strings.TrimSpace(text))
		return len(text) <= 64 && m != nil && strings.Trim(m[1], "0.") != ""
	}
	if c := raw[0]; (c == '-' || c >= '0' && c <= '9') && !bytes.ContainsAny(raw, ".eE") {
		return c != '-' && strings.Trim(string(raw), "0") != ""
	}
	for _, as := range []struct{ kind, typ, msg string }{
		{"int", "int_type", "Input should be a valid integer"},
		{"str", "string_type", "Input should be a valid string"},
	} {
		r.note(&invalid{Type: as.typ, Loc: append(r.where("size"), as.kind), Msg: as.msg, Input: raw})
	}
	return true
}

// forbid notes every field that is not one of names.
func (r reader) forbid(names ...string) {
	for _, name := range slices.Sorted(maps.Keys(r.fields)) {
		if !slices.Contains(names, name) {
			r.bad("extra_forbidden", name, "Extra inputs are not permitted")
		}
	}
}
