package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver"
)

// asMain makes the test binary behave as the program; "stuck" gives it a server
// that does not stop.
const asMain = "LMCACHE_GO_TEST_MAIN"

func TestMain(m *testing.M) {
	switch os.Getenv(asMain) {
	case "":
		goleak.VerifyTestMain(m)
		return
	case "stuck":
		newServer = func(mpserver.Options) (cacheServer, error) { return stuckServer{}, nil }
	}
	os.Exit(run(os.Args[1:], terminal()))
}

// stuckServer hears of the stop and goes on.
type stuckServer struct{}

func (stuckServer) Addr() string     { return "tcp://127.0.0.1:1" }
func (stuckServer) HTTPAddr() string { return "" }
func (stuckServer) Close() error     { return nil }

func (stuckServer) Run(ctx context.Context) error {
	<-ctx.Done()
	fmt.Fprintln(os.Stderr, "stopping for ever")
	select {}
}

// fakeServer ends by itself.
type fakeServer struct{ err error }

func (f fakeServer) Run(context.Context) error { return f.err }
func (f fakeServer) Close() error              { return nil }
func (f fakeServer) Addr() string              { return "tcp://127.0.0.1:34567" }
func (f fakeServer) HTTPAddr() string          { return "127.0.0.1:1" }

// withServer replaces the server and returns the options that it was made with.
func withServer(t *testing.T, s cacheServer, err error) *mpserver.Options {
	t.Helper()
	var got mpserver.Options
	old := newServer
	t.Cleanup(func() { newServer = old })
	newServer = func(o mpserver.Options) (cacheServer, error) {
		got = o
		return s, err
	}
	return &got
}

func TestRunServer(t *testing.T) {
	o := withServer(t, fakeServer{}, nil)
	code, out, errs := runHere(t, vars("LMCACHE_LOG_LEVEL", "info"), "server", "--port", "0", "--http-port", "0", "--instance-id", "prefiller", "--max-workers", "4")
	require.Equal(t, exitOK, code, errs)
	require.Equal(t, int64(4<<30), o.L1.SizeBytes)
	require.Equal(t, "localhost", o.Host)
	require.Equal(t, "prefiller", o.InstanceID)
	require.NotEmpty(t, o.Version)
	require.NotNil(t, o.Logger)
	require.Contains(t, out, `"lmcache.mp.host":"tcp://localhost","lmcache.mp.port":34567,`, "the port that was taken")
	require.Contains(t, errs, "a server of the LMCache MP protocol")
	require.Contains(t, errs, `msg=setting name=instance-id value=prefiller origin=flag`)
	require.Contains(t, errs, `msg=setting name=l1-size-gb value="4 GiB" origin="derived: the default of 4 GiB`)
	require.Contains(t, errs, `msg=setting name=log-level value=INFO origin=LMCACHE_LOG_LEVEL`)
	require.Contains(t, errs, `msg="setting without effect" name=max-workers value=4`)
	require.NotContains(t, errs, "chunk-size", "a default is not worth a line")
}

func TestRunServerQuietly(t *testing.T) {
	withServer(t, fakeServer{}, nil)
	code, out, errs := runHere(t, vars("LMCACHE_LOG_LEVEL", "ERROR", "LMCACHE_DISABLE_BANNER", "1"), "server", "--port", "0", "--no-http")
	require.Equal(t, exitOK, code)
	require.Empty(t, errs)
	require.Contains(t, out, "--kv-transfer-config", "what vLLM needs is told all the same")

	code, _, errs = runHere(t, noEnv, "server", "--port", "0", "--no-http", "--log-format", "json")
	require.Equal(t, exitOK, code)
	for line := range strings.Lines(errs) {
		require.True(t, json.Valid([]byte(line)), line)
	}
}

func TestRunServerFails(t *testing.T) {
	withServer(t, fakeServer{errors.New("loop ended")}, nil)
	code, _, errs := runHere(t, noEnv, "server", "--port", "0", "--no-http")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, `err="loop ended"`)

	withServer(t, nil, errors.New("map the pool: no memory"))
	code, out, errs := runHere(t, noEnv, "server", "--port", "0", "--no-http")
	require.Equal(t, exitInvalid, code)
	require.Empty(t, out)
	require.Contains(t, errs, "lmcache-go server: error: map the pool: no memory")

	// Nothing is started with a problem, and each has its line.
	withServer(t, nil, errors.New("must not be made"))
	code, out, errs = runHere(t, noEnv, "server", "--transport", "grpc", "--chunk-size", "0", "--port", "0", "--no-http")
	require.Equal(t, exitInvalid, code)
	require.Empty(t, out)
	require.Equal(t, 2, strings.Count(errs, "\n"), errs)
	require.Contains(t, errs, "lmcache-go server: error: --transport grpc is not served")
}

