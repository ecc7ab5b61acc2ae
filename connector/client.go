package connector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Defaults of [Options] and the client's fixed limits. The times are those of
// the reference (lmcache 0.5.6, v1/multiprocess/transport/zmq_impl/client.py and
// integration/vllm/vllm_multi_process_adapter.py).
const (
	DefaultTimeout     = 300 * time.Second
	connectTimeout     = 5 * time.Second
	reconnectFirst     = 10 * time.Millisecond
	reconnectMax       = time.Second
	maxBacklog         = 4096 // messages
	maxReplyBytes      = 1<<32 + 1<<20
	maxBatchMessages   = 64
	pooledMessageBytes = 4 << 20
)

// Options configures a [Client]. The zero value works.
type Options struct {
	// Timeout of a call whose context has no deadline (lmcache.mp.mq_timeout).
	// Default 300 s.
	Timeout time.Duration
	// DialContext opens a stream to the server. Default: a [net.Dialer]'s.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger: default discards.
	Logger *slog.Logger
}

// Client is one DEALER of the MP protocol: requests in, replies matched by
// their uid. It connects in the background, connects again when the server
// comes back, and sends what waited meanwhile. All methods are safe for
// concurrent use; requests of one goroutine reach the server in their order.
type Client struct {
	url     string
	network string
	address string
	timeout time.Duration
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	log     *slog.Logger

	mu      sync.Mutex
	pending map[uint32]*Call // guarded by mu
	queue   []*message       // guarded by mu: not yet sent
	uid     uint32           // guarded by mu
	epoch   uint64           // guarded by mu: connections so far
	up      bool             // guarded by mu: there is a connection
	closed  bool             // guarded by mu
	wake    chan struct{}    // room for one: the queue has something

	stop        context.CancelFunc
	done        chan struct{}
	strays      atomic.Int64  // replies that nobody waited for
	connections atomic.Int64  // made so far
	connected   chan struct{} // room for one: there was a new one
}

// Dial returns a client of the server at url: "tcp://host:port", "host:port" or
// "ipc:///path". It does not wait for the connection, as a ZMQ socket does not:
// the first call does. The error says what is wrong with the url.
func Dial(url string, o Options) (*Client, error) {
	network, address, err := splitURL(url)
	if err != nil {
		return nil, err
	}
	c := &Client{
		url: url, network: network, address: address, timeout: o.Timeout, dial: o.DialContext, log: o.Logger,
		pending: make(map[uint32]*Call), wake: make(chan struct{}, 1), done: make(chan struct{}),
		connected: make(chan struct{}, 1),
	}
	if c.timeout <= 0 {
		c.timeout = DefaultTimeout
	}
	if c.dial == nil {
		c.dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go c.run(ctx)
	return c, nil
}

// splitURL turns a server url into what net.Dial takes.
func splitURL(url string) (network, address string, err error) {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		scheme, rest = "tcp", url
	}
	switch scheme {
	case "tcp":
		if _, port, err := net.SplitHostPort(rest); err != nil || port == "" {
			return "", "", fmt.Errorf("%w: server url %q: host and port are needed, as in tcp://localhost:5555", ErrConfig, url)
		}
		return "tcp", rest, nil
	case "ipc":
		if rest == "" {
			return "", "", fmt.Errorf("%w: server url %q: a path is needed, as in ipc:///run/lmcache.sock", ErrConfig, url)
		}
		return "unix", rest, nil
	}
	return "", "", fmt.Errorf("%w: server url %q: transport %s is not spoken here, use tcp:// or ipc://", ErrConfig, url, scheme)
}

// URL is what the client was dialed with.
func (c *Client) URL() string { return c.url }

// Close ends the client. What was posted before goes out first, for at most a
// second; calls in flight end with [ErrClosed]. It may be called again.
func (c *Client) Close() error {
	c.flush(time.Second)
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	<-c.done
	return nil
}

// Connected says whether there is a connection at this moment.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

// flush waits until the queue is empty, if there is a connection.
func (c *Client) flush(limit time.Duration) {
	m := &message{sent: make(chan struct{})}
	c.mu.Lock()
	if c.closed || !c.up {
		c.mu.Unlock()
		return
	}
	c.enqueue(m)
	c.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-m.sent:
	case <-t.C:
	}
}

