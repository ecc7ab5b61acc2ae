package connector

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// pinged is a server that answers pings as told and notes when they came.
type pinged struct {
	start  time.Time
	times  []time.Duration
	answer func(n int) string // "true", "false", "" for silence
}

func (p *pinged) serve(_ int64, c *zmtp.Conn) {
	requests(c, func(op wire.Op, m [][]byte) {
		if op != wire.OpPing {
			answer(c, m[0], m[1])
			return
		}
		p.times = append(p.times, time.Since(p.start))
		switch p.answer(len(p.times)) {
		case "true":
			answer(c, m[0], m[1], wire.AppendBool(nil, true))
		case "false":
			answer(c, m[0], m[1], wire.AppendBool(nil, false))
		}
	})
}

func seconds(d []time.Duration) []int {
	var out []int
	for _, x := range d {
		out = append(out, int(x.Round(time.Second).Seconds()))
	}
	return out
}

// beatFor runs a heartbeat of 10 s for so long.
func beatFor(t *testing.T, d time.Duration, answer func(n int) string, again func(context.Context) error) (p *pinged, healthy []bool) {
	t.Helper()
	p = &pinged{start: time.Now(), answer: answer}
	f := &fakeServer{serve: p.serve}
	c, err := Dial("tcp://x:1", Options{DialContext: f.dial})
	require.NoError(t, err)
	synctest.Wait()
	h := newHeartbeat(c, 10*time.Second, c.log)
	h.recover, h.worker = again, again != nil
	h.known = c.connections.Load()
	h.start()
	time.Sleep(time.Second) //nolint:forbidigo // of the fake clock: look between the events, not at them
	for range int(d / (5 * time.Second)) {
		time.Sleep(5 * time.Second) //nolint:forbidigo // of the fake clock
		healthy = append(healthy, h.healthy.Load())
	}
	h.close()
	require.NoError(t, c.Close())
	synctest.Wait()
	return p, healthy
}

func TestHeartbeatCadence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, healthy := beatFor(t, 60*time.Second, func(int) string { return "true" }, nil)
		require.Equal(t, []int{0, 10, 20, 30, 40, 50, 60}, seconds(p.times))
		require.NotContains(t, healthy, false)
	})
}

func TestHeartbeatOfADeadServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Silent to the second and third ping.
		p, healthy := beatFor(t, 65*time.Second, func(n int) string {
			if n == 2 || n == 3 {
				return ""
			}
			return "true"
		}, nil)
		require.Equal(t, []int{0, 10, 30, 50, 60}, seconds(p.times), "a dead server is asked every two intervals")
		require.Equal(t, []bool{true, true, true, false, false, false, false, false, false}, healthy[:9])
		require.True(t, healthy[len(healthy)-1])
	})
}

// A worker that the server does not know registers again at once and only then
// counts as well.
func TestHeartbeatRegistersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registered := 0
		fail := errors.New("not yet")
		p, healthy := beatFor(t, 45*time.Second, func(n int) string {
			if n == 2 {
				return "false"
			}
			return "true"
		}, func(context.Context) error {
			registered++
			if registered == 1 {
				return fail
			}
			return nil
		})
		require.Equal(t, []int{0, 10, 20, 30, 40}, seconds(p.times))
		require.Equal(t, 2, registered, "the first time it failed")
		require.Equal(t, []bool{true, false, false, true, true}, healthy[:5], "at 6, 11, 16, 21 and 26 s")
	})
}

// A new connection may be a new server: the worker registers again although the
// server says that all is well.
func TestHeartbeatAfterAReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registered := 0
		p := &pinged{start: time.Now(), answer: func(int) string { return "true" }}
		var conns []*zmtp.Conn
		f := &fakeServer{serve: func(n int64, c *zmtp.Conn) {
			conns = append(conns, c)
			p.serve(n, c)
		}}
		c, err := Dial("tcp://x:1", Options{DialContext: f.dial})
		require.NoError(t, err)
		synctest.Wait()
		h := newHeartbeat(c, 10*time.Second, c.log)
		h.worker, h.known = true, c.connections.Load()
		h.recover = func(context.Context) error { registered++; return nil }
		h.start()
		time.Sleep(3 * time.Second) //nolint:forbidigo // of the fake clock
		synctest.Wait()
		require.NoError(t, conns[0].Close())
		time.Sleep(time.Second) //nolint:forbidigo // of the fake clock
		synctest.Wait()
		require.Equal(t, 1, registered)
		require.Len(t, p.times, 2, "it does not wait for the interval to end")
		require.True(t, h.healthy.Load())
		h.close()
		require.NoError(t, c.Close())
		synctest.Wait()
	})
}