func TestTooLargePoolIsRefused(t *testing.T) {
	withServer(t, nil, errors.New("must not be made"))
	code, _, errs := runOn(t, fakeMachine(1<<30, 1<<20), noEnv, "server", "--port", "0", "--no-http", "--l1-size-gb", "100", "--shm-name", "x")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "--l1-size-gb asks for 100 GiB, but cgroup /pod leaves 1 GiB")
	require.Contains(t, errs, "--shm-name puts the pool of 100 GiB in /dev/shm")
}

// child is the program as a process of its own.
type child struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr *bufio.Reader
}

func start(t *testing.T, mode string, args ...string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asMain+"="+mode)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return &child{cmd, bufio.NewReader(out), bufio.NewReader(errs)}
}

// until reads lines up to one that matches and returns its first group.
func until(t *testing.T, r *bufio.Reader, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var seen strings.Builder
	for {
		line, err := r.ReadString('\n')
		seen.WriteString(line)
		if m := re.FindStringSubmatch(line); m != nil {
			return m[len(m)-1]
		}
		if err != nil {
			t.Fatalf("no line like %s before the end:\n%s", pattern, seen.String())
		}
	}
}

// end waits for the process and returns its exit code, or minus the signal.
func (c *child) end(t *testing.T) (code int, rest string) {
	t.Helper()
	data, _ := io.ReadAll(c.stderr)
	_, _ = io.Copy(io.Discard, c.stdout)
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	if status.Signaled() {
		return -int(status.Signal()), string(data)
	}
	return status.ExitStatus(), string(data)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Do(req)
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(body)
}

// TestServerProcess runs the real server from start to stop, by both signals.
func TestServerProcess(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		name := fmt.Sprintf("lmcache_go_test_%d_%d", os.Getpid(), sig)
		segment := shmFolder + "/" + mpserver.SegmentName(name)
		c := start(t, "1", "server", "--port", "0", "--http-port", "0", "--l1-size-gb", "8MiB", "--shm-name", name)
		config := until(t, c.stdout, `--kv-transfer-config '(.*)'`)
		var vllm connectorConfig
		require.NoError(t, json.Unmarshal([]byte(config), &vllm))
		require.Positive(t, vllm.Extra.Port)
		require.Equal(t, "recompute", vllm.OnFailure)
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(vllm.Extra.Port)))
		require.NoError(t, err, "the port that was printed answers")
		conn.Close()

		web := "http://" + until(t, c.stderr, `msg=ready .*http=(\S+)`)
		status, body := get(t, web+"/healthcheck")
		require.Equal(t, `200 {"status":"healthy"}`, fmt.Sprint(status, " ", body))
		status, body = get(t, web+"/status")
		require.Equal(t, 200, status)
		require.Contains(t, body, `"memory_configured_bytes":8388608`)
		status, body = get(t, web+"/metrics")
		require.Equal(t, 200, status)
		require.Contains(t, body, "lmcache_mp_l1_memory_usage_bytes{")
		_, err = os.Stat(segment)
		require.NoError(t, err)

		require.NoError(t, c.cmd.Process.Signal(sig))
		_ = c.cmd.Process.Signal(sig) // the process and its group: one stop, not a stop and a kill
		code, rest := c.end(t)
		require.Equal(t, exitOK, code, rest)
		_, err = os.Stat(segment)
		require.ErrorIs(t, err, os.ErrNotExist, "the segment goes with the server")
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	c := start(t, "stuck", "server", "--port", "0", "--no-http", "--l1-size-gb", "8MiB")
	until(t, c.stdout, `--kv-transfer-config`)
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
	until(t, c.stderr, `stopping for ever`)
	ended := make(chan struct{})
	var code int
	go func() {
		defer close(ended)
		code, _ = c.end(t)
	}()
	testutil.Eventually(t, "the end of the process", func() bool {
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // the default is back a moment after the first one
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	require.Equal(t, -int(syscall.SIGTERM), code)
}

func TestBusyPortProcess(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	busy := l.Addr().(*net.TCPAddr).Port
	c := start(t, "1", "server", "--port", strconv.Itoa(busy), "--http-port", "0", "--l1-size-gb", "8MiB")
	code, rest := c.end(t)
	require.Equal(t, exitInvalid, code)
	require.Regexp(t, fmt.Sprintf(`--port %d is busy: .* listens there: stop it or choose another --port`, busy), rest)
	if listeningInode(busy) != "" {
		require.Contains(t, rest, fmt.Sprintf("(pid %d)", os.Getpid()))
	}
}
