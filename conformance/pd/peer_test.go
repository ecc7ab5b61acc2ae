package pd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/connector/pd"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver"
	"github.com/lmcache-go/lmcache-go/nixl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// python returns the interpreter with vLLM, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("LMCACHE_GO_VLLM_PYTHON")
	if path == "" {
		t.Skip(`needs vLLM: LMCACHE_GO_VLLM_PYTHON="$(conformance/vllm/env.sh)/bin/python", or scripts/test.sh vllm`)
	}
	return path
}

func library(t *testing.T) *nixl.Library {
	t.Helper()
	lib, err := nixl.Load(nixl.LoadOptions{Python: os.Getenv("LMCACHE_GO_PYTHON")})
	require.NoError(t, err, `LMCACHE_GO_PYTHON="$(conformance/refenv.sh)/bin/python"`)
	return lib
}

// startServer starts an MP server in this process and returns its port.
func startServer(t *testing.T, name string) string {
	t.Helper()
	s, err := mpserver.New(mpserver.Options{
		Host: "127.0.0.1", HTTPPort: -1, Logger: slog.New(slog.DiscardHandler),
		L1: mpserver.L1Options{SizeBytes: 64 << 20, ShmName: fmt.Sprintf("conformance_pd_%d_%s", os.Getpid(), name)},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return s.Addr()[strings.LastIndexByte(s.Addr(), ':')+1:]
}

// reply is what peer.py says; each answer has some of it.
type reply struct {
	Error  string
	Ended  string
	Params json.RawMessage
	Text   []int
	Want   []int
	Free   int
	// of a look
	Requests int
	Counts   map[string]map[string][]float64
	// of the start
	Hash, Model, DType, Backend, Cache, Layout, Engine string
	Heads, Layers, Block, Blocks, Port                 int
	HeadSize                                           int `json:"head_size"`
	Hybrid                                             bool
	Lens                                               []int
	Names                                              []string
}

// engine is an engine of vLLM in a process of its own.
type engine struct {
	reply // at its start
	t     *testing.T
	in    io.WriteCloser
	out   *bufio.Scanner
	err   bytes.Buffer
}

func startEngine(t *testing.T, folder, role string) *engine {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Minute)
	cmd := exec.CommandContext(ctx, python(t), "peer.py", folder, role, startServer(t, role))
	cmd.Env = append(os.Environ(), "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONWARNINGS=ignore")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	e := &engine{t: t}
	cmd.Stderr = &e.err
	var err error
	e.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	e.out = bufio.NewScanner(out)
	e.out.Buffer(nil, 4<<20)
	t.Cleanup(func() {
		_ = e.in.Close()
		_, _ = io.Copy(io.Discard, out)
		err := cmd.Wait()
		testutil.RemoveKVSegments(cmd.Process.Pid)
		cancel()
		if err != nil || t.Failed() {
			text := e.err.String()
			t.Errorf("%s ended: %v, stderr:\n%s", role, err, text[max(0, len(text)-6000):])
		}
	})
	return e
}

// read returns the next answer.
func (e *engine) read() reply {
	e.t.Helper()
	for e.out.Scan() {
		text, ok := strings.CutPrefix(e.out.Text(), "@")
		if !ok {
			e.t.Log(e.out.Text())
			continue
		}
		var r reply
		require.NoError(e.t, json.Unmarshal([]byte(text), &r), text)
		return r
	}
	e.t.Fatal("peer.py has ended")
	return reply{}
}

// ask tells the engine to do something.
func (e *engine) ask(what map[string]any) reply {
	e.t.Helper()
	data, err := json.Marshal(what)
	require.NoError(e.t, err)
	_, err = e.in.Write(append(data, '\n'))
	require.NoError(e.t, err)
	r := e.read()
	require.Empty(e.t, r.Error, what["do"])
	return r
}

func (e *engine) prefill(id string, tokens []int) (*pd.Params, reply) {
	e.t.Helper()
	r := e.ask(map[string]any{"do": "prefill", "id": id, "tokens": tokens, "params": pd.ForPrefill()})
	require.Equal(e.t, "length", r.Ended)
	p, err := pd.ParseParams(r.Params)
	require.NoError(e.t, err)
	require.NoError(e.t, p.Check(), string(r.Params))
	return p, r
}

// decode runs a request; the engine checks all its pages in every step.
func (e *engine) decode(id string, tokens []int, p *pd.Params, answer int) reply {
	e.t.Helper()
	return e.decodeLater(0, id, tokens, p, answer)
}

// decodeLater lets it wait in the engine's queue first.
func (e *engine) decodeLater(wait time.Duration, id string, tokens []int, p *pd.Params, answer int) reply {
	e.t.Helper()
	r := e.ask(map[string]any{"do": "decode", "id": id, "tokens": tokens, "params": p, "answer": answer, "park": wait.Seconds()})
	require.Equal(e.t, "length", r.Ended)
	require.Equal(e.t, r.Want, r.Text, "the text of an engine without any cache")
	require.Equal(e.t, e.Free, r.Free, "the decoder's blocks")
	return r
}

func (e *engine) look() reply {
	e.t.Helper()
	return e.ask(map[string]any{"do": "look"})
}

// freed waits until all blocks are free, and checks that no lease ended.
func (e *engine) freed() {
	e.t.Helper()
	start := time.Now()
	testutil.Eventually(e.t, "all blocks of the producer are free", func() bool {
		r := e.look()
		require.Empty(e.t, r.Counts["NixlPullConnector"]["num_kv_expired_reqs"], "freed by the lease, after %v", time.Since(start))
		return r.Free == e.Free && r.Requests == 0
	})
}
