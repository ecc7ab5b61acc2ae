package pair

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Locked makes a writer that several processes' outputs may go to.
func Locked(w io.Writer) io.Writer { return &locked{w: w} }

type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Process is a child that answers lines.
type Process struct {
	name string
	in   io.WriteCloser
	out  *bufio.Reader
	wait func() error
}

// Spawn starts a command that speaks the protocol.
func Spawn(name string, cmd *exec.Cmd) (*Process, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Process{name: name, in: in, out: bufio.NewReaderSize(out, 1<<16), wait: cmd.Wait}, nil
}

// Connect speaks the protocol over a connection, with a target on another host.
func Connect(name string, conn io.ReadWriteCloser) *Process {
	return &Process{name: name, in: conn, out: bufio.NewReader(conn), wait: func() error { return nil }}
}

// Ask sends a line and returns the answer, or only reads one when line is "".
// An `error` answer is an error.
func (p *Process) Ask(line string) (string, error) {
	if line != "" {
		if _, err := io.WriteString(p.in, line+"\n"); err != nil {
			return "", p.died(err)
		}
	}
	answer, err := p.out.ReadString('\n')
	if err != nil {
		return "", p.died(err)
	}
	answer = strings.TrimSpace(answer)
	if strings.HasPrefix(answer, "error ") {
		return "", fmt.Errorf("%s: %w", p.name, answerError(answer))
	}
	return answer, nil
}

// died tells how the process ended.
func (p *Process) died(err error) error {
	_ = p.in.Close()
	if end := p.wait(); end != nil {
		err = end
	}
	return fmt.Errorf("%s ended: %w", p.name, err)
}

// Close ends the process by ending its input.
func (p *Process) Close() error {
	_ = p.in.Close()
	return p.wait()
}

// Command makes the command that starts this program again with arguments.
type Command func(ctx context.Context, args ...string) *exec.Cmd

// Options describe a pair of processes.
type Options struct {
	Self          Command
	Lib           string // path of the library
	Local, Remote Side
	Params        map[string]string // of the UCX backend, both sides
	Env           []string          // added to both processes' environment
	Stderr        io.Writer         // of all processes: see Locked
}

// StartTarget starts a target.
func (o Options) StartTarget(ctx context.Context) (*Process, Target, error) {
	cmd := o.Self(ctx, RoleArgs("target", o.Lib, o.Remote, o.Params)...)
	cmd.Env, cmd.Stderr = append(cmd.Environ(), o.Env...), o.Stderr
	p, err := Spawn("target", cmd)
	if err != nil {
		return nil, Target{}, err
	}
	line, err := p.Ask("")
	if err != nil {
		return nil, Target{}, err
	}
	t, err := ParseTarget(line)
	if err != nil {
		_ = p.Close()
		return nil, Target{}, err
	}
	return p, t, nil
}

// StartLine tells an initiator to start.
func (o Options) StartLine(t Target) string {
	return fmt.Sprintf("start %d %d %d %s %s", o.Local.Mem, o.Local.Dev, o.Local.Size, FormatParams(o.Params), t.Line())
}

// StartInitiator starts a Go initiator, with more variables in its environment.
func (o Options) StartInitiator(ctx context.Context, t Target, env ...string) (*Process, error) {
	cmd := o.Self(ctx, RoleArgs("initiator", o.Lib, o.Local, o.Params)...)
	cmd.Env, cmd.Stderr = append(append(cmd.Environ(), o.Env...), env...), o.Stderr
	return StartSpawned("go", cmd, o.StartLine(t))
}

// StartSpawned starts any initiator.
func StartSpawned(name string, cmd *exec.Cmd, start string) (*Process, error) {
	p, err := Spawn(name, cmd)
	if err != nil {
		return nil, err
	}
	if _, err := p.Ask(start); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}
