package zmtp

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/stretchr/testify/require"
)

const limitTime = 10 * time.Second

// recorder is a handler that echoes, and notes who comes and goes.
type recorder struct {
	on      func(p *Peer, m *Message) // in place of the echo
	came    chan *Peer
	gone    chan error
	refused chan error
}

func newRecorder() *recorder {
	return &recorder{came: make(chan *Peer, 4096), gone: make(chan error, 4096), refused: make(chan error, 4096)}
}

func (h *recorder) Connected(p *Peer)               { h.came <- p }
func (h *recorder) Disconnected(_ *Peer, err error) { h.gone <- err }
func (h *recorder) Refused(_ net.Addr, err error)   { h.refused <- err }
func (h *recorder) Message(p *Peer, m *Message) {
	if h.on != nil {
		h.on(p, m)
		return
	}
	own := m.Detach() // large frames are not copied by Queue
	_ = p.Queue(own.Frames...)
}

// serve runs a router on a port of the kernel's choice until the test ends.
func serve(t *testing.T, h *recorder, change func(*RouterOptions)) (s *RouterSocket, url string) {
	t.Helper()
	o := RouterOptions{Handler: h}
	if change != nil {
		change(&o)
	}
	s = NewRouter(o)
	url, err := s.Listen("tcp://127.0.0.1:*")
	require.NoError(t, err)
	run(t, s)
	return s, url
}

func run(t *testing.T, s *RouterSocket) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	var once sync.Once
	t.Cleanup(func() {
		once.Do(func() { _ = s.Close(0) })
		require.NoError(t, <-done)
	})
}

// wait receives from c.
func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(limitTime):
		t.Fatal("timeout: " + what)
		panic("unreachable")
	}
}

// plain opens a TCP connection that speaks nothing yet.
func plain(t *testing.T, url string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "tcp://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(limitTime)))
	return c
}

// dealer is one of this package.
func dealer(t *testing.T, url string) *Conn {
	t.Helper()
	c, err := Dealer(plain(t, url), 1<<30)
	require.NoError(t, err)
	return c
}

// libzmq is a socket of libzmq.
func libzmq(t *testing.T, kind zmq.Type, change func(*zmq.Socket)) *zmq.Socket {
	t.Helper()
	ctx, err := zmq.NewContext()
	require.NoError(t, err)
	s, err := ctx.NewSocket(kind)
	require.NoError(t, err)
	require.NoError(t, s.SetLinger(0))
	require.NoError(t, s.SetRcvtimeo(limitTime))
	require.NoError(t, s.SetReconnectIvl(5*time.Millisecond))
	if change != nil {
		change(s)
	}
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, ctx.Term())
	})
	return s
}
