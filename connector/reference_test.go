package connector

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

// startReference runs the real lmcache 0.5.6 server, or skips the test.
func startReference(t *testing.T, flags ...string) (url string) {
	t.Helper()
	python := os.Getenv("LMCACHE_GO_PYTHON")
	if python == "" {
		t.Skip(`needs the real server: LMCACHE_GO_PYTHON="$(conformance/refenv.sh)/bin/python"`)
	}
	port := testutil.FreePort(t)
	args := []string{
		"server", "--host", "127.0.0.1", "--port", fmt.Sprint(port), "--http-host", "127.0.0.1", "--http-port", fmt.Sprint(testutil.FreePort(t)),
		"--prometheus-port", fmt.Sprint(testutil.FreePort(t)), "--l1-size-gb", "0.0625", "--eviction-policy", "LRU", "--no-l1-use-lazy",
	}
	log := filepath.Join(t.TempDir(), "server.log")
	out, err := os.Create(log)
	require.NoError(t, err)
	cmd := exec.CommandContext(context.Background(), filepath.Join(filepath.Dir(python), "lmcache"), append(args, flags...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "LMCACHE_TRACK_USAGE=false", "LMCACHE_DISABLE_BANNER=1", "DO_NOT_TRACK=1")
	require.NoError(t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it ends by our signal
		close(exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
		}
		out.Close()
		if b, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("end of the server's log:\n%s", b[max(0, len(b)-4000):])
		}
	})
	url = fmt.Sprintf("tcp://127.0.0.1:%d", port)
	c := dial(t, url, Options{Timeout: 90 * time.Second})
	require.NoError(t, c.Noop(t.Context()), "the real server did not start")
	return url
}

// The same rows, with the same answers and bytes, against the real server.
func TestTracesOfTheReference(t *testing.T) {
	t.Run("shared memory", func(t *testing.T) {
		url := startReference(t, "--supported-transfer-mode", "auto", "--shm-name", fmt.Sprintf("connector_ref_%d", os.Getpid()))
		for _, mode := range []TransferMode{ModeLMCacheDriven, ModeEngineDriven} {
			t.Run(string(mode), func(t *testing.T) {
				require.NoError(t, dial(t, url, Options{}).Clear(t.Context(), true))
				traces(t, url, mode, false)
				// Not with two ranks: of stores of one request that two workers
				// send at once it loses one now and then.
			})
		}
	})
	t.Run("pickle", func(t *testing.T) {
		url := startReference(t, "--supported-transfer-mode", "engine_driven")
		traces(t, url, ModeEngineDriven, true)
	})
}
