package mpserver

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// transport is the ZMQ side of a server: the ROUTER that clients talk to, its
// monitor, and the wake-up by which other goroutines hand replies to the loop.
// Only the loop goroutine touches router, monitor and wakeIn.
type transport struct {
	ctx      *zmq.Context
	router   *zmq.Socket
	monitor  *zmq.Socket // nil where the library has no monitor
	wakeIn   *zmq.Socket
	poller   *zmq.Poller
	endpoint string
	probeURL string

	wakeMu  sync.Mutex
	wakeOut *zmq.Socket // guarded by wakeMu

	woken  atomic.Bool
	outMu  sync.Mutex
	outbox []outgoing // guarded by outMu
	spare  []outgoing // the loop's; swapped with outbox
}

// outgoing is one finished reply: the frames of wire-protocol 1.
type outgoing struct {
	identity []byte
	uid      []byte
	op       []byte
	value    []byte
	hasValue bool
	pooled   bool // value goes back to the buffers once it is sent
}

const (
	// sendQueue is how many frames may wait for one client that does not
	// read. ROUTER_MANDATORY makes a full queue an error, so nobody blocks.
	sendQueue = 65536
	// lingerStop is how long the stop waits for replies to leave.
	lingerStop = time.Second
	// inprocSeq makes inproc names unique within a process.
)

var inprocSeq atomic.Uint64

// newTransport binds the ROUTER. Reference: lmcache 0.5.6,
// v1/multiprocess/transport/zmq (ROUTER_MANDATORY=1, no other option).
func newTransport(o Options) (*transport, error) {
	t := &transport{}
	var err error
	if t.ctx, err = zmq.NewContext(); err != nil {
		return nil, fmt.Errorf("zmq context: %w", err)
	}
	defer func() {
		if err != nil {
			_ = t.close()
		}
	}()
	if t.router, err = t.ctx.NewSocket(zmq.ROUTER); err != nil {
		return nil, fmt.Errorf("zmq socket: %w", err)
	}
	err = errors.Join(
		t.router.SetRouterMandatory(1),
		t.router.SetSndhwm(sendQueue),
		t.router.SetMaxmsgsize(o.MaxMessageBytes),
		t.router.SetLinger(lingerStop),
		t.router.SetTcpKeepalive(1),
		t.router.SetTcpKeepaliveIdle(60),
	)
	if err != nil {
		return nil, fmt.Errorf("zmq socket options: %w", err)
	}
	seq := strconv.FormatUint(inprocSeq.Add(1), 10)
	monitorURL := "inproc://lmcache-go-monitor-" + seq
	if err = t.router.Monitor(monitorURL, zmq.EVENT_ACCEPTED|zmq.EVENT_DISCONNECTED); err != nil {
		return nil, fmt.Errorf("zmq monitor: %w", err)
	}
	if t.monitor, err = t.ctx.NewSocket(zmq.PAIR); err != nil {
		return nil, fmt.Errorf("zmq monitor: %w", err)
	}
	if err = t.monitor.Connect(monitorURL); err != nil {
		return nil, fmt.Errorf("zmq monitor: %w", err)
	}
	if err = t.bind(o.Host, o.Port); err != nil {
		return nil, err
	}
	t.probeURL = "inproc://lmcache-go-probe-" + seq
	if err = t.router.Bind(t.probeURL); err != nil {
		return nil, fmt.Errorf("bind the probe: %w", err)
	}
	wakeURL := "inproc://lmcache-go-wake-" + seq
	if t.wakeIn, err = t.ctx.NewSocket(zmq.PULL); err != nil {
		return nil, fmt.Errorf("zmq wake-up: %w", err)
	}
	if err = t.wakeIn.Bind(wakeURL); err != nil {
		return nil, fmt.Errorf("zmq wake-up: %w", err)
	}
	if t.wakeOut, err = t.ctx.NewSocket(zmq.PUSH); err != nil {
		return nil, fmt.Errorf("zmq wake-up: %w", err)
	}
	if err = t.wakeOut.Connect(wakeURL); err != nil {
		return nil, fmt.Errorf("zmq wake-up: %w", err)
	}
	t.poller = zmq.NewPoller()
	t.poller.Add(t.router, zmq.POLLIN)
	t.poller.Add(t.wakeIn, zmq.POLLIN)
	t.poller.Add(t.monitor, zmq.POLLIN)
	return t, nil
}

