package pd

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
)

// Query asks the side channel at host and port for one rank, as a consumer does.
// An engine without a Model of its own reads the hash to present from a peer
// this way. Without a deadline in ctx it waits 5 s. Errors wrap [ErrHandshake].
func Query(ctx context.Context, host string, port, tpRank int) (*Handshake, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
	}
	c, err := dialSide(ctx, host, port)
	if err != nil {
		return nil, err
	}
	defer c.close()
	h, _, err := c.ask(tpRank)
	return h, err
}

// sideClient is a connection to a side channel, for the time of a handshake.
type sideClient struct {
	at      string
	conn    *zmtp.Conn
	unwatch func() bool
	ctx     context.Context //nolint:containedctx // one call long
}

// dialSide connects; everything ends with ctx.
func dialSide(ctx context.Context, host string, port int) (*sideClient, error) {
	c := &sideClient{at: net.JoinHostPort(host, strconv.Itoa(port)), ctx: ctx}
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.at)
	if err != nil {
		return nil, fmt.Errorf("%w: side channel %s: %w: is the engine up, and its %s reachable from here?", ErrHandshake, c.at, err, EnvHost)
	}
	c.unwatch = context.AfterFunc(ctx, func() { _ = nc.Close() })
	if c.conn, err = zmtp.Handshake(nc, "REQ", "", maxHandshake); err != nil {
		c.unwatch()
		_ = nc.Close()
		return nil, c.fail(err)
	}
	return c, nil
}

// fail names the address, and the end of the context where that is the reason.
func (c *sideClient) fail(err error) error {
	if cause := context.Cause(c.ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("%w: side channel %s: %w", ErrHandshake, c.at, err)
}

func (c *sideClient) close() {
	c.unwatch()
	_ = c.conn.Close()
}

// clockSample relates a peer's clock to ours.
type clockSample struct {
	offset float64 // its clock minus ours, in seconds
	rtt    time.Duration
}

// ask requests one rank. The result is the caller's.
func (c *sideClient) ask(tp int) (*Handshake, clockSample, error) {
	var s clockSample
	request := appendRequest(nil, 0, tp)
	sent := time.Now()
	if err := c.conn.Write(zmtp.AppendFrame(zmtp.AppendFrame(nil, nil, true), request, false)); err != nil {
		return nil, s, c.fail(err)
	}
	frames, err := c.conn.Read()
	if err != nil {
		return nil, s, c.fail(err)
	}
	s.rtt = time.Since(sent)
	if len(frames) != 3 || len(frames[0]) != 0 {
		return nil, s, c.fail(fmt.Errorf("%w: an answer of %d frames, not an empty one, the payload and the clock", ErrMessage, len(frames)))
	}
	r := &reader{b: frames[2]}
	clock := r.float()
	if err := r.end(); err != nil {
		return nil, s, c.fail(err)
	}
	s.offset = clock - time.Since(processStart).Seconds() + s.rtt.Seconds()/2
	h, err := ParseHandshake(append([]byte(nil), frames[1]...))
	if err != nil {
		return nil, s, c.fail(err)
	}
	if h.Err != "" {
		return nil, s, c.fail(fmt.Errorf("%w: it says: %.300s", ErrIncompatible, h.Err))
	}
	return h, s, nil
}

// processStart is the zero of our clock, as time.perf_counter of Python has one.
var processStart = time.Now()

// newID is a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