// enqueue needs mu.
func (c *Client) enqueue(m *message) {
	c.queue = append(c.queue, m)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Call is a request in flight.
type Call struct {
	c     *Client
	op    wire.Op
	uid   uint32
	at    time.Time
	epoch uint64 // of the connection that it was sent on; 0 before; guarded by c.mu

	done    chan struct{}
	value   []byte
	present bool
	err     error
}

// Done is closed when the reply is there, or will not come.
func (k *Call) Done() <-chan struct{} { return k.done }

// Op is the operation asked for.
func (k *Call) Op() wire.Op { return k.op }

// Age is the time since the request was made.
func (k *Call) Age() time.Duration { return time.Since(k.at) }

// Ready says whether Done is closed, without waiting.
func (k *Call) Ready() bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

// Result waits for the reply. present is false where the value is None. The
// value belongs to the caller.
func (k *Call) Result() (value []byte, present bool, err error) {
	<-k.done
	return k.value, k.present, k.err
}

// Cancel gives the call up: it ends with err unless its reply was quicker. A
// request that was not sent yet will not be.
func (k *Call) Cancel(err error) {
	k.c.mu.Lock()
	if k.c.pending[k.uid] == k {
		delete(k.c.pending, k.uid)
		k.finish(nil, false, err)
	}
	k.c.mu.Unlock()
}

// finish ends the call. Whoever removed it from pending calls it, once.
func (k *Call) finish(value []byte, present bool, err error) {
	k.value, k.present, k.err = value, present, err
	close(k.done)
}

// Wait waits for the reply until ctx ends, or, when that has no deadline, for
// the client's timeout.
func (k *Call) Wait(ctx context.Context) (value []byte, present bool, err error) {
	if k.Ready() {
		return k.Result()
	}
	var late <-chan time.Time
	if _, ok := ctx.Deadline(); !ok {
		t := time.NewTimer(max(0, k.c.timeout-k.Age()))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-k.done:
	case <-late:
		k.Cancel(fmt.Errorf("%w: %v from %s after %v", ErrTimeout, k.op, k.c.url, k.c.timeout))
	case <-ctx.Done():
		err := ctx.Err()
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %v from %s: %w", ErrTimeout, k.op, k.c.url, err)
		}
		k.Cancel(err)
	}
	return k.Result()
}

// Go sends a request and returns at once. Payloads are copied.
func (c *Client) Go(op wire.Op, payloads ...[]byte) *Call {
	m := newMessage(op, len(payloads))
	for _, p := range payloads {
		m.frame(p)
	}
	return c.start(m)
}

// Post sends a request whose reply nobody waits for.
func (c *Client) Post(op wire.Op, payloads ...[]byte) { c.Go(op, payloads...) }

// start queues a finished message.
func (c *Client) start(m *message) *Call {
	k := &Call{c: c, op: m.op, at: time.Now(), done: make(chan struct{})}
	m.call = k
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		k.finish(nil, false, ErrClosed)
		return k
	}
	if len(c.queue) >= maxBacklog {
		k.finish(nil, false, ErrBacklog)
		return k
	}
	c.uid++
	for c.pending[c.uid] != nil { // after 2^32 calls
		c.uid++
	}
	k.uid = c.uid
	m.setUID(k.uid)
	c.pending[k.uid] = k
	c.enqueue(m)
	return k
}

// deliver gives a reply to the call it belongs to.
func (c *Client) deliver(frames [][]byte) {
	if len(frames) < 2 || len(frames) > 3 {
		c.strays.Add(1)
		return
	}
	uid, err := wire.DecodeInt(frames[0])
	if err != nil || uid < 0 || uid > 1<<32-1 {
		c.strays.Add(1)
		return
	}
	c.mu.Lock()
	k := c.pending[uint32(uid)]
	delete(c.pending, uint32(uid))
	c.mu.Unlock()
	if k == nil {
		c.strays.Add(1) // given up meanwhile
		return
	}
	switch op, err := wire.ParseOp(frames[1]); {
	case err != nil:
		k.finish(nil, false, fmt.Errorf("%w: to %v: operation frame % x", ErrReply, k.op, clip(frames[1])))
	case op != k.op:
		k.finish(nil, false, &RefusedError{Op: k.op})
	case len(frames) == 3:
		k.finish(frames[2], true, nil)
	default:
		k.finish(nil, false, nil)
	}
}

func clip(b []byte) []byte { return b[:min(len(b), 32)] }
