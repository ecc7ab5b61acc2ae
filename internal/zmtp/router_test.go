package zmtp

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestLibzmqPeers(t *testing.T) {
	h := newRecorder()
	s, url := serve(t, h, nil)
	d := libzmq(t, zmq.DEALER, nil)
	require.NoError(t, d.Connect(url))
	p := wait(t, "the dealer", h.came)
	require.Len(t, p.Identity(), 5)
	require.Zero(t, p.Identity()[0], "names that are made begin with a zero")
	require.Equal(t, "DEALER", p.SocketType())
	require.Same(t, p, s.Peer(p.Identity()))
	for _, n := range []int{0, 1, 255, 256, 5000, 70000, 1 << 20, 40 << 20} {
		big := bytes.Repeat([]byte{byte(n), 2, 3}, n/3+1)[:n]
		_, err := d.SendMessage("uid", big, "", big[:n/2])
		require.NoError(t, err)
		m, err := d.RecvMessageBytes(0)
		require.NoError(t, err)
		require.Len(t, m, 4)
		require.Equal(t, "uid", string(m[0]))
		require.True(t, bytes.Equal(big, m[1]), n)
		require.Empty(t, m[2])
		require.True(t, bytes.Equal(big[:n/2], m[3]), n)
	}
	q := libzmq(t, zmq.REQ, func(q *zmq.Socket) { require.NoError(t, q.SetIdentity("me")) })
	require.NoError(t, q.Connect(url))
	p = wait(t, "the REQ", h.came)
	require.Equal(t, "me", string(p.Identity()))
	for range 3 {
		_, err := q.SendMessage("question", "two")
		require.NoError(t, err)
		m, err := q.RecvMessage(0)
		require.NoError(t, err)
		require.Equal(t, []string{"question", "two"}, m, "its delimiter comes and goes")
	}
	require.Equal(t, 2, s.Peers())
}

// Many messages in flight come back in order.
func TestPipelinedMessages(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, nil)
	d := libzmq(t, zmq.DEALER, func(d *zmq.Socket) { require.NoError(t, d.SetRcvhwm(0)) })
	require.NoError(t, d.Connect(url))
	const n = 5000
	for i := range n {
		_, err := d.SendMessage(fmt.Sprint(i), strings.Repeat("x", i%997*i%1009))
		require.NoError(t, err)
	}
	for i := range n {
		m, err := d.RecvMessage(0)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), m[0])
		require.Len(t, m[1], i%997*i%1009)
	}
}

func TestDuplicateIdentityWaitsForTheFirst(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, nil)
	first, err := Handshake(plain(t, url), "DEALER", "x", limit)
	require.NoError(t, err)
	wait(t, "the first", h.came)
	second := libzmq(t, zmq.DEALER, func(d *zmq.Socket) { require.NoError(t, d.SetIdentity("x")) })
	require.NoError(t, second.Connect(url))
	require.ErrorIs(t, wait(t, "the second", h.refused), ErrDuplicate)
	require.NoError(t, first.Write(message([]byte("still there"))))
	_, err = first.Read()
	require.NoError(t, err)
	require.NoError(t, first.Close())
	_ = wait(t, "the end of the first", h.gone)
	wait(t, "the second, which has kept trying", h.came)
	_, err = second.SendMessage("me now")
	require.NoError(t, err)
	m, err := second.RecvMessage(0)
	require.NoError(t, err)
	require.Equal(t, []string{"me now"}, m)
}

// A peer that sends heartbeats hears its PONGs, or it would hang up.
func TestHeartbeatsOfLibzmq(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, nil)
	d := libzmq(t, zmq.DEALER, func(d *zmq.Socket) {
		require.NoError(t, d.SetHeartbeatIvl(20*time.Millisecond))
		require.NoError(t, d.SetHeartbeatTimeout(1500*time.Millisecond))
		require.NoError(t, d.SetHeartbeatTtl(3*time.Second))
		require.NoError(t, d.SetRcvtimeo(2500*time.Millisecond))
	})
	require.NoError(t, d.Connect(url))
	wait(t, "the peer", h.came)
	_, err := d.RecvMessage(0) // for longer than its timeout
	require.Error(t, err)
	require.NoError(t, d.SetRcvtimeo(limitTime))
	_, err = d.SendMessage("hi")
	require.NoError(t, err)
	_, err = d.RecvMessage(0)
	require.NoError(t, err)
	require.Empty(t, h.gone, "it has never hung up")
	require.Empty(t, h.came)
}

