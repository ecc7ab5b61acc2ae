package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

//go:embed worker.py
var workerScript []byte

// process is one Python process with a GPU context.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	mu   sync.Mutex // one request at a time
	out  *bufio.Reader
	Info struct {
		Torch, UUID, Name, Device string
		PID                       int
	}
}

// answer is what a worker says.
type answer struct {
	OK      bool
	Error   string
	Event   string
	Tensors []tensor
	UUID    string
	Bytes   int64
	Wrong   int64
	Dirty   *int64
	Value   int64
	Device  float64 `json:"device_ms"`
	TFLOPs  float64
	Store   float64
	Load    float64
	Held    int64
}

// tensor is one wrapper of a registration.
type tensor struct {
	Type, DType   string
	Shape, Stride []int64
	Offset        int64 `json:"storage_offset"`
	UUID          string
	Handle        []json.RawMessage // cuda
	IPC           string            // cuda_raw
	AllocOffset   int64             `json:"offset"`
	Size          int64
	Shm           string // cpu_shm
}

var errWorker = errors.New("worker")

// startProcess starts worker.py on a device. It is ready when it has said so.
func startProcess(ctx context.Context, python, dir, name, device string) (*process, error) {
	script := filepath.Join(dir, "worker.py")
	if err := os.WriteFile(script, workerScript, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, python, "-u", script, device)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: start %s: %w (-python names one with torch)", errWorker, python, err)
	}
	p := &process{name: name, cmd: cmd, in: in, out: bufio.NewReaderSize(out, 1<<20)}
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.Info)
	}
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("%w: %s did not start: %w", errWorker, name, err)
	}
	return p, nil
}

// do asks and waits for the answer.
func (p *process) do(what string, args map[string]any) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := map[string]any{"do": what}
	for k, v := range args {
		m[k] = v
	}
	b, err := json.Marshal(m)
	if err != nil {
		return answer{}, err
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		return answer{}, fmt.Errorf("%w %s: %w", errWorker, p.name, err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return answer{}, fmt.Errorf("%w %s has ended: %w", errWorker, p.name, err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, fmt.Errorf("%w %s answered %q: %w", errWorker, p.name, line, err)
	}
	if !a.OK {
		return a, fmt.Errorf("%w %s, %s: %s", errWorker, p.name, what, a.Error)
	}
	return a, nil
}

// event asks for an event of a scheme, behind ms of work.
func (p *process) event(scheme string, ms float64) ([]byte, error) {
	a, err := p.do("record", map[string]any{"scheme": scheme, "sleep_ms": ms})
	if err != nil {
		return nil, err
	}
	return hex.DecodeString(a.Event)
}

// wait waits for the server's event and returns the milliseconds of the
// device since the last record.
func (p *process) wait(event []byte) (float64, error) {
	a, err := p.do("wait", map[string]any{"event": hex.EncodeToString(event)})
	return a.Device, err
}

// kill ends the process as a crash would, and removes the segments that it then
// leaves behind.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/lmcache_kv_gputest_%d_*", p.cmd.Process.Pid))
	for _, name := range left {
		_ = os.Remove(name)
	}
}

// close lets it end by itself, for a while.
func (p *process) close() {
	_ = p.in.Close()
	t := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer t.Stop()
	_ = p.cmd.Wait()
}
