package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

const (
	oursReady      = 20 * time.Second
	referenceReady = 90 * time.Second
	stopLimit      = 20 * time.Second
)

// config says how a server is started.
type config struct {
	reference bool     // the real server instead of ours
	chunk     int      // --chunk-size
	poolMiB   int      // size of the L1 pool
	pool      bool     // in named shared memory; without it clients send pickles
	flags     []string // more flags
	ours      []string // more flags that only our server has
}

// server is a server process. start and stop may be called in turn: every
// start serves on the same ports and under the same segment name.
type server struct {
	t       *testing.T
	cfg     config
	port    int
	http    int
	metrics int // the reference's Prometheus port
	segment string
	log     string

	cmd    *exec.Cmd
	exited chan struct{}
	err    error // of Wait; readable once exited is closed
}

var segments atomic.Int64

// newServer starts a server of the kind the flags ask for and waits until it
// answers. It is killed when the test ends, if nobody stopped it.
func newServer(t *testing.T, cfg config) *server {
	t.Helper()
	cfg.reference = cfg.reference || *againstReference
	s := &server{t: t, cfg: cfg, log: filepath.Join(t.TempDir(), "server.log")}
	if cfg.pool {
		s.segment = fmt.Sprintf("lmcache_l1_pool_conf_%d_%d", os.Getpid(), segments.Add(1))
	}
	t.Cleanup(s.cleanup)
	const attempts = 3 // another process may take a port first
	for i := 1; ; i++ {
		s.port, s.http, s.metrics = testutil.FreePort(t), testutil.FreePort(t), testutil.FreePort(t)
		err := s.tryStart()
		if err == nil {
			return s
		}
		if i == attempts {
			t.Fatal(err)
		}
	}
}

func (s *server) url() string { return fmt.Sprintf("tcp://127.0.0.1:%d", s.port) }

func (s *server) httpURL() string { return fmt.Sprintf("http://127.0.0.1:%d", s.http) }

// poolBytes is the size of the pool.
func (s *server) poolBytes() int64 { return int64(s.cfg.poolMiB) << 20 }

// segmentPath is where the kernel shows the pool.
func (s *server) segmentPath() string { return filepath.Join("/dev/shm", s.segment) }

// start starts the server again after stop or kill.
func (s *server) start() {
	s.t.Helper()
	if err := s.tryStart(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) tryStart() error {
	args := []string{
		"server", "--host", "127.0.0.1", "--port", fmt.Sprint(s.port),
		"--http-host", "127.0.0.1", "--http-port", fmt.Sprint(s.http),
		"--l1-size-gb", fmt.Sprint(float64(s.cfg.poolMiB) / 1024), "--eviction-policy", "LRU",
		"--chunk-size", fmt.Sprint(s.cfg.chunk),
	}
	if s.cfg.pool {
		args = append(args, "--supported-transfer-mode", "auto", "--shm-name", s.segment)
	} else {
		args = append(args, "--supported-transfer-mode", "engine_driven")
	}
	program, ready := "", oursReady
	if s.cfg.reference {
		program = filepath.Join(filepath.Dir(python(s.t)), "lmcache")
		args = append(args, "--no-l1-use-lazy", "--prometheus-port", fmt.Sprint(s.metrics))
		ready = referenceReady
	} else {
		program = serverBinary(s.t)
		args = append(args, s.cfg.ours...)
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// The process outlives the test's context: its end is tested.
	s.cmd = exec.CommandContext(context.WithoutCancel(s.t.Context()), program, append(args, s.cfg.flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = append(os.Environ(), pythonEnv...)
	if err := s.cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	s.exited = exited
	go func() {
		s.err = s.cmd.Wait()
		close(exited)
	}()
	return s.awaitReady(ready)
}

// awaitReady waits until the server answers noop.
func (s *server) awaitReady(limit time.Duration) error {
	d, err := dial(s.url())
	if err != nil {
		return err
	}
	defer d.close()
	if err := d.send([]byte{0}, opNoop); err != nil {
		return err
	}
	for end := time.Now().Add(limit); time.Now().Before(end); {
		reply, err := d.receive(100 * time.Millisecond)
		if err != nil {
			return err
		}
		if reply != nil {
			return nil
		}
		if s.hasExited() {
			return fmt.Errorf("the server ended at once: %w\n%s", s.err, s.tail())
		}
	}
	return fmt.Errorf("the server did not answer within %v\n%s", limit, s.tail())
}

func (s *server) hasExited() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

// signal sends a signal to the server.
func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Errorf("%v: %v\n%s", sig, err, s.tail())
	}
}

// awaitExit waits for the end of the process.
func (s *server) awaitExit(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-s.exited:
		return true
	case <-timer.C:
		return false
	}
}

// kill ends the server as a crash does.
func (s *server) kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	if !s.awaitExit(stopLimit) {
		s.t.Fatal("kill -9 did not end the server")
	}
}

// terminate stops the server in an orderly way and checks that it did: exit
// status 0 (the real server dies of the signal) and no segment left.
func (s *server) terminate() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	if !s.awaitExit(stopLimit) {
		s.t.Errorf("SIGTERM did not end the server within %v\n%s", stopLimit, s.tail())
		s.kill()
		return
	}
	if s.err != nil && !s.cfg.reference {
		s.t.Errorf("after SIGTERM: got %v, want exit status 0\n%s", s.err, s.tail())
	}
	if s.segment != "" {
		if _, err := os.Stat(s.segmentPath()); !errors.Is(err, os.ErrNotExist) {
			s.t.Errorf("after SIGTERM: %s is still there (%v)", s.segmentPath(), err)
		}
	}
}

// cleanup kills what still runs and shows the log of a failed test.
func (s *server) cleanup() {
	if s.cmd != nil && s.cmd.Process != nil {
		if s.hasExited() {
			// Nobody asked for that: terminate and kill are followed by start
			// wherever a test goes on.
			if s.t.Failed() {
				s.t.Logf("the server had ended: %v", s.err)
			}
		} else {
			_ = s.cmd.Process.Kill()
			<-s.exited
		}
	}
	if s.segment != "" {
		_ = os.Remove(s.segmentPath())
	}
	// The server answers a handler's panic as a failure and goes on.
	if log, err := os.ReadFile(s.log); err == nil && !s.cfg.reference {
		for _, bad := range []string{"panicked", "DATA RACE"} {
			if strings.Contains(string(log), bad) {
				s.t.Errorf("%q in the server's log:\n%.8000s", bad, log[strings.Index(string(log), bad):])
			}
		}
	}
	if s.t.Failed() {
		s.t.Logf("end of the server's log:\n%s", s.tail())
	}
}

// tail returns the end of the server's log.
func (s *server) tail() string {
	data, err := os.ReadFile(s.log)
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}