func TestHeartbeatsByHand(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, nil)
	c := plain(t, url)
	_, err := c.Write(appendReady(newGreeting(), "DEALER", ""))
	require.NoError(t, err)
	ping := appendCommand(nil, []byte("\x04PING\x00\x01context"))
	_, err = c.Write(ping)
	require.NoError(t, err)
	want := appendCommand(appendReady(newGreeting(), "ROUTER", ""), []byte("\x04PONGcontext"))
	got := make([]byte, len(want))
	_, err = readFull(c, got)
	require.NoError(t, err)
	require.Equal(t, want, got)
	// Its time to live was 100 ms, and nothing came behind it.
	require.ErrorIs(t, wait(t, "the end", h.gone), ErrStalled)
}

func readFull(c net.Conn, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		k, err = c.Read(b[n:])
		n += k
	}
	return n, err
}

func TestOthersAreRefusedAndCostNobody(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, nil)
	good := dealer(t, url)
	wait(t, "a good peer", h.came)
	ours := newGreeting()
	curve := bytes.Replace(ours, []byte("NULL\x00"), []byte("CURVE"), 1)
	f := func(want string, raw []byte) {
		t.Helper()
		c := plain(t, url)
		_, err := c.Write(raw)
		require.NoError(t, err)
		err = wait(t, want, h.refused)
		require.ErrorIs(t, err, ErrHandshake)
		require.ErrorContains(t, err, want)
	}
	f("no ZMTP peer", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f("no ZMTP peer", bytes.Repeat([]byte{0xff, 0}, 40))
	f("no ZMTP peer", []byte{1})
	f("ZMTP 0", append(append([]byte{}, ours[:10]...), 0, 1))
	f("ZMTP 1", append(append([]byte{}, ours[:10]...), 1, 5))
	f("CURVE", curve)
	f("cannot talk to a ROUTER", appendReady(newGreeting(), "SUB", ""))
	f("cannot talk to a ROUTER", appendCommand(newGreeting(), []byte("\x05READY")))
	f("instead of READY", AppendFrame(newGreeting(), []byte("hello"), false))
	f("instead of READY", append(newGreeting(), flagCommand|flagLong, 0, 0, 0, 0, 0, 1, 0, 0))
	f("flags", append(newGreeting(), 0xf0, 1, 1))
	f("cut short", appendCommand(newGreeting(), []byte("\x05READY\x0bSocket-Type\xff\xff\xff\xffDEALER")))
	f("identity of 300", appendReady(newGreeting(), "DEALER", strings.Repeat("i", 300)))
	require.NoError(t, good.Write(message([]byte("alive"))))
	m, err := good.Read()
	require.NoError(t, err)
	require.Equal(t, "alive", string(m[0]))
}

// Who is slow to say what it is does not stay.
func TestHandshakeHasALimit(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, func(o *RouterOptions) { o.HandshakeTimeout = 100 * time.Millisecond })
	ready := appendReady(newGreeting(), "DEALER", "")
	for _, raw := range [][]byte{nil, ready[:1], ready[:30], ready[:70], ready[:len(ready)-1]} {
		_, err := plain(t, url).Write(raw)
		require.NoError(t, err)
		err = wait(t, "its end", h.refused)
		require.ErrorIs(t, err, ErrHandshake)
		require.ErrorContains(t, err, "i/o timeout")
	}
	require.Empty(t, h.came)
}

