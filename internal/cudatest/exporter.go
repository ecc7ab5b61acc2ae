package cudatest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/cuda"
)

// request is what the parent asks of an exporter; answer what it says.
type request struct {
	Op           string
	Offset, Size int64
	Seed         uint64
	Kind         cuda.SignalKind
	Signal       []byte
	Fill         bool
}

type answer struct {
	Err     string
	Handle  []byte
	Data    []byte
	Value   int64
	Seconds float64
}

// Exporter is a process with memory on device 0.
type Exporter struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder

	mu    sync.Mutex
	ended bool

	// Memory names what it allocated.
	Memory cuda.MemHandle
	Size   int64
}

// StartExporter starts a process with so much memory, filled as by
// [Exporter.Fill] with seed 1. It ends with the test.
func StartExporter(t testing.TB, sizeBytes int64) *Exporter {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), exe) // Stop ends it
	cmd.Env = append(os.Environ(), childEnv+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e := &Exporter{t: t, cmd: cmd, in: in, enc: json.NewEncoder(in), dec: json.NewDecoder(out), Size: sizeBytes}
	t.Cleanup(e.Stop)
	a := e.ask(request{Op: "alloc", Size: sizeBytes, Seed: 1})
	e.Memory = cuda.MemHandle(a.Handle)
	return e
}

func (e *Exporter) try(r request) (a answer, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.enc.Encode(r); err != nil {
		return a, err
	}
	if err := e.dec.Decode(&a); err != nil {
		return a, err
	}
	if a.Err != "" {
		return a, errors.New(a.Err)
	}
	return a, nil
}

func (e *Exporter) ask(r request) answer {
	e.t.Helper()
	a, err := e.try(r)
	if err != nil {
		e.t.Fatalf("exporter: %s: %v", r.Op, err)
	}
	return a
}

// Fill writes [Word] of a seed everywhere.
func (e *Exporter) Fill(seed uint64) { e.t.Helper(); e.ask(request{Op: "fill", Seed: seed}) }

// Read returns bytes of the memory.
func (e *Exporter) Read(offset, n int64) []byte {
	e.t.Helper()
	return e.ask(request{Op: "read", Offset: offset, Size: n}).Data
}

// Same counts the words of a range that are those of a seed.
func (e *Exporter) Same(seed uint64) int64 {
	e.t.Helper()
	return e.ask(request{Op: "same", Seed: seed}).Value
}

// Fired returns a signal of a stream that has nothing more to do.
func (e *Exporter) Fired(k cuda.SignalKind) []byte {
	e.t.Helper()
	return e.ask(request{Op: "signal", Kind: k}).Data
}

// Blocked returns a signal that fires with [Exporter.Fire].
func (e *Exporter) Blocked(k cuda.SignalKind) []byte {
	e.t.Helper()
	return e.ask(request{Op: "blocked", Kind: k}).Data
}

// Fire lets everything go on that Blocked holds up.
func (e *Exporter) Fire() { e.t.Helper(); e.ask(request{Op: "fire"}) }

// Waits opens a signal of ours and waits until it has fired; the time limit is
// the exporter's own, ten seconds.
func (e *Exporter) Waits(signal []byte) time.Duration {
	e.t.Helper()
	return time.Duration(e.ask(request{Op: "wait", Signal: signal}).Seconds * float64(time.Second))
}

// HasFired opens a signal of ours and looks at it.
func (e *Exporter) HasFired(signal []byte) bool {
	e.t.Helper()
	return e.ask(request{Op: "look", Signal: signal}).Value != 0
}

// PID of the process.
func (e *Exporter) PID() int { return e.cmd.Process.Pid }

// Kill ends the process at once, its events unfired.
func (e *Exporter) Kill() {
	e.ended = true
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
}

// Stop lets the process end.
func (e *Exporter) Stop() {
	if e.ended {
		return
	}
	e.ended = true
	_ = e.in.Close()
	timer := time.AfterFunc(20*time.Second, func() { _ = e.cmd.Process.Kill() })
	defer timer.Stop()
	_ = e.cmd.Wait()
}

// write fills b with what belongs there from offset at on.
//
//go:norace
func write(b []byte, seed uint64, at int64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], Word(seed, at+int64(i)))
	}
}

// same counts the words of b that belong there.
//
//go:norace
func same(b []byte, seed uint64, at int64) (n int64) {
	for i := 0; i+8 <= len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) == Word(seed, at+int64(i)) {
			n++
		}
	}
	return n
}

// Word is what Fill writes at a multiple of 8 bytes.
func Word(seed uint64, offset int64) uint64 {
	x := seed*0x9e3779b97f4a7c15 + uint64(offset)
	x ^= x >> 29
	return x * 0xbf58476d1ce4e5b9
}

// Matches says where b, which should be what Fill wrote from offset on, is not;
// -1 when it is.
//
//go:norace
func Matches(b []byte, seed uint64, offset int64) int64 {
	for i := int64(0); i+8 <= int64(len(b)); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != Word(seed, offset+i) {
			return i
		}
	}
	return -1
}
