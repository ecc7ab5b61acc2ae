package vllm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

// outcome is what a case printed.
type outcome struct {
	Case    string              `json:"case"`
	Mode    string              `json:"mode"`
	Error   string              `json:"error"`
	Notes   []string            `json:"notes"`
	Trace   map[string][]string `json:"trace"` // by client
	Seconds float64             `json:"seconds"`
}

// lines are the notes and the trace as one list.
func (o *outcome) lines() []string {
	var out []string
	for _, n := range o.Notes {
		out = append(out, "note: "+n)
	}
	for _, who := range sortedKeys(o.Trace) {
		for _, line := range o.Trace[who] {
			out = append(out, who+": "+line)
		}
	}
	return out
}

// run runs a script of this folder; asks are what it may want done.
func run(t *testing.T, limit time.Duration, asks map[string]func(), script string, args ...string) []outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, python(t), append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), pythonEnv...)
	// The script's children end with it, whatever became of it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out []outcome
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		line := lines.Text()
		if what, ok := strings.CutPrefix(line, "ASK "); ok {
			if do := asks[what]; do != nil {
				do()
			} else {
				t.Errorf("%s asks for %q, which this test does not know", script, what)
			}
			fmt.Fprintln(stdin, "done")
		} else if text, ok := strings.CutPrefix(line, "CASE "); ok {
			var o outcome
			if err := json.Unmarshal([]byte(text), &o); err != nil {
				t.Errorf("%v: %s", err, text)
			}
			out = append(out, o)
		} else {
			t.Log(line)
		}
	}
	err = cmd.Wait()
	testutil.RemoveKVSegments(cmd.Process.Pid)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("%s did not end within %v", script, limit)
	} else if err != nil {
		t.Errorf("%s: %v", script, err)
	}
	if t.Failed() && stderr.Len() > 0 {
		text := stderr.String()
		t.Logf("%s, stderr:\n%s", script, text[max(0, len(text)-8000):])
	}
	return out
}