func TestBrokenMessagesEndTheirConnection(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, func(o *RouterOptions) { o.MaxMessageBytes = 4 << 20 })
	f := func(want error, raw []byte) {
		t.Helper()
		d := dealer(t, url)
		wait(t, "a peer", h.came)
		require.NoError(t, d.Write(raw))
		require.ErrorIs(t, wait(t, "its end", h.gone), want)
	}
	f(ErrProtocol, []byte{0x40, 0})
	f(ErrProtocol, append(AppendFrame(nil, []byte("a"), true), flagCommand, 0))
	f(ErrProtocol, []byte{flagCommand | flagMore, 0})
	f(ErrProtocol, appendCommand(nil, []byte("\x05ERROR\x01x")))
	f(ErrProtocol, appendCommand(nil, []byte("\x04PING\x00")))
	f(ErrTooLarge, AppendHead(nil, 4<<20+1, false))
	f(ErrTooLarge, []byte{flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f(ErrTooLarge, append(AppendFrame(nil, make([]byte, 3<<20), true), AppendHead(nil, 2<<20, false)...))
	f(ErrTooLarge, bytes.Repeat(AppendFrame(nil, nil, true), maxParts+1))
	f(ErrTooLarge, []byte{flagCommand | flagLong, 0, 0, 0, 0, 0, 0, maxCommand >> 8, 1})
}

// A message that stops in its middle ends its connection; silence between
// messages does not.
func TestStalledMessages(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, func(o *RouterOptions) { o.StallTimeout = 200 * time.Millisecond })
	idle := dealer(t, url)
	wait(t, "an idle peer", h.came)
	for _, raw := range [][]byte{
		AppendFrame(nil, []byte("first"), true),
		{flagMore},
		append(AppendHead(nil, 3<<20, false), make([]byte, 2<<20)...),
	} {
		d := dealer(t, url)
		wait(t, "a peer", h.came)
		require.NoError(t, d.Write(raw))
		require.ErrorIs(t, wait(t, "its end", h.gone), ErrStalled)
	}
	require.NoError(t, idle.Write(message([]byte("alive"))))
	_, err := idle.Read()
	require.NoError(t, err)
}

// Frames beyond the limit are dropped, and the message still comes.
func TestFramesBeyondTheLimit(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, func(o *RouterOptions) { o.MaxFrames = 3 })
	d := dealer(t, url)
	require.NoError(t, d.Write(message([]byte("1"), []byte("2"), []byte("3"), []byte("4"), make([]byte, largeFrame), []byte("6"))))
	m, err := d.Read()
	require.NoError(t, err)
	require.Len(t, m, 3)
}

// A peer that does not read loses what finds its queue full, and nobody else
// waits. What was queued comes, whole and in order, once it reads again.
func TestPeerThatDoesNotRead(t *testing.T) {
	h := newRecorder()
	var dropped atomic.Int64
	h.on = func(p *Peer, m *Message) {
		if err := p.Queue(append([][]byte{}, append(m.Frames, bytes.Repeat([]byte{m.Frames[0][0]}, 40<<10))...)...); err != nil {
			require.ErrorIs(t, err, ErrQueueFull)
			dropped.Add(1)
		}
	}
	_, url := serve(t, h, func(o *RouterOptions) { o.QueueMessages = 500 })
	mute, other := dealer(t, url), dealer(t, url)
	var sent int
	for ; dropped.Load() == 0; sent++ {
		require.NoError(t, mute.Write(message([]byte{byte(sent), byte(sent >> 8), byte(sent >> 16)})))
	}
	require.NoError(t, other.Write(message([]byte("other"))))
	_, err := other.Read()
	require.NoError(t, err)
	last, n := -1, 0
	for ; n < sent-int(dropped.Load()); n++ {
		m, err := mute.Read()
		require.NoError(t, err)
		i := int(m[0][0]) | int(m[0][1])<<8 | int(m[0][2])<<16
		require.Greater(t, i, last)
		require.True(t, bytes.Equal(bytes.Repeat(m[0][:1], 40<<10), m[1]))
		last = i
	}
	require.GreaterOrEqual(t, n, 500)
	require.NoError(t, mute.Write(message([]byte("end"))))
	for {
		m, err := mute.Read()
		require.NoError(t, err)
		if string(m[0]) == "end" {
			break
		}
	}
}

