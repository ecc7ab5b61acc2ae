package zmtp

import (
	"bytes"
	"net"
	"testing"

	zmq "github.com/pebbe/zmq4"
	"github.com/stretchr/testify/require"
)

const limit = 1 << 20

// pair connects a DEALER and a ROUTER of this package.
func pair(t *testing.T) (dealer, router *Conn) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	done := make(chan error, 1)
	go func() {
		var err error
		router, err = Router(b, limit)
		done <- err
	}()
	dealer, err := Dealer(a, limit)
	require.NoError(t, err)
	require.NoError(t, <-done)
	return dealer, router
}

func message(frames ...[]byte) []byte {
	var out []byte
	for i, f := range frames {
		out = AppendFrame(out, f, i < len(frames)-1)
	}
	return out
}

func TestMessagesOfAllSizes(t *testing.T) {
	d, r := pair(t)
	for _, n := range []int{0, 1, 255, 256, 70000, limit} {
		big := bytes.Repeat([]byte{7}, n)
		sent := make(chan error, 1)
		go func() { sent <- d.WriteBuffers(net.Buffers{message([]byte("uid"), big, nil), message(big)}) }()
		m, err := r.Read()
		require.NoError(t, err)
		require.Len(t, m, 3)
		require.Equal(t, "uid", string(m[0]))
		require.Equal(t, n, len(m[1]))
		require.Empty(t, m[2])
		m, err = r.Read()
		require.NoError(t, err)
		require.Len(t, m, 1)
		require.True(t, bytes.Equal(big, m[0]))
		require.NoError(t, <-sent)
	}
}

func TestRefusesWhatIsNotZMTP(t *testing.T) {
	f := func(raw []byte, want error) {
		t.Helper()
		d, r := pair(t)
		go func() { _ = r.Write(raw); r.Close() }()
		_, err := d.Read()
		require.ErrorIs(t, err, want)
	}
	f(AppendHead(nil, limit+1, false), ErrTooLarge)
	f([]byte{flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, ErrTooLarge)
	f([]byte{0x40, 0}, ErrProtocol)
	f(append(AppendFrame(nil, []byte("a"), true), flagCommand, 0), ErrProtocol)
	f(append([]byte{flagCommand, 8}, "\x05ERROR\x01x"...), ErrProtocol)
	f(bytes.Repeat(AppendFrame(nil, nil, true), maxFrames+1), ErrTooLarge)
}

func TestSkipsCommands(t *testing.T) {
	d, r := pair(t)
	go func() {
		_ = r.Write(append(append([]byte{flagCommand, 7}, "\x04PING\x00\x00"...), message([]byte("x"))...))
	}()
	m, err := d.Read()
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("x")}, m)
}

func TestHandshakeRefusesOthers(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		buf := make([]byte, 256)
		_, _ = b.Read(buf)
		_, _ = b.Write(append([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), make([]byte, greetingBytes)...))
		b.Close()
	}()
	_, err := Dealer(a, limit)
	require.ErrorIs(t, err, ErrHandshake)
}

// libzmq is the peer that counts.
func TestAgainstLibzmq(t *testing.T) {
	ctx, err := zmq.NewContext()
	require.NoError(t, err)
	router, err := ctx.NewSocket(zmq.ROUTER)
	require.NoError(t, err)
	defer func() {
		require.NoError(t, router.Close())
		require.NoError(t, ctx.Term())
	}()
	require.NoError(t, router.SetLinger(0))
	require.NoError(t, router.Bind("tcp://127.0.0.1:*"))
	url, err := router.GetLastEndpoint()
	require.NoError(t, err)
	nc, err := net.Dial("tcp", url[len("tcp://"):])
	require.NoError(t, err)
	defer nc.Close()
	d, err := Dealer(nc, limit)
	require.NoError(t, err)
	big := bytes.Repeat([]byte{1, 2, 3}, 100000)
	require.NoError(t, d.Write(message([]byte("u"), []byte{8}, big)))
	m, err := router.RecvMessageBytes(0)
	require.NoError(t, err)
	require.Len(t, m, 4)
	require.True(t, bytes.Equal(big, m[3]))
	_, err = router.SendMessage(m[0], m[1], m[2], m[3])
	require.NoError(t, err)
	got, err := d.Read()
	require.NoError(t, err)
	require.Len(t, got, 3)
	require.Equal(t, "u", string(got[0]))
	require.True(t, bytes.Equal(big, got[2]))
}

func FuzzRead(f *testing.F) {
	f.Add(message([]byte("uid"), []byte{8}, []byte("value")))
	f.Add([]byte{flagCommand, 3, 'a', 'b', 'c'})
	f.Add([]byte{flagLong | flagMore, 0, 0, 0, 0, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, b := net.Pipe()
		go func() {
			hello := make([]byte, greetingBytes, greetingBytes+32)
			hello[0], hello[9], hello[10] = 0xff, 0x7f, 3
			copy(hello[12:], "NULL")
			hello = append(append(hello, flagCommand, 6), "\x05READY"...)
			_, _ = b.Write(append(hello, raw...))
			b.Close()
		}()
		go func() { // the peer reads what we send
			buf := make([]byte, 256)
			for {
				if _, err := b.Read(buf); err != nil {
					return
				}
			}
		}()
		d, err := Dealer(a, 1<<16)
		for err == nil {
			_, err = d.Read()
		}
		a.Close()
	})
}
