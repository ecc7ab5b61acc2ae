package pd

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// childConfig is what a producer in another process does: it offers one request
// of all its blocks, says so, and lives until its stdin ends.
type childConfig struct {
	Port   int
	Blocks int
	Bytes  int // of a block
	TLS    string
	Seed   int
	GPU    int // 0: host memory; else the device's ordinal and 1
}

// childReport is what it says.
type childReport struct {
	Port     int
	EngineID string
	Params   *Params
}

func runChild() int {
	var c childConfig
	if err := json.Unmarshal([]byte(os.Getenv(envChild)), &c); err != nil || errTestLib != nil {
		fmt.Fprintln(os.Stderr, err, errTestLib)
		return 1
	}
	o, err := c.options()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	o.Port = c.Port
	if c.TLS != "" {
		o.UCX.Engine = map[string]string{"TLS": c.TLS}
	}
	o.Released = func(r Release) { fmt.Println(string(r.Reason)) } //nolint:forbidigo // its report
	p, err := New(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ids := make([]int64, c.Blocks)
	for i := range ids {
		ids[i] = int64(i)
	}
	q, err := p.Offer(Offer{RequestID: "child-" + strconv.Itoa(os.Getpid()), Blocks: [][]int64{ids}, Tokens: 16 * c.Blocks})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(childReport{p.Port(), p.EngineID(), q}); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := p.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (c *childConfig) options() (Options, error) {
	buf, err := nixl.MapBuffer(c.Blocks*c.Bytes, nixl.MapOptions{})
	if err != nil {
		return Options{}, err
	}
	cc := &cache{buf: buf, block: c.Bytes, blocks: c.Blocks}
	cc.regions = []Region{{Name: "model.layers.0.self_attn.attn", Addr: buf.Addr(), BlockBytes: c.Bytes, Blocks: c.Blocks}}
	cc.fill(c.Seed)
	if c.GPU == 0 {
		return cc.options(testModel(2)), nil
	}
	g, err := newGPUCache(c.GPU-1, c.Blocks, c.Bytes)
	if err != nil {
		return Options{}, err
	}
	s, err := g.ctx.NewStream()
	if err != nil {
		return Options{}, err
	}
	pin, err := g.ctx.Driver().PinHost(g.ctx.Device(), buf.Bytes())
	if err != nil {
		return Options{}, err
	}
	if err := s.Copy(g.buf.Address, uint64(buf.Addr()), g.buf.SizeBytes); err != nil {
		return Options{}, err
	}
	if err := s.Wait(); err != nil {
		return Options{}, err
	}
	return g.options(), pin.Unpin()
}

// child is a producer in another process.
type child struct {
	childReport
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t testing.TB, c childConfig) *child {
	t.Helper()
	needLib(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	config, err := json.Marshal(c)
	require.NoError(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), exe)
	cmd.Env = append(os.Environ(), envChild+"="+string(config))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	x := &child{cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(x.kill)
	line, err := x.out.ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(line), &x.childReport))
	return x
}

// says is its next line.
func (c *child) says(t testing.TB) string {
	t.Helper()
	line, err := c.out.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

func (c *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(s))
}

// kill ends it the hard way; a second time it does nothing.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// end ends it the way an engine ends.
func (c *child) end(t testing.TB) {
	t.Helper()
	require.NoError(t, c.in.Close())
	require.NoError(t, c.cmd.Wait())
}
