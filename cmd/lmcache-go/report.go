package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// report is what a command tells: named values, in sections and tables. It is
// written for people or as JSON; both look as the reference's do (server-surface
// 13), so that scripts which read either go on.
type report struct {
	title    string
	width    int // of the table for people, in characters
	sections []*section
}

// Widths of the reference's tables.
const (
	widthPing     = 30
	widthDefault  = 48
	widthDescribe = 50
	widthQuotas   = 55
)

// section is a part of a report: entries, or, with columns, a table.
type section struct {
	// list names the JSON list that the section is an element of; the first
	// section of a report has none, its entries are the report's own.
	list, label string
	entries     []entry
	columns     []column
	rows        [][]any
}

type entry struct {
	key, label string
	value      any
}

type column struct{ key, header string }

func newReport(title string, width int) *report {
	return &report{title: title, width: width, sections: []*section{{}}}
}

// add appends a value to the report itself. A value is nil (shown as N/A), a
// string, bool, number, or json.Number.
func (r *report) add(key, label string, v any) { r.sections[0].add(key, label, v) }

// section starts a part with a header, an element of the JSON list of that name.
func (r *report) section(list, label string) *section {
	s := &section{list: list, label: label}
	r.sections = append(r.sections, s)
	return s
}

// table starts a part of aligned columns.
func (r *report) table(list, label string, columns ...column) *section {
	s := r.section(list, label)
	s.columns = columns
	return s
}

func (s *section) add(key, label string, v any) {
	s.entries = append(s.entries, entry{key, label, v})
}

// row appends a line to a table, a value for each column.
func (s *section) row(values ...any) { s.rows = append(s.rows, values) }

// show writes a value for people: floats with two decimals, booleans as Python
// does.
func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "N/A"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case float64:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case json.Number:
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), ".eE") {
			return show(f)
		}
		return v.String()
	default:
		return fmt.Sprint(v)
	}
}

// center pads text on both sides, as Python's str.center.
func center(text string, width int, with string) string {
	pad := width - utf8.RuneCountInString(text)
	if pad <= 0 {
		return text
	}
	left := pad/2 + pad&width&1
	return strings.Repeat(with, left) + text + strings.Repeat(with, pad-left)
}

// terminal is the report for people.
func (r *report) terminal() string {
	var b strings.Builder
	line := func(s string) { b.WriteString(s + "\n") }
	line(center(" "+r.title+" ", r.width, "="))
	for _, s := range r.sections {
		if s.label != "" {
			line(center(" "+s.label+" ", r.width, "-"))
		}
		for _, e := range s.entries {
			label, text := e.label+":", show(e.value)
			pad := r.width - utf8.RuneCountInString(label) - utf8.RuneCountInString(text)
			line(label + strings.Repeat(" ", max(1, pad)) + text)
		}
		if s.columns != nil {
			s.writeTable(line)
		}
	}
	line(strings.Repeat("=", r.width))
	return b.String()
}

// writeTable aligns columns by their content: numbers to the right.
func (s *section) writeTable(line func(string)) {
	width := make([]int, len(s.columns))
	right := make([]bool, len(s.columns))
	cells := make([][]string, 0, len(s.rows)+1)
	head := make([]string, len(s.columns))
	for i, c := range s.columns {
		head[i], width[i], right[i] = c.header, len(c.header), len(s.rows) > 0
	}
	cells = append(cells, head)
	for _, values := range s.rows {
		row := make([]string, len(s.columns))
		for i, v := range values {
			row[i] = show(v)
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
			if _, err := strconv.ParseFloat(row[i], 64); err != nil {
				right[i] = false
			}
		}
		cells = append(cells, row)
	}
	for _, row := range cells {
		out := make([]string, len(row))
		for i, text := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(text))
			if right[i] {
				out[i] = pad + text
			} else {
				out[i] = text + pad
			}
		}
		line(strings.TrimRight(strings.Join(out, "  "), " "))
	}
	if len(s.rows) == 0 {
		line("(none)")
	}
}

// object is a JSON object that keeps its order.
type object []entry

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		for j, v := range []any{e.key, e.value} {
			if j > 0 {
				b.WriteByte(':')
			}
			if f, ok := v.(float64); ok {
				v = json.Number(pythonFloat(f))
			}
			data, err := encode(v)
			if err != nil {
				return nil, err
			}
			b.Write(data)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// pythonFloat writes a whole number with a decimal point: a float stays one.
func pythonFloat(f float64) string {
	s := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// encode is json.Marshal without escaping what is special in HTML only.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// json is the report for programs.
func (r *report) json() (string, error) {
	metrics := object(r.sections[0].entries)
	lists := map[string]int{}
	for _, s := range r.sections[1:] {
		var elements []object
		if s.columns == nil {
			elements = append(elements, object(s.entries))
		}
		for _, values := range s.rows {
			var o object
			for i, c := range s.columns {
				o = append(o, entry{key: c.key, value: values[i]})
			}
			elements = append(elements, o)
		}
		at, known := lists[s.list]
		if !known {
			at = len(metrics)
			lists[s.list] = at
			metrics = append(metrics[:at:at], entry{key: s.list, value: []object{}})
		}
		list, _ := metrics[at].value.([]object)
		metrics[at].value = append(list, elements...)
	}
	return indent(object{{key: "title", value: r.title}, {key: "metrics", value: metrics}})
}

// indent is v as JSON for people, a line more at its end.
func indent(v any) (string, error) {
	compact, err := encode(v)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, compact, "", "  "); err != nil {
		return "", err
	}
	b.WriteByte('\n')
	return b.String(), nil
}
