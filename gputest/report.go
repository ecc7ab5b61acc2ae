package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
)

// result is one case or measurement.
type result struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Text  string `json:"text,omitempty"`
	// Values are measurements by name; the unit is in the name.
	Values map[string]float64 `json:"values,omitempty"`
}

// report collects results and prints them as they come.
type report struct {
	w io.Writer

	mu      sync.Mutex
	results []result
}

func (r *report) add(x result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, x)
	mark := "ok  "
	if !x.OK {
		mark = "FAIL"
	}
	fmt.Fprintf(r.w, "%s  %-6s  %-44s  %s\n", mark, x.Group, x.Name, x.Text)
}

// note is a result that cannot fail.
func (r *report) note(group, format string, args ...any) {
	r.add(result{Group: group, Name: "note", OK: true, Text: fmt.Sprintf(format, args...)})
}

// outcome adds a case by its error.
func (r *report) outcome(group, name string, err error, text string) {
	if err != nil {
		text = err.Error()
	}
	r.add(result{Group: group, Name: name, OK: err == nil, Text: text})
}

func (r *report) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.results {
		if !x.OK {
			return true
		}
	}
	return false
}

// print writes the verdict and the JSON, and returns the exit code.
func (r *report) print(w io.Writer, path string) int {
	failed := 0
	for _, x := range r.results {
		if !x.OK {
			failed++
		}
	}
	fmt.Fprintf(w, "\n%d results, %d failed\n", len(r.results), failed)
	code := 0
	if failed > 0 {
		code = 1
	}
	if path == "" {
		return code
	}
	b, err := json.MarshalIndent(r.results, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(b, '\n'), 0o600)
	}
	if err != nil {
		fmt.Fprintf(w, "the report could not be written: %v\n", err)
		return 1
	}
	return code
}
