package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
)

// reader takes the fields of a JSON object as the reference's validator does,
// and collects everything that is wrong with them.
type reader struct {
	fields   map[string]json.RawMessage
	whole    any   // the object itself, shown beside a missing field
	loc      []any // where it stands in the body
	problems *[]invalid
}

// newReader reads fields, which [readObject] has returned.
func newReader(fields map[string]json.RawMessage) reader {
	return reader{fields: fields, whole: fields, loc: []any{"body"}, problems: new([]invalid)}
}

// at is a reader of an object inside r's; it reports false, with a problem noted, when raw is none.
func (r reader) at(raw json.RawMessage, loc ...any) (reader, bool) {
	in := reader{loc: append(append([]any{}, r.loc...), loc...), problems: r.problems}
	if err := json.Unmarshal(raw, &in.fields); err != nil || in.fields == nil {
		*r.problems = append(*r.problems, invalid{
			Type: "dataclass_type", Loc: in.loc,
			Msg: "Input should be a dictionary", Input: raw,
		})
		return in, false
	}
	in.whole = in.fields
	return in, true
}

func (r reader) where(name string) []any { return append(append([]any{}, r.loc...), name) }

func (r reader) bad(typ, name, msg string) {
	*r.problems = append(*r.problems, invalid{Type: typ, Loc: r.where(name), Msg: msg, Input: r.fields[name]})
}

// raw finds a field; a required one that is not there is a problem.
func (r reader) raw(name string, required bool) (json.RawMessage, bool) {
	v, ok := r.fields[name]
	if !ok && required {
		*r.problems = append(*r.problems, invalid{Type: "missing", Loc: r.where(name), Msg: "Field required", Input: r.whole})
	}
	return v, ok
}

// text reads a string.
func (r reader) text(name string, required bool) string {
	raw, ok := r.raw(name, required)
	if !ok {
		return ""
	}
	var v *string
	if json.Unmarshal(raw, &v) != nil || v == nil {
		r.bad("string_type", name, "Input should be a valid string")
		return ""
	}
	return *v
}

// integer reads a whole number.
func (r reader) integer(name string, required bool) int64 {
	raw, ok := r.raw(name, required)
	if !ok {
		return 0
	}
	v, bad := readInt(raw, r.where(name)...)
	r.note(bad)
	return v
}

// list reads an array.
func (r reader) list(name string) []json.RawMessage {
	raw, ok := r.raw(name, true)
	if !ok {
		return nil
	}
	var v []json.RawMessage
	if json.Unmarshal(raw, &v) != nil || v == nil {
		r.bad("list_type", name, "Input should be a valid list")
	}
	return v
}

// note adds the problem that a field reader of json.go has found.
func (r reader) note(bad *invalid) {
	if bad != nil {
		*r.problems = append(*r.problems, *bad)
	}
}

// queryBool reads an optional boolean of the query.
func queryBool(r *http.Request, name string) (bool, *invalid) {
	q := r.URL.Query()
	if !q.Has(name) {
		return false, nil
	}
	v, ok := boolWords[strings.ToLower(q.Get(name))]
	if !ok {
		return false, &invalid{
			Type: "bool_parsing", Loc: []any{"query", name},
			Msg: "Input should be a valid boolean, unable to interpret input", Input: q.Get(name),
		}
	}
	return v, nil
}

// requireBody reads the JSON object that a request must have, as [readObject] does.
// When it reports false, the answer has been written.
func requireBody(w http.ResponseWriter, r *http.Request, object string) (reader, bool) {
	fields, ok := readObject(w, r, object)
	if ok && fields == nil {
		writeInvalid(w, invalid{Type: "missing", Loc: []any{"body"}, Msg: "Field required"})
		ok = false
	}
	return newReader(fields), ok
}

// quote writes a text as Python's repr does, for the words of error messages.
func quote(s string) string {
	q := "'"
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = `"`
	}
	return q + strings.NewReplacer(`\`, `\\`, q, `\`+q, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\x00", `\x00`).Replace(s) + q
}