// Pieces are told exactly once that nobody reads them any more.
func TestPieces(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, func(o *RouterOptions) { o.QueueBytes = 1 << 20 })
	d := dealer(t, url)
	p := wait(t, "the peer", h.came)
	var done atomic.Int64
	end := func() { done.Add(1) }
	a, b := bytes.Repeat([]byte("a"), 300), bytes.Repeat([]byte("b"), 100<<10)
	require.NoError(t, p.SendPieces(end, [][]byte{a, nil, b}, []byte("uid")))
	require.NoError(t, p.SendPieces(end, [][]byte{}, []byte("none")))
	m, err := d.Read()
	require.NoError(t, err)
	require.Equal(t, "uid", string(m[0]))
	require.True(t, bytes.Equal(append(append([]byte{}, a...), b...), m[1]))
	m, err = d.Read()
	require.NoError(t, err)
	require.Empty(t, m[1])
	require.Eventually(t, func() bool { return done.Load() == 2 }, limitTime, time.Millisecond)
	// Nobody reads: the queue fills, and what is in it ends with the connection.
	huge := make([]byte, 32<<20)
	calls := int64(2)
	for err = nil; err == nil; calls++ {
		err = p.SendPieces(end, [][]byte{huge})
	}
	require.ErrorIs(t, err, ErrQueueFull)
	require.Less(t, done.Load(), calls, "the large ones are on their way")
	require.NoError(t, d.Close())
	_ = wait(t, "the end", h.gone)
	require.ErrorIs(t, p.SendPieces(end, [][]byte{a}), ErrPeerGone)
	require.ErrorIs(t, p.Send(a), ErrPeerGone)
	require.Equal(t, calls+1, done.Load())
}

// Detached messages keep their bytes while the connection goes on.
func TestDetach(t *testing.T) {
	h := newRecorder()
	kept := make(chan Message, 64)
	h.on = func(_ *Peer, m *Message) { kept <- m.Detach() }
	_, url := serve(t, h, nil)
	d := dealer(t, url)
	sizes := []int{0, 10, 3000, 40 << 10, 200 << 10, largeFrame - 1, largeFrame, 3 << 20, 12 << 20, 7}
	var batch []byte
	for i, n := range sizes {
		f := bytes.Repeat([]byte{byte(i + 1)}, n)
		batch = append(batch, message([]byte{byte(i)}, f, f[:n/2])...)
	}
	go func() { _ = d.Write(append(batch, batch...)) }()
	var all []Message
	for range 2 * len(sizes) {
		all = append(all, wait(t, "a message", kept))
	}
	for i, m := range all {
		i %= len(sizes)
		f := bytes.Repeat([]byte{byte(i + 1)}, sizes[i])
		require.Len(t, m.Frames, 3)
		require.Equal(t, []byte{byte(i)}, m.Frames[0])
		require.True(t, bytes.Equal(f, m.Frames[1]), sizes[i])
		require.True(t, bytes.Equal(f[:sizes[i]/2], m.Frames[2]), sizes[i])
		require.Equal(t, 1+sizes[i]+sizes[i]/2, m.Bytes())
		m.Release()
	}
}

func TestThousandConnections(t *testing.T) {
	h := newRecorder()
	s, url := serve(t, h, nil)
	n := 1000
	var lim syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim))
	if room := int(lim.Cur/2) - 64; room < n { // both ends are ours
		n = room
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			var mine []*Conn
			for range n / 8 {
				mine = append(mine, dealer(t, url))
			}
			for round := range 3 {
				for i, d := range mine {
					if err := d.Write(message([]byte{byte(w), byte(i), byte(round)})); err != nil {
						t.Error(err)
					}
				}
				for i, d := range mine {
					m, err := d.Read()
					if err != nil || !bytes.Equal(m[0], []byte{byte(w), byte(i), byte(round)}) {
						t.Error(err, m)
					}
				}
			}
			for _, d := range mine {
				_ = d.Close()
			}
		})
	}
	wg.Wait()
	for range n / 8 * 8 {
		_ = wait(t, "the end of each", h.gone)
	}
	require.Eventually(t, func() bool { return s.Peers() == 0 }, limitTime, time.Millisecond)
}

// The server may come back on the same port while its clients stand.
func TestHotRestart(t *testing.T) {
	h := newRecorder()
	d := libzmq(t, zmq.DEALER, nil)
	url := "tcp://127.0.0.1:*"
	for i := range 3 {
		s := NewRouter(RouterOptions{Handler: h})
		var err error
		url, err = s.Listen(url)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- s.Serve() }()
		if i == 0 {
			require.NoError(t, d.Connect(url))
		}
		wait(t, "the client", h.came)
		_, err = d.SendMessage(fmt.Sprint(i))
		require.NoError(t, err)
		m, err := d.RecvMessage(0)
		require.NoError(t, err)
		require.Equal(t, []string{fmt.Sprint(i)}, m)
		require.NoError(t, s.Close(time.Second))
		require.NoError(t, <-done)
		_ = wait(t, "the end", h.gone)
	}
}

