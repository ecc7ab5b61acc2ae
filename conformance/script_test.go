package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pythonEnv keeps Python quiet, its output unbuffered, and the tree clean.
var pythonEnv = []string{
	"PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONWARNINGS=ignore",
	"LMCACHE_TRACK_USAGE=false", "LMCACHE_DISABLE_BANNER=1",
}

// stepLine is what a script prints for each step (client.py).
var stepLine = regexp.MustCompile(`^(PASS|FAIL|SKIP) (.+?)(?: \[(.*)\])? \(([0-9.]+) ms\)$`)

// script is a Python script of this folder.
type script struct {
	name  string
	args  []string
	limit time.Duration
	// asks are what the script may want done to the server: a line
	// "ASK what" calls the function, and the script goes on when it returns.
	asks map[string]func()
	// steps is the least number of steps the script must report.
	steps int
}

// run runs the script; each of its steps becomes a subtest.
func (s script) run(t *testing.T) {
	t.Helper()
	interpreter := python(t)
	ctx, cancel := context.WithTimeout(t.Context(), s.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, append([]string{s.name}, s.args...)...)
	cmd.Env = append(append(os.Environ(), "LMCACHE_LOG_LEVEL=ERROR"), pythonEnv...)
	// The script's children end with it, whatever became of it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endGroup := func() error {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return os.ErrProcessDone
	}
	cmd.Cancel = endGroup
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
	steps := 0
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if what, ok := strings.CutPrefix(line, "ASK "); ok {
			s.answer(t, what, stdin)
		} else if m := stepLine.FindStringSubmatch(line); m != nil {
			steps++
			step(t, m[1], m[2], m[3], m[4])
		} else {
			t.Log(line)
		}
	}
	_ = endGroup() // the script itself has closed its stdout
	err = cmd.Wait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("%s did not end within %v", s.name, s.limit)
	} else if err != nil && !t.Failed() {
		t.Errorf("%s: %v", s.name, err)
	}
	if steps < s.steps {
		t.Errorf("%s reported %d steps, want at least %d", s.name, steps, s.steps)
	}
	if t.Failed() && stderr.Len() > 0 {
		text := stderr.String()
		t.Logf("%s, stderr:\n%s", s.name, text[max(0, len(text)-8000):])
	}
}

// answer does what the script asks for and tells it to go on.
func (s script) answer(t *testing.T, what string, stdin io.Writer) {
	t.Helper()
	do := s.asks[what]
	if do == nil {
		t.Errorf("%s asks for %q, which this test does not know", s.name, what)
	} else {
		do()
	}
	if _, err := fmt.Fprintln(stdin, "done"); err != nil {
		t.Errorf("%s: %v", s.name, err)
	}
}

// step reports one step of a script as a subtest.
func step(t *testing.T, verdict, name, note, ms string) {
	t.Helper()
	// A slash would make the testing package see a tree.
	t.Run(strings.ReplaceAll(name, "/", "|"), func(t *testing.T) {
		switch verdict {
		case "FAIL":
			t.Error(note)
		case "SKIP":
			t.Skip(note)
		default:
			t.Logf("%s (%s ms)", note, ms)
		}
	})
}
