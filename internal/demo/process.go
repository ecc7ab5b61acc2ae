package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

const (
	// stopLimit is how long a process has to end by itself.
	stopLimit = 8 * time.Second
	// startLimit is how long it may take to say that it serves.
	startLimit = 60 * time.Second
	pollEvery  = 20 * time.Millisecond
	// tailBytes of a log are shown when its process fails.
	tailBytes = 2000
)

// process is one child.
type process struct {
	name string
	argv []string
	env  []string // beside the demo's own environment
	log  string   // path
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
	err  error         // why; valid once done is closed
}

// start runs a process; its output goes to a file of its own, behind that of
// its former lives.
func (p *process) start(dir string) error {
	p.log = filepath.Join(dir, p.name+".log")
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()                                // the child has its own
	p.cmd = exec.Command(p.argv[0], p.argv[1:]...) //nolint:noctx // stop and kill end it
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.done = make(chan struct{})
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// alive says whether it runs.
func (p *process) alive() bool {
	if p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// said waits until the log has a line like want, of this life of the process,
// and returns its groups.
func (p *process) said(ctx context.Context, want *regexp.Regexp, from int64) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		text, err := p.output(from)
		if err != nil {
			return nil, err
		}
		if m := want.FindStringSubmatch(text); m != nil {
			return m, nil
		}
		if !p.alive() {
			return nil, fmt.Errorf("%s ended (%w); its log %s ends so:\n%s", p.name, ended(p.err), p.log, tail(text))
		}
		if err := sleep(ctx, pollEvery); err != nil {
			return nil, fmt.Errorf("%s did not say that it serves: %w; its log %s ends so:\n%s", p.name, err, p.log, tail(text))
		}
	}
}

func ended(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// output is the log behind an offset.
func (p *process) output(from int64) (string, error) {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return "", err
	}
	return string(data[min(from, int64(len(data))):]), nil
}

// size of the log now.
func (p *process) size() int64 {
	info, err := os.Stat(p.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

func tail(text string) string {
	text = strings.TrimSpace(text)
	if len(text) > tailBytes {
		text = "…" + text[len(text)-tailBytes:]
	}
	return "    " + strings.ReplaceAll(text, "\n", "\n    ")
}

// kill ends it at once, with all that it has started.
func (p *process) kill() {
	if p.done == nil {
		return
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have gone
	<-p.done
}

// stop asks it to end, and kills it when it does not, or does not with all of
// its children.
func (p *process) stop() {
	if p.alive() {
		_ = syscall.Kill(p.cmd.Process.Pid, syscall.SIGTERM) // it may have gone
		t := time.NewTimer(stopLimit)
		select {
		case <-p.done:
		case <-t.C:
		}
		t.Stop()
	}
	p.kill()
}

// sleep waits, or returns why it does not.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// eventually asks until the answer is yes.
func eventually(ctx context.Context, limit time.Duration, ok func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !ok() {
		if sleep(ctx, pollEvery) != nil {
			return ok()
		}
	}
	return true
}
