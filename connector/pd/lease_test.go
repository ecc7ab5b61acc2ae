package pd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// leasing runs leases in a bubble.
func leasing(t *testing.T, f func(l *leases, tell func(string), got releases, stats *counters)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		got := make(releases, 16)
		stats := &counters{}
		o := Options{Released: got.add}.withDefaults()
		l := newLeases(&o, stats)
		notifs := make(chan nixl.Notif)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.run(ctx, notifs)
		}()
		f(l, func(s string) { notifs <- nixl.Notif{From: "reader", Msg: []byte(s)} }, got, stats)
		cancel()
		<-done
	})
}

func TestLeaseEndsWithItsReaders(t *testing.T) {
	leasing(t, func(l *leases, tell func(string), got releases, stats *counters) {
		id := "cmpl-___prefill_addr_127.0.0.1:8001___decode_addr_127.0.0.1:8002_01-0-1a2b3c4d"
		require.NoError(t, l.add(id, time.Minute))
		require.ErrorIs(t, l.add(id, time.Minute), ErrOffered)
		time.Sleep(time.Second) //nolint:forbidigo // of the fake clock
		tell(id + ":2")
		synctest.Wait()
		require.Empty(t, got, "one of two readers")
		tell(id + ":2")
		synctest.Wait()
		require.Equal(t, Release{RequestID: id, Reason: ReleaseRead, Readers: 2, Held: time.Second}, <-got)
		tell(id + ":2")
		tell("never-offered:1")
		tell("no number:x")
		tell("PUSH_REG:\x81")
		synctest.Wait()
		s := stats.take()
		require.Equal(t, 2, s.LateNotifs)
		require.Zero(t, s.Expired)
	})
}

// vLLM's times: 30 s without a sign; a heartbeat promises 20 s from then on.
func TestLeaseExpires(t *testing.T) {
	leasing(t, func(l *leases, tell func(string), got releases, stats *counters) {
		require.NoError(t, l.add("a", DefaultLease))
		require.NoError(t, l.add("b", DefaultLease))
		for range 9 { // 45 s
			time.Sleep(5 * time.Second) //nolint:forbidigo // of the fake clock
			tell("HB:b,unknown")
		}
		require.Equal(t, Release{RequestID: "a", Reason: ReleaseExpired, Held: DefaultLease}, <-got)
		require.Empty(t, got)
		time.Sleep(19900 * time.Millisecond) //nolint:forbidigo // of the fake clock
		synctest.Wait()
		require.Empty(t, got)
		time.Sleep(200 * time.Millisecond) //nolint:forbidigo // of the fake clock
		synctest.Wait()
		require.Equal(t, Release{RequestID: "b", Reason: ReleaseExpired, Held: 65 * time.Second}, <-got)
		require.Equal(t, 2, stats.take().Expired)
		tell("a:1")
		synctest.Wait()
		require.Equal(t, 1, stats.take().LateNotifs)
	})
}

// A heartbeat never shortens a lease.
func TestHeartbeatOnlyExtends(t *testing.T) {
	leasing(t, func(l *leases, tell func(string), got releases, _ *counters) {
		require.NoError(t, l.add("a", time.Hour))
		tell("HB:a")
		time.Sleep(59 * time.Minute) //nolint:forbidigo // of the fake clock
		synctest.Wait()
		require.Empty(t, got)
		require.True(t, l.end("a", ReleaseWithdrawn))
		require.False(t, l.end("a", ReleaseWithdrawn))
		require.Equal(t, ReleaseWithdrawn, (<-got).Reason)
		require.NoError(t, l.add("c", time.Hour))
		l.close()
		require.Equal(t, ReleaseClosed, (<-got).Reason)
		require.ErrorIs(t, l.add("d", time.Hour), ErrClosed)
	})
}

func TestStatsUnderTheKeysOfVLLM(t *testing.T) {
	s := Stats{}
	require.True(t, s.Empty())
	require.Equal(t, "Num successful transfers=0, Avg xfer time (ms)=0, P90 xfer time (ms)=0, Avg post time (ms)=0, P90 post time (ms)=0, "+
		"Avg MB per transfer=0, Throughput (MB/s)=0, Avg number of descriptors=0, Num failed transfers=0, Num KV expired reqs=0, Num notifs after expiry=0", s.String())
	s.Add(Stats{
		Transfers: []Transfer{
			{Xfer: 10 * time.Millisecond, Post: time.Millisecond, Bytes: 1 << 20, Descriptors: 4},
			{Xfer: 20 * time.Millisecond, Post: 2 * time.Millisecond, Bytes: 2 << 20, Descriptors: 5},
		},
		FailedTransfers: 1, FailedHandshakes: 2, FailedNotifications: 3, Expired: 4, LateNotifs: 5,
	})
	require.False(t, s.Empty())
	require.Equal(t, "{'Num successful transfers': 2, 'Avg xfer time (ms)': 15.0, 'P90 xfer time (ms)': 19.0, 'Avg post time (ms)': 1.5, 'P90 post time (ms)': 1.9, "+
		"'Avg MB per transfer': 1.5, 'Throughput (MB/s)': 100.0, 'Avg number of descriptors': 4.5, 'Num failed transfers': 6, 'Num KV expired reqs': 4, 'Num notifs after expiry': 5}", s.Dict())
}
