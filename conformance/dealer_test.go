package conformance

import (
	"bytes"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
)

var (
	opNoop    = []byte{24}
	opPing    = []byte{22}
	replyOK   = []byte("\xa2OK")
	replyTrue = []byte{0xc3}
)

// dealer is a DEALER socket that sends and receives raw frames. It belongs to
// one goroutine at a time.
type dealer struct {
	context *zmq4.Context
	socket  *zmq4.Socket
}

func dial(url string) (*dealer, error) {
	ctx, err := zmq4.NewContext()
	if err != nil {
		return nil, err
	}
	socket, err := ctx.NewSocket(zmq4.DEALER)
	if err != nil {
		return nil, err
	}
	d := &dealer{ctx, socket}
	if err := socket.SetLinger(0); err != nil {
		return nil, err
	}
	// A full queue or a peer that is gone must not block a test.
	if err := socket.SetSndtimeo(10 * time.Second); err != nil {
		return nil, err
	}
	// A server that is still starting is found soon.
	if err := socket.SetReconnectIvl(20 * time.Millisecond); err != nil {
		return nil, err
	}
	return d, socket.Connect(url)
}

// newDealer connects to the server and disconnects when the test ends.
func newDealer(t *testing.T, s *server) *dealer {
	t.Helper()
	d, err := dial(s.url())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d
}

func (d *dealer) close() {
	_ = d.socket.Close()
	_ = d.context.Term()
}

func (d *dealer) send(frames ...[]byte) error {
	_, err := d.socket.SendMessage(frames)
	return err
}

// receive returns the next message, or nil when none comes within limit.
func (d *dealer) receive(limit time.Duration) ([][]byte, error) {
	if err := d.socket.SetRcvtimeo(limit); err != nil {
		return nil, err
	}
	frames, err := d.socket.RecvMessageBytes(0)
	if err != nil && zmq4.AsErrno(err) == zmq4.Errno(11) { // EAGAIN
		return nil, nil
	}
	return frames, err
}

// ask sends a request and returns its reply; nil when there is none within limit.
func (d *dealer) ask(t *testing.T, limit time.Duration, frames ...[]byte) [][]byte {
	t.Helper()
	if err := d.send(frames...); err != nil {
		t.Fatal(err)
	}
	reply, err := d.receive(limit)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// alive checks that the server answers noop and ping.
func (d *dealer) alive(t *testing.T) {
	t.Helper()
	for _, c := range []struct{ uid, op, payload, want []byte }{
		{[]byte("noop"), opNoop, nil, replyOK},
		{[]byte("ping"), opPing, []byte{0xc0}, replyTrue},
	} {
		request := [][]byte{c.uid, c.op}
		if c.payload != nil {
			request = append(request, c.payload)
		}
		got := d.ask(t, replyLimit, request...)
		if len(got) != 3 || !bytes.Equal(got[0], c.uid) || !bytes.Equal(got[1], c.op) || !bytes.Equal(got[2], c.want) {
			t.Errorf("%s: got %q", c.uid, got)
		}
	}
}