// What was queued leaves before the connections end.
func TestCloseLetsRepliesLeave(t *testing.T) {
	h := newRecorder()
	big := bytes.Repeat([]byte{9}, 24<<20)
	h.on = func(p *Peer, _ *Message) { _ = p.Queue(big) }
	s, url := serve(t, h, nil)
	d := dealer(t, url)
	require.NoError(t, d.Write(message([]byte("x"))))
	p := wait(t, "the peer", h.came)
	require.Eventually(t, func() bool { return !p.idle() }, limitTime, time.Millisecond)
	got := make(chan int, 1)
	closed := make(chan error, 1)
	go func() { closed <- s.Close(limitTime) }()
	go func() {
		m, err := d.Read()
		if err != nil {
			t.Error(err)
			got <- 0
			return
		}
		got <- len(m[0])
	}()
	require.Equal(t, len(big), wait(t, "the reply", got))
	require.NoError(t, wait(t, "the close", closed))
	_, err := d.Read()
	require.Error(t, err)
	require.ErrorIs(t, s.Close(0), net.ErrClosed)
	_, err = s.Listen("tcp://127.0.0.1:*")
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestEndpoints(t *testing.T) {
	h := newRecorder()
	ipc := filepath.Join(t.TempDir(), "sock")
	f := func(endpoint, want string) {
		t.Helper()
		s := NewRouter(RouterOptions{Handler: h})
		bound, err := s.Listen(endpoint)
		if strings.Contains(endpoint, "::1") && err != nil {
			t.Skip("this machine has no IPv6: ", err)
		}
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(bound, want), bound)
		done := make(chan error, 1)
		go func() { done <- s.Serve() }()
		d := libzmq(t, zmq.DEALER, func(d *zmq.Socket) { require.NoError(t, d.SetIpv6(true)) })
		require.NoError(t, d.Connect(strings.Replace(bound, "0.0.0.0", "127.0.0.1", 1)))
		_, err = d.SendMessage("hello")
		require.NoError(t, err)
		m, err := d.RecvMessage(0)
		require.NoError(t, err)
		require.Equal(t, []string{"hello"}, m)
		require.NoError(t, s.Close(0))
		require.NoError(t, <-done)
	}
	f("tcp://localhost:*", "tcp://127.0.0.1:")
	f("tcp://*:0", "tcp://0.0.0.0:")
	f("tcp://127.0.0.1:*", "tcp://127.0.0.1:")
	f("tcp://lo:*", "tcp://127.0.0.1:")
	f("ipc://"+ipc, "ipc://"+ipc)
	f("ipc://@lmcache-go-test-"+filepath.Base(filepath.Dir(ipc)), "ipc://@")
	f("tcp://[::1]:*", "tcp://[::1]:")
}

func TestBadEndpoints(t *testing.T) {
	s := NewRouter(RouterOptions{Handler: newRecorder()})
	defer func() { require.NoError(t, s.Close(0)) }()
	for _, e := range []string{"", "tcp://", "tcp://1.2.3.4", "tcp://127.0.0.1:70000", "tcp://127.0.0.1:x", "tcp://no-such-host.invalid:1", "udp://127.0.0.1:1", "inproc://x"} {
		_, err := s.Listen(e)
		require.ErrorIs(t, err, ErrEndpoint, e)
	}
	bound, err := s.Listen("tcp://127.0.0.1:*")
	require.NoError(t, err)
	_, err = s.Listen(bound)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	path := filepath.Join(t.TempDir(), "sock")
	_, err = s.Listen("ipc://" + path)
	require.NoError(t, err)
	_, err = s.Listen("ipc://" + path)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "somebody listens there")
	// A file that a killed process has left is no obstacle.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path + "2"}))
	require.NoError(t, unix.Close(fd))
	_, err = s.Listen("ipc://" + path + "2")
	require.NoError(t, err)
}

func TestSocketOptions(t *testing.T) {
	h := newRecorder()
	_, url := serve(t, h, nil)
	dealer(t, url)
	p := wait(t, "the peer", h.came)
	f := func(want, level, opt int) {
		t.Helper()
		require.NoError(t, p.raw.Control(func(fd uintptr) {
			v, err := unix.GetsockoptInt(int(fd), level, opt)
			require.NoError(t, err)
			require.Equal(t, want, v)
		}))
	}
	f(1, unix.IPPROTO_TCP, unix.TCP_NODELAY)
	f(1, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
	f(60, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
}
