package connector

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

func TestCallsOfAServer(t *testing.T) {
	s := startServer(t, nil)
	c := dial(t, s.Addr(), Options{})
	ctx := t.Context()
	n, err := c.ChunkSize(ctx)
	require.NoError(t, err)
	require.Equal(t, 256, n)
	require.NoError(t, c.Noop(ctx))
	ok, err := c.Ping(ctx, 0, false)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = c.Ping(ctx, 77, true)
	require.NoError(t, err)
	require.False(t, ok, "an instance that the server does not know")
	_, err = c.Experimental(ctx)
	require.NoError(t, err)
	require.NoError(t, c.Clear(ctx, false))

	k := wire.Key{Model: testModel, WorldSize: 1, Tokens: wire.AppendTokens(nil, prompt(1, 600)), TokenCount: 600, End: 512, RequestID: "r", NumKVReaders: 1}
	require.NoError(t, c.Lookup(ctx, &k, 1))
	chunks, done, err := c.WaitPrefetch(ctx, "r", time.Second)
	require.NoError(t, err)
	require.True(t, done)
	require.Zero(t, chunks)
	c.FreeLookupLocks(&k, 1)
	c.EndSession("r")
	require.NoError(t, c.Noop(ctx))
	require.Zero(t, c.strays.Load())
}

func TestRefusalIsATypedError(t *testing.T) {
	s := startServer(t, nil)
	c := dial(t, s.Addr(), Options{})
	_, err := c.RegisterEngineDriven(t.Context(), &wire.EngineDrivenContext{InstanceID: 1, Model: testModel, WorldSize: 0, DType: "half"})
	require.ErrorIs(t, err, ErrRefused)
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, wire.OpRegisterEngineDriven, refused.Op)
}

func TestManyCallsAtOnce(t *testing.T) {
	s := startServer(t, nil)
	c := dial(t, s.Addr(), Options{})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				if n, err := c.ChunkSize(t.Context()); err != nil || n != 256 {
					t.Errorf("got %d, %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, c.pending)
}

func TestURLs(t *testing.T) {
	f := func(url, network, address string) {
		t.Helper()
		n, a, err := splitURL(url)
		if (err != nil) != (network == "") || n != network || a != address {
			t.Errorf("%q: got %q, %q, %v", url, n, a, err)
		}
		if err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %v is no ErrConfig", url, err)
		}
	}
	f("tcp://localhost:5555", "tcp", "localhost:5555")
	f("127.0.0.1:1", "tcp", "127.0.0.1:1")
	f("tcp://[::1]:5555", "tcp", "[::1]:5555")
	f("ipc:///run/x", "unix", "/run/x")
	f("ipc://", "", "")
	f("tcp://localhost", "", "")
	f("tcp://localhost:", "", "")
	f("grpc://localhost:1", "", "")
	f("inproc://x", "", "")
}

// silent is a server that reads and never answers.
func silent(_ int64, c *zmtp.Conn) { requests(c, func(wire.Op, [][]byte) {}) }

func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{serve: silent}
		c, err := Dial("tcp://x:1", Options{Timeout: 7 * time.Second, DialContext: f.dial})
		require.NoError(t, err)
		begin := time.Now()
		_, err = c.ChunkSize(t.Context())
		require.ErrorIs(t, err, ErrTimeout)
		require.Equal(t, 7*time.Second, time.Since(begin))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.ChunkSize(ctx)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		_, err = c.ChunkSize(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, c.pending)

		k := c.Go(wire.OpGetChunkSize)
		require.NoError(t, c.Close())
		_, _, err = k.Result()
		require.ErrorIs(t, err, ErrClosed)
		_, err = c.ChunkSize(t.Context())
		require.ErrorIs(t, err, ErrClosed)
	})
}

// A lost connection ends what was sent on it at once; what was not sent waits
// for the next one.
func TestReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServer{serve: func(n int64, c *zmtp.Conn) {
			switch n {
			case 1: // takes one request and hangs up
				_, _ = c.Read()
			case 2: // is no server
				return
			default:
				requests(c, func(_ wire.Op, m [][]byte) { answer(c, m[0], m[1], wire.AppendInt(nil, 256)) })
			}
		}}
		c, err := Dial("tcp://x:1", Options{DialContext: f.dial})
		require.NoError(t, err)
		defer c.Close()
		begin := time.Now()
		_, err = c.ChunkSize(t.Context())
		require.ErrorIs(t, err, ErrDisconnected)
		require.Less(t, time.Since(begin), time.Second)
		n, err := c.ChunkSize(t.Context()) // waits for the third connection at most
		if errors.Is(err, ErrDisconnected) {
			n, err = c.ChunkSize(t.Context())
		}
		require.NoError(t, err)
		require.Equal(t, 256, n)
		require.Equal(t, int64(3), f.dials.Load())
	})
}

func TestWhileTheServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := make(chan struct{})
		var got []wire.Op
		f := &fakeServer{serve: func(_ int64, c *zmtp.Conn) {
			requests(c, func(op wire.Op, m [][]byte) {
				got = append(got, op)
				answer(c, m[0], m[1])
			})
		}}
		dial := func(ctx context.Context, network, address string) (net.Conn, error) {
			select {
			case <-up:
				return f.dial(ctx, network, address)
			default:
				return nil, syscall.ECONNREFUSED
			}
		}
		c, err := Dial("tcp://x:1", Options{DialContext: dial})
		require.NoError(t, err)
		defer c.Close()
		given := c.Go(wire.OpClear)
		kept := c.Go(wire.OpEndSession, wire.AppendString(nil, "r"))
		given.Cancel(ErrTimeout)
		for range maxBacklog {
			c.Post(wire.OpNoop)
		}
		_, err = c.ChunkSize(t.Context())
		require.ErrorIs(t, err, ErrBacklog)
		time.Sleep(time.Minute) //nolint:forbidigo // of the fake clock
		close(up)
		_, _, err = kept.Result()
		require.NoError(t, err)
		require.NoError(t, c.Close())
		synctest.Wait()
		require.Equal(t, wire.OpEndSession, got[0], "a call given up before it was sent is not sent")
	})
}

func TestBadReplies(t *testing.T) {
	f := func(want error, reply func(c *zmtp.Conn, m [][]byte)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			f := &fakeServer{serve: func(_ int64, c *zmtp.Conn) { requests(c, func(_ wire.Op, m [][]byte) { reply(c, m) }) }}
			c, err := Dial("tcp://x:1", Options{DialContext: f.dial, Timeout: time.Second})
			require.NoError(t, err)
			defer c.Close()
			_, err = c.ChunkSize(t.Context())
			require.ErrorIs(t, err, want)
		})
	}
	f(ErrReply, func(c *zmtp.Conn, m [][]byte) { answer(c, m[0], m[1]) })
	f(ErrReply, func(c *zmtp.Conn, m [][]byte) { answer(c, m[0], m[1], []byte{0xc1}) })
	f(ErrReply, func(c *zmtp.Conn, m [][]byte) { answer(c, m[0], m[1], wire.AppendInt(nil, -1)) })
	f(ErrReply, func(c *zmtp.Conn, m [][]byte) { answer(c, m[0], []byte{0xc0}, nil) })
	f(ErrRefused, func(c *zmtp.Conn, m [][]byte) { answer(c, m[0], wire.AppendOp(nil, wire.OpNoop)) })
	f(ErrTimeout, func(c *zmtp.Conn, m [][]byte) { answer(c, []byte{0xc1}, m[1]) })
	f(ErrTimeout, func(c *zmtp.Conn, m [][]byte) { answer(c, wire.AppendInt(nil, 99), m[1]) })
}