// bind listens on tcp://host:port; port 0 asks the kernel.
func (t *transport) bind(host string, port int) error {
	p := strconv.Itoa(port)
	if port == 0 {
		p = "*"
	}
	addr := BindAddress(host)
	url := "tcp://" + net.JoinHostPort(addr, p)
	if ip := net.ParseIP(addr); ip != nil && ip.To4() == nil {
		if err := t.router.SetIpv6(true); err != nil {
			return fmt.Errorf("zmq ipv6: %w", err)
		}
	}
	if err := t.router.Bind(url); err != nil {
		if zmq.AsErrno(err) == zmq.Errno(syscall.EADDRINUSE) {
			return fmt.Errorf("bind %s: another process listens there: stop it or choose another --port: %w", url, err)
		}
		return fmt.Errorf("bind %s: check --host and --port: %w", url, err)
	}
	ep, err := t.router.GetLastEndpoint()
	if err != nil {
		return fmt.Errorf("bind %s: %w", url, err)
	}
	t.endpoint = ep
	return nil
}

// post hands a finished reply to the loop. Any goroutine.
func (t *transport) post(o outgoing) {
	t.outMu.Lock()
	t.outbox = append(t.outbox, o)
	t.outMu.Unlock()
	t.wake()
}

// wake makes the loop look at the outbox.
func (t *transport) wake() {
	if t.woken.Swap(true) {
		return
	}
	t.wakeMu.Lock()
	defer t.wakeMu.Unlock()
	if t.wakeOut != nil {
		// A full wake-up queue means that a wake-up is pending: nothing is lost.
		_, _ = t.wakeOut.SendBytes([]byte{1}, zmq.DONTWAIT)
	}
}

// takeOutbox returns what was posted since the last call; the slice is valid
// until the next one. Loop goroutine only.
func (t *transport) takeOutbox() []outgoing {
	t.woken.Store(false)
	clear(t.spare)
	t.outMu.Lock()
	t.outbox, t.spare = t.spare[:0], t.outbox
	t.outMu.Unlock()
	return t.spare
}

// send writes one reply. It never blocks: a client that is gone or does not
// read loses the reply, and the error says so.
func (t *transport) send(o *outgoing) error {
	if _, err := t.router.SendBytes(o.identity, zmq.SNDMORE|zmq.DONTWAIT); err != nil {
		return err
	}
	if _, err := t.router.SendBytes(o.uid, zmq.SNDMORE|zmq.DONTWAIT); err != nil {
		return err
	}
	if !o.hasValue {
		_, err := t.router.SendBytes(o.op, zmq.DONTWAIT)
		return err
	}
	if _, err := t.router.SendBytes(o.op, zmq.SNDMORE|zmq.DONTWAIT); err != nil {
		return err
	}
	_, err := t.router.SendBytes(o.value, zmq.DONTWAIT)
	return err
}

// stop makes the loop look around once more; it then sees that its stop
// channel is closed.
func (t *transport) stop() {
	t.woken.Store(false)
	t.wake()
}

// close releases the sockets. The loop has ended.
func (t *transport) close() error {
	t.wakeMu.Lock()
	defer t.wakeMu.Unlock()
	var errs []error
	for _, s := range []*zmq.Socket{t.wakeOut, t.wakeIn, t.monitor, t.router} {
		if s == nil {
			continue
		}
		if s != t.router {
			errs = append(errs, s.SetLinger(0))
		}
		errs = append(errs, s.Close())
	}
	t.wakeOut = nil
	if t.ctx != nil {
		errs = append(errs, t.ctx.Term())
		t.ctx = nil
	}
	return errors.Join(errs...)
}
