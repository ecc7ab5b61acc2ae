package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/bufpool"
)

// Handler is what a [RouterSocket] tells. The calls for one peer come one after
// another from one goroutine, those for different peers at the same time.
type Handler interface {
	// Connected: the peer has shaken hands; its messages follow.
	Connected(p *Peer)
	// Message: the peer sent m, whose frames are valid until Message returns.
	// While it runs, nothing else of this peer is read.
	Message(p *Peer, m *Message)
	// Disconnected: the connection has ended, for the reason err; nothing of
	// this peer follows. Its identity is free again once this returns.
	Disconnected(p *Peer, err error)
	// Refused: a connection from addr was ended before it became a peer.
	Refused(addr net.Addr, err error)
}

// RouterOptions configure a [RouterSocket].
type RouterOptions struct {
	// Handler is required.
	Handler Handler
	// MaxMessageBytes bounds the frames of one message together. Default 4 GiB
	// and 64 KiB. A larger one ends its sender's connection.
	MaxMessageBytes int64
	// MaxFrames is how many frames of a message are kept; those beyond are
	// dropped, and beyond 1024 the connection ends. Default 64.
	MaxFrames int
	// HandshakeTimeout bounds the way from the connection to READY. Default 10 s.
	HandshakeTimeout time.Duration
	// StallTimeout is how long a message may stop in its middle. Default 2 min.
	StallTimeout time.Duration
	// QueueBytes and QueueMessages bound what waits for a peer that does not
	// read: a message is dropped when either is reached. Default 1 GiB, 65536.
	QueueBytes    int64
	QueueMessages int
	// KeepAlive finds peers whose machine is gone. Default: after 60 s of
	// silence, 4 probes, 15 s apart.
	KeepAlive net.KeepAliveConfig
	// Logger is told when connections cannot be accepted. Default: nobody.
	Logger *slog.Logger
}

func (o *RouterOptions) setDefaults() {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.HandshakeTimeout, 10*time.Second)
	def(&o.StallTimeout, 2*time.Minute)
	if o.MaxMessageBytes <= 0 {
		o.MaxMessageBytes = 4<<30 + 64<<10
	}
	if o.MaxFrames <= 0 {
		o.MaxFrames = 64
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = 1 << 30
	}
	if o.QueueMessages <= 0 {
		o.QueueMessages = 65536
	}
	if o.KeepAlive == (net.KeepAliveConfig{}) {
		o.KeepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// RouterSocket is the ROUTER side of ZMTP 3.0 and 3.1 with the NULL mechanism: it
// listens, and serves DEALER and REQ peers. Each connection has a goroutine
// that reads and calls the [Handler], and a second one while the peer does not
// take what is sent.
//
// A peer with an identity that another connection has is turned away until
// that one has ended; libzmq would leave it connected and deaf.
type RouterSocket struct {
	opt RouterOptions
	wg  sync.WaitGroup
	seq atomic.Uint32

	mu        sync.Mutex
	listeners []net.Listener     // guarded by mu
	peers     map[*Peer]struct{} // guarded by mu: all connections
	names     map[string]*Peer   // guarded by mu: those with a handshake
	closed    bool               // guarded by mu
	stop      chan struct{}      // closed with closed
}

// NewRouter returns a socket that listens nowhere yet. It must be closed.
func NewRouter(o RouterOptions) *RouterSocket {
	o.setDefaults()
	s := &RouterSocket{opt: o, peers: map[*Peer]struct{}{}, names: map[string]*Peer{}, stop: make(chan struct{})}
	s.seq.Store(rand.Uint32()) //nolint:gosec // a number, not a secret
	return s
}

// Listen binds an endpoint, as in "tcp://127.0.0.1:6555", "tcp://*:*",
// "ipc:///run/x.sock" or "ipc://@name", and returns the one that was bound. Peers may
// connect at once; they are answered from [RouterSocket.Serve] on. Errors:
// [ErrEndpoint], those of the system, [net.ErrClosed].
func (s *RouterSocket) Listen(endpoint string) (bound string, err error) {
	l, bound, err := listen(endpoint, s.opt.KeepAlive)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", errors.Join(net.ErrClosed, l.Close())
	}
	s.listeners = append(s.listeners, l)
	return bound, nil
}

