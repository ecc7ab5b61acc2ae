package l1cache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// follower is an observer that keeps what it hears of single objects.
type follower struct{ events []ObjectEvent }

func (*follower) Published(Scope, int)            {}
func (*follower) ReadReleased(Scope, int)         {}
func (*follower) Evicted(Scope, int, EvictReason) {}
func (f *follower) Sampled(e []ObjectEvent)       { f.events = append(f.events, e...) }

func (f *follower) take() (kinds map[Hash][]ObjectEventKind) {
	kinds = map[Hash][]ObjectEventKind{}
	for _, e := range f.events {
		kinds[e.Hash] = append(kinds[e.Hash], e.Kind)
	}
	f.events = nil
	return kinds
}

func TestSample(t *testing.T) {
	f := &follower{}
	c := newCache(t, Options{Arena: grownArena(1 * mib), Evict: true, Observer: f, SampleRate: 1})
	hs := hashes(1, 3)
	store(t, c, hs, 4096)
	lease, _ := c.Lookup(request(hs[:2]), nil)
	tr, err := lease.Take(0, 0, 0, 2)
	require.NoError(t, err)
	tr.Done()
	c.Delete(keysOf(scopeA, hs[0]), false)
	c.Clear(false)
	require.Equal(t, map[Hash][]ObjectEventKind{
		hs[0]: {ObjectStored, ObjectRead, ObjectGone},
		hs[1]: {ObjectStored, ObjectRead, ObjectGone},
		hs[2]: {ObjectStored, ObjectGone},
	}, f.take())

	// A share of them, and always the same ones.
	c = newCache(t, Options{Arena: grownArena(8 * mib), Evict: true, Observer: f, SampleRate: 0.1})
	store(t, c, hashes(0, 1000), 4096)
	first := f.take()
	require.InDelta(t, 100, len(first), 60)
	c.Clear(true)
	for h := range f.take() {
		require.Contains(t, first, h)
	}
	c = newCache(t, Options{Arena: grownArena(1 * mib), Evict: true, Observer: f})
	store(t, c, hs, 4096)
	require.Empty(t, f.take())
	_, err = New(Options{Arena: grownArena(1 * mib), SampleRate: 2})
	require.ErrorContains(t, err, "sample rate")
}
