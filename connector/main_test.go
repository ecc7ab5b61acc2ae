package connector

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

func TestMain(m *testing.M) {
	cudatest.Main(m, func(m *testing.M) { goleak.VerifyTestMain(m) })
}

const testModel = "test/model"

// server is a server of this repository in this process.
type server struct {
	*mpserver.Server
	t    testing.TB
	stop func()
}

var segments atomic.Int64

// startServer runs a server until the test ends or stop is called.
func startServer(t testing.TB, change func(*mpserver.Options)) *server {
	t.Helper()
	o := mpserver.Options{
		Host: "127.0.0.1", HTTPPort: -1, ChunkSize: 256, Logger: slog.New(slog.DiscardHandler),
		L1: mpserver.L1Options{SizeBytes: 64 << 20, ShmName: fmt.Sprintf("connector_%d_%d", os.Getpid(), segments.Add(1))},
	}
	if change != nil {
		change(&o)
	}
	s, err := mpserver.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	sv := &server{Server: s, t: t}
	stopped := false
	sv.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(sv.stop)
	return sv
}

// dial connects a client that is closed with the test.
func dial(t testing.TB, url string, o Options) *Client {
	t.Helper()
	c, err := Dial(url, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// prompt makes n tokens that differ between seeds from the first one on.
func prompt(seed uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]uint32, n)
	for i := range out {
		out[i] = r.Uint32() % 150000
	}
	return out
}

// fakeServer plays a server over pipes: each dial gives its end to serve.
type fakeServer struct {
	dials atomic.Int64
	serve func(n int64, c *zmtp.Conn) // may return early, which hangs up
}

func (f *fakeServer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a, b := net.Pipe()
	n := f.dials.Add(1)
	go func() {
		defer b.Close()
		if c, err := zmtp.Router(b, 1<<20); err == nil {
			f.serve(n, c)
		}
	}()
	return a, nil
}

// answer sends a reply; no value is None.
func answer(c *zmtp.Conn, uid, op []byte, value ...[]byte) {
	out := zmtp.AppendFrame(nil, uid, true)
	out = zmtp.AppendFrame(out, op, len(value) > 0)
	if len(value) > 0 {
		out = zmtp.AppendFrame(out, value[0], false)
	}
	_ = c.Write(out)
}

// requests calls handle for each request, with copies of its frames.
func requests(c *zmtp.Conn, handle func(op wire.Op, frames [][]byte)) {
	for {
		m, err := c.Read()
		if err != nil {
			return
		}
		frames := make([][]byte, len(m))
		for i := range m {
			frames[i] = append([]byte(nil), m[i]...)
		}
		op, err := wire.ParseOp(frames[1])
		if err != nil {
			panic(err)
		}
		handle(op, frames)
	}
}

// hostPort is a server's address without the scheme.
func hostPort(url string) string { return strings.TrimPrefix(url, "tcp://") }