// Serve accepts connections on everything that was bound before, until
// [RouterSocket.Close]. It returns nil then, and an error when a listener is broken.
func (s *RouterSocket) Serve() error {
	s.mu.Lock()
	listeners := slices.Clone(s.listeners)
	s.mu.Unlock()
	errs := make([]error, len(listeners))
	var wg sync.WaitGroup
	wg.Go(s.watch)
	for i, l := range listeners {
		wg.Go(func() { errs[i] = s.accept(l) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// accept takes connections from l until it is closed.
func (s *RouterSocket) accept(l net.Listener) error {
	const first, most = 5 * time.Millisecond, time.Second
	pause := first
	for {
		c, err := l.Accept()
		if err == nil {
			pause = first
			s.start(c)
			continue
		}
		select {
		case <-s.stop:
			return nil
		default:
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		// No descriptors, no memory, or a connection that ended at once.
		s.opt.Logger.Warn("a connection could not be accepted", "err", err, "again_in", pause)
		select {
		case <-s.stop:
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, most)
	}
}

// start serves c from a goroutine of its own.
func (s *RouterSocket) start(c net.Conn) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		_ = c.Close()
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		_ = c.Close()
		return
	}
	p := &Peer{sock: s, c: c, raw: raw}
	p.rd = reader{
		src: c, maxBytes: s.opt.MaxMessageBytes, maxParts: s.opt.MaxFrames,
		buf: bufpool.Shared.Get(firstBuffer), beforeRead: p.beforeRead, command: p.command,
	}
	if h, ok := s.opt.Handler.(Placer); ok {
		p.rd.place = func(frames [][]byte, size int) *Placement { return h.Place(p, frames, size) }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return
	}
	s.peers[p] = struct{}{}
	s.wg.Go(func() { s.serve(p) })
}

// serve is the life of a connection.
func (s *RouterSocket) serve(p *Peer) {
	defer func() {
		s.mu.Lock()
		delete(s.peers, p)
		s.mu.Unlock()
		p.rd.close()
	}()
	if err := s.welcome(p); err != nil {
		p.Close()
		p.finish()
		s.opt.Handler.Refused(p.c.RemoteAddr(), err)
		return
	}
	s.opt.Handler.Connected(p)
	err := p.receive()
	p.Close()
	p.finish()
	s.opt.Handler.Disconnected(p, err)
	s.mu.Lock()
	delete(s.names, p.identity)
	s.mu.Unlock()
}

// receive hands messages to the handler until the connection ends.
func (p *Peer) receive() error {
	for {
		m, err := p.rd.next()
		if err != nil {
			return err
		}
		p.sock.opt.Handler.Message(p, m)
		p.release(false)
	}
}

// beforeRead is called by the reader when it has to wait for bytes.
func (p *Peer) beforeRead() {
	p.release(true)
	if p.ttl > 0 {
		_ = p.c.SetReadDeadline(time.Now().Add(p.ttl)) // a broken connection shows in the read
		p.ttl = -1
		return
	}
	if p.ttl < 0 {
		p.ttl = 0
		_ = p.c.SetReadDeadline(time.Time{})
	}
}

// welcome does the handshake and gives the peer its name.
func (s *RouterSocket) welcome(p *Peer) error {
	_ = p.c.SetDeadline(time.Now().Add(s.opt.HandshakeTimeout)) // a broken connection shows below
	if _, err := p.c.Write(newGreeting()); err != nil {
		return fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	if err := p.rd.greeting(); err != nil {
		return err
	}
	if _, err := p.c.Write(appendReady(nil, "ROUTER", "")); err != nil {
		return fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	r, err := p.rd.ready()
	if err != nil {
		return err
	}
	if !takesRouter(r.socket) {
		err := fmt.Errorf("%w: a %.16q socket cannot talk to a ROUTER", ErrHandshake, r.socket)
		_, _ = p.c.Write(appendError(nil, "Invalid socket type")) // it is told if it can be
		return err
	}
	p.socket, p.identity = r.socket, r.identity
	if err := s.name(p); err != nil {
		return err
	}
	return p.c.SetDeadline(time.Time{})
}

// name enters p among those that can be sent to.
func (s *RouterSocket) name(p *Peer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.identity == "" {
		var id [5]byte // as libzmq makes them: a zero, which chosen names do not begin with, and a number
		for {
			binary.BigEndian.PutUint32(id[1:], s.seq.Add(1))
			if s.names[string(id[:])] == nil {
				break
			}
		}
		p.identity = string(id[:])
	}
	if s.names[p.identity] != nil {
		return fmt.Errorf("%w: %.32q from %s", ErrDuplicate, p.identity, p.c.RemoteAddr())
	}
	s.names[p.identity] = p
	return nil
}

// Peer is the peer of that identity, nil when there is none.
func (s *RouterSocket) Peer(identity []byte) *Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[string(identity)]
}

// Peers is the number of peers, those that are shaking hands not counted.
func (s *RouterSocket) Peers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names)
}

// watchTurns is how many looks at a connection make up its StallTimeout.
const watchTurns = 4

// watch ends the connections whose message has stopped in its middle, and
// lets unused buffers go.
func (s *RouterSocket) watch() {
	tick := time.NewTicker(max(s.opt.StallTimeout/watchTurns, time.Millisecond))
	defer tick.Stop()
	trim := time.NewTicker(trimEvery)
	defer trim.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-trim.C:
			bufpool.Shared.Trim()
		case <-tick.C:
			s.endStalled()
		}
	}
}

// trimEvery is how long a buffer lies unused before its memory goes, at most twice.
const trimEvery = 10 * time.Second

func (s *RouterSocket) endStalled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		step := p.rd.partial.Load()
		if step == 0 || step != p.lastStep {
			p.lastStep, p.stalled = step, 0
			continue
		}
		if p.stalled++; p.stalled >= watchTurns {
			p.rd.stalled.Store(true)
			p.Close()
		}
	}
}

// Close stops listening, waits until what is queued has been written, though
// not longer than linger, and ends all connections. It returns when no call of
// the handler is under way. It may be called once.
func (s *RouterSocket) Close(linger time.Duration) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.closed = true
	close(s.stop)
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	s.mu.Unlock()
	for end := time.Now().Add(linger); time.Now().Before(end) && !s.idle(); {
		time.Sleep(time.Millisecond)
	}
	s.mu.Lock()
	for p := range s.peers {
		p.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return errors.Join(errs...)
}

func (s *RouterSocket) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		if !p.idle() {
			return false
		}
	}
	return true
}
