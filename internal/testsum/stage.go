package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// A tally is the result of one stage.
type tally struct {
	Name    string
	Passed  int
	Failed  int
	Skipped []skip
}

// A skip is a test that did not run.
type skip struct {
	Test   string // package and test
	Reason string // what t.Skip was told
}

func (t *tally) save(file string) error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}

// runStage runs argv and counts what it reports.
func runStage(name string, argv []string, plain bool, out io.Writer) (*tally, error) {
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // ends with this process, which has no other work
	cmd.Stderr = out
	t := &tally{Name: name}
	if plain {
		cmd.Stdout = out
		err := cmd.Run()
		if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
			return nil, err
		}
		if err != nil {
			t.Failed = 1
		} else {
			t.Passed = 1
		}
		return t, nil
	}

	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	readErr := newCounter(t, out).read(pipe)
	waitErr := cmd.Wait()
	if failed := (*exec.ExitError)(nil); waitErr != nil && !errors.As(waitErr, &failed) {
		return nil, waitErr
	}
	if readErr != nil {
		return nil, readErr
	}
	if waitErr != nil && t.Failed == 0 { // go test could not even begin
		fmt.Fprintf(out, "FAIL %s: %v, without naming a test\n", name, waitErr)
		t.Failed = 1
	}
	return t, nil
}

// event is one line of `go test -json` (see go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build events
	Test       string
	Output     string
	Elapsed    float64
}

// counter turns events into a tally and into what a person wants to see.
type counter struct {
	tally  *tally
	out    io.Writer
	output map[string]*bytes.Buffer // by package and test, until it ends
	tests  map[string]int           // finished tests by package
	failed map[string]int           // failed tests by package
}

func newCounter(t *tally, out io.Writer) *counter {
	return &counter{
		tally: t, out: out,
		output: map[string]*bytes.Buffer{}, tests: map[string]int{}, failed: map[string]int{},
	}
}

func (c *counter) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				c.print(line) // not an event: somebody wrote past the test framework
			} else {
				c.add(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *counter) print(b []byte) { _, _ = c.out.Write(b) }

func (c *counter) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if c.output[key] == nil {
			c.output[key] = &bytes.Buffer{}
		}
		c.output[key].WriteString(e.Output)
		return
	case "build-output":
		c.print([]byte(e.Output))
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	text := c.output[key]
	if text == nil {
		text = &bytes.Buffer{}
	}
	delete(c.output, key)
	if e.Test == "" {
		c.endPackage(e, text.Bytes())
		return
	}
	c.tests[e.Package]++
	switch e.Action {
	case "pass":
		c.tally.Passed++
	case "skip":
		c.tally.Skipped = append(c.tally.Skipped, skip{Test: key, Reason: reason(text.String())})
	case "fail":
		c.tally.Failed++
		c.failed[e.Package]++
		fmt.Fprintf(c.out, "FAIL %s\n%s", key, text)
	}
}

func (c *counter) endPackage(e event, text []byte) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(c.out, "ok   %s  %d tests, %.1f s\n", e.Package, c.tests[e.Package], e.Elapsed)
	case "fail":
		// Tests that never ended (a crash, a timeout) have their output still here.
		for key, rest := range c.output {
			if strings.HasPrefix(key, e.Package+" ") {
				fmt.Fprintf(c.out, "FAIL %s: did not end\n%s", key, rest)
				delete(c.output, key)
			}
		}
		fmt.Fprintf(c.out, "FAIL %s  %.1f s\n%s", e.Package, e.Elapsed, text)
		if c.failed[e.Package] == 0 { // build failure, TestMain, leak check, crash
			c.tally.Failed++
		}
	}
}

var position = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// reason finds what t.Skip was told in the output of a test.
func reason(output string) string {
	last := ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		last = position.ReplaceAllString(line, "")
	}
	if last == "" {
		return "no reason given"
	}
	return last
}
