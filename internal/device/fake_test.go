package device

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
)

// fakeCache is a cache on a new fake that ends with the test.
func fakeCache(t *testing.T, o FakeOptions) (*Fake, *cache) {
	t.Helper()
	d := NewFake(o)
	t.Cleanup(func() { _ = d.Close() })
	return d, newCache(t, d, func(key string, n int64) []byte {
		b := make([]byte, n)
		d.AddMemory(key, b)
		return b
	})
}

func TestFakeDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, c := fakeCache(t, FakeOptions{Delay: time.Second, CopyDelay: 10 * time.Millisecond})
		defer d.Close()
		s := stream(t, d, "s")
		start := time.Now()
		// One run a layer.
		require.NoError(t, do(t, s, c.job(t, d, copyplan.Store, 0, nil, nil, 0, 1, 2, 3)))
		if got := time.Since(start); got != time.Second+30*time.Millisecond {
			t.Errorf("took %v", got)
		}
	})
}

// TestFakeLostPeer: an event that never fires holds up its own stream only.
func TestFakeLostPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, c := fakeCache(t, FakeOptions{Async: true})
		d.AddEvent("lost")
		fire := d.AddEvent("late")
		stuck, late, other := stream(t, d, "stuck"), stream(t, d, "late"), stream(t, d, "other")
		var ends ends
		submit := func(s Stream, after string) []byte {
			j := c.job(t, d, copyplan.Store, 0, nil, ends.done, 0, 1, 2, 3)
			j.After = []byte(after)
			ack, err := s.Submit(j)
			require.NoError(t, err)
			return ack
		}
		a, b := submit(stuck, "lost"), submit(stuck, "")
		if d.Traits().AnswerAtDone || len(a) == 0 || string(a) == string(b) {
			t.Errorf("got events %q and %q", a, b)
		}
		submit(late, "late")
		require.NoError(t, do(t, other, c.job(t, d, copyplan.Load, 0, nil, nil, 0, 1, 2, 3)))
		<-time.After(time.Hour)
		synctest.Wait()
		if len(ends.errs) != 0 {
			t.Errorf("done before the event: %v", ends.errs)
		}
		fire()
		synctest.Wait()
		if len(ends.errs) != 1 || ends.errs[0] != nil {
			t.Errorf("got %v", ends.errs)
		}
		bad := c.job(t, d, copyplan.Store, 0, nil, ends.done, 0, 1, 2, 3)
		bad.After = []byte("unknown")
		_, err := other.Submit(bad)
		require.ErrorIs(t, err, ErrEvent)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, stuck.Close(ctx), context.DeadlineExceeded)
		require.NoError(t, late.Close(t.Context()))
		require.NoError(t, d.Close())
		if len(ends.errs) != 3 || !errors.Is(ends.errs[1], ErrClosed) || !errors.Is(ends.errs[2], ErrClosed) {
			t.Errorf("got %v", ends.errs)
		}
		var trace []string
		for _, r := range d.Trace() {
			trace = append(trace, r.Stream+" "+r.Direction.String())
		}
		if want := []string{"other load", "late store", "stuck store", "stuck store"}; !slices.Equal(trace, want) {
			t.Errorf("got %v, want %v", trace, want)
		}
	})
}

func TestFakeCancelOfLostPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, c := fakeCache(t, FakeOptions{})
		defer d.Close()
		d.AddEvent("lost")
		s := stream(t, d, "s")
		var ends ends
		j := c.job(t, d, copyplan.Store, 0, nil, ends.done, 0, 1, 2, 3)
		j.After = []byte("lost")
		_, err := s.Submit(j)
		require.NoError(t, err)
		synctest.Wait()
		s.Cancel(j)
		require.NoError(t, s.Close(t.Context()))
		if len(ends.errs) != 1 || !errors.Is(ends.errs[0], ErrCanceled) || d.Copies() != 0 {
			t.Errorf("got %v, %d copies", ends.errs, d.Copies())
		}
	})
}

// TestFakeFailsAnyCopy fails each copy of a request in turn.
func TestFakeFailsAnyCopy(t *testing.T) {
	t.Parallel()
	d, c := fakeCache(t, FakeOptions{})
	s := stream(t, d, "s")
	boom := errors.New("boom")
	for n := 1; n <= 9; n++ {
		d.FailCopy(n, boom)
		// Three runs a layer.
		err := do(t, s, c.job(t, d, copyplan.Store, 0, nil, nil, 0, 2, 4, 5))
		require.ErrorIs(t, err, boom)
		require.ErrorIs(t, err, ErrCopy)
		if r := d.Trace()[n-1]; r.Copies != n-1 || r.Of != 9 {
			t.Errorf("copy %d: %d of %d were done", n, r.Copies, r.Of)
		}
	}
	require.NoError(t, do(t, s, c.job(t, d, copyplan.Store, 0, nil, nil, 0, 2, 4, 5)))
}

func TestFakeRefuses(t *testing.T) {
	t.Parallel()
	d, c := fakeCache(t, FakeOptions{CopiesOnly: true})
	s := stream(t, d, "s")
	_, err := s.Submit(c.job(t, d, copyplan.Store, 0, c.layout.Object[0].Form.AsTokenMajor(), nil, 0, 1, 2, 3))
	require.ErrorIs(t, err, ErrReorder)
	d.FailOpen(2)
	key := c.layout.Storages[0].Key
	m, err := d.Open(key, 10)
	require.NoError(t, err)
	m.Close()
	_, err = d.Open(key, 10)
	require.ErrorIs(t, err, ErrOpen)
	_, err = d.Open(key, cacheBlocks*384+1)
	require.ErrorIs(t, err, ErrShort)
	_, err = d.Open("nothing", 1)
	require.ErrorIs(t, err, ErrOpen)
	if st := d.Stats(); st.Mappings != 3 {
		t.Errorf("got %+v", st)
	}
}
