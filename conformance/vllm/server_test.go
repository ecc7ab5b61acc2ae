package vllm

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

const (
	readyLimit = 3 * time.Minute
	stopLimit  = 20 * time.Second
)

// kind is whose server it is.
type kind string

const (
	ours      kind = "ours"
	reference kind = "reference"
)

// pythonEnv keeps Python quiet, its output unbuffered, and the tree clean.
var pythonEnv = []string{
	"PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONWARNINGS=ignore",
	"LMCACHE_TRACK_USAGE=false", "LMCACHE_DISABLE_BANNER=1", "DO_NOT_TRACK=1",
}

// server is a server process.
type server struct {
	kind    kind
	port    int
	segment string
	log     string
	cmd     *exec.Cmd
	exited  chan struct{}
}

var segments atomic.Int64

// startServer starts a server; it is killed with the test. Flags are added.
func startServer(t *testing.T, k kind, flags ...string) *server {
	t.Helper()
	s := &server{
		kind: k, port: testutil.FreePort(t), segment: fmt.Sprintf("lmcache_l1_pool_vllm_%d_%d", os.Getpid(), segments.Add(1)),
		log: filepath.Join(t.TempDir(), "server.log"), exited: make(chan struct{}),
	}
	args := []string{
		"server", "--host", "127.0.0.1", "--port", fmt.Sprint(s.port), "--http-host", "127.0.0.1", "--http-port", fmt.Sprint(testutil.FreePort(t)),
		"--l1-size-gb", "0.125", "--eviction-policy", "LRU", "--chunk-size", "256", "--supported-transfer-mode", "auto", "--shm-name", s.segment,
	}
	program := ""
	if k == reference {
		program = referenceProgram(t)
		args = append(args, "--no-l1-use-lazy", "--prometheus-port", fmt.Sprint(testutil.FreePort(t)))
	} else {
		program = serverBinary(t)
	}
	log, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	// The process outlives the test's context: cleanup ends it.
	s.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), program, append(args, flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = append(os.Environ(), pythonEnv...)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait() // it ends by a signal
		close(s.exited)
	}()
	t.Cleanup(func() { s.cleanup(t) })
	return s
}

// awaitReady waits until the server answers.
func (s *server) awaitReady(t *testing.T) {
	t.Helper()
	c, err := connector.Dial(fmt.Sprintf("tcp://127.0.0.1:%d", s.port), connector.Options{Timeout: readyLimit})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Noop(t.Context()); err != nil {
		t.Fatalf("the %s server did not start: %v", s.kind, err)
	}
}

func (s *server) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Error(err)
	}
}

// kill ends the server as a crash does.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

func (s *server) cleanup(t *testing.T) {
	t.Helper()
	select {
	case <-s.exited:
	default:
		s.kill()
	}
	_ = os.Remove(filepath.Join("/dev/shm", s.segment))
	text, err := os.ReadFile(s.log)
	if err != nil {
		t.Error(err)
		return
	}
	if s.kind == ours {
		// It answers a handler's panic as a failure and goes on.
		for _, bad := range []string{"panicked", "DATA RACE"} {
			if i := strings.Index(string(text), bad); i >= 0 {
				t.Errorf("%q in the server's log:\n%.8000s", bad, text[i:])
			}
		}
	}
	if t.Failed() {
		t.Logf("end of the %s server's log:\n%s", s.kind, text[max(0, len(text)-6000):])
	}
}

// place is an address behind which servers take turns, so that a server can be
// gone, or another one be there, in a moment, whatever its kind.
type place struct {
	listener net.Listener
	wait     sync.WaitGroup

	mu     sync.Mutex
	server *server               // guarded by mu; nil: connections are hung up
	conns  map[net.Conn]struct{} // guarded by mu
}

func newPlace(t *testing.T) *place {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &place{listener: l, conns: make(map[net.Conn]struct{})}
	p.wait.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.take(nil)
		p.wait.Wait()
	})
	return p
}

func (p *place) url() string { return "tcp://" + p.listener.Addr().String() }

// take hangs up every connection and lets later ones reach s.
func (p *place) take(s *server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = s
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *place) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wait.Go(func() { p.forward(c) })
	}
}

func (p *place) forward(c net.Conn) {
	defer c.Close()
	p.mu.Lock()
	s := p.server
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	if s == nil {
		return
	}
	to, err := (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(c, to)
		_ = c.Close()
	})
	_, _ = io.Copy(to, c)
	_ = to.Close()
	back.Wait()
}
