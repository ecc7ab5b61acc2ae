package mpserver

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
)

// transport is the request socket of a server: the ROUTER that clients talk to.
type transport struct {
	router   *zmtp.RouterSocket
	endpoint string
}

const (
	// sendQueueMessages and sendQueueBytes are how many replies may wait for one
	// client that does not read; what comes beyond is dropped, and nobody waits.
	sendQueueMessages = 16384
	sendQueueBytes    = 1 << 30
	// lingerStop is how long the stop waits for replies to leave.
	lingerStop = time.Second
)

// newTransport binds the ROUTER.
func newTransport(o *Options, h zmtp.Handler) (*transport, error) {
	t := &transport{router: zmtp.NewRouter(zmtp.RouterOptions{
		Handler: h, MaxMessageBytes: o.MaxMessageBytes, MaxFrames: maxFrames,
		QueueMessages: sendQueueMessages, QueueBytes: sendQueueBytes, Logger: o.Logger.With("component", "mq"),
	})}
	url := "tcp://" + net.JoinHostPort(BindAddress(o.Host), strconv.Itoa(o.Port))
	var err error
	if t.endpoint, err = t.router.Listen(url); err != nil {
		_ = t.close()
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("bind %s: another process listens there: stop it or choose another --port: %w", url, err)
		}
		return nil, fmt.Errorf("bind %s: check --host and --port: %w", url, err)
	}
	return t, nil
}

// close lets the last replies leave, ends the connections and waits for what
// runs on them.
func (t *transport) close() error { return t.router.Close(lingerStop) }

// outgoing is one finished reply: the frames of wire-protocol 1.
type outgoing struct {
	uid      []byte
	op       []byte
	value    []byte
	hasValue bool
	// pieces are the value when it is not in one piece; done is called when
	// nobody reads them any more.
	pieces [][]byte
	done   func()
}

// send sends a reply to c. It never blocks: a client that is gone or does not
// read loses the reply, which is counted. onReader says that the caller is the
// goroutine that reads from c: then the reply leaves together with those to
// other requests that came with this one.
func (s *Server) send(c *client, o *outgoing, onReader bool) {
	if c.tap != nil {
		c.tap(o)
		return
	}
	p := c.peer.Load()
	var err error
	switch {
	case p == nil:
		err = zmtp.ErrPeerGone
		if o.done != nil {
			o.done()
		}
	case o.done != nil:
		err = p.SendPieces(o.done, o.pieces, o.uid, o.op)
	case onReader && o.hasValue:
		err = p.Queue(o.uid, o.op, o.value)
	case onReader:
		err = p.Queue(o.uid, o.op)
	case o.hasValue:
		err = p.Send(o.uid, o.op, o.value)
	default:
		err = p.Send(o.uid, o.op)
	}
	switch {
	case err == nil:
	case errors.Is(err, zmtp.ErrQueueFull):
		s.met.Dropped("reply_not_read")
	default:
		s.met.Dropped("reply_client_gone")
	}
}
