package bufpool

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClasses(t *testing.T) {
	var p Pool
	f := func(n, want int) {
		t.Helper()
		b := p.Get(n)
		require.Len(t, b.B, want)
		p.Put(b)
	}
	f(0, 4096)
	f(1, 4096)
	f(4096, 4096)
	f(4097, 8192)
	f(1<<20, 1<<20)
	f(1<<20+1, 2<<20)
	f(1<<27+1, 1<<27+1)
}

func TestBuffersComeBack(t *testing.T) {
	var p Pool
	require.Nil(t, p.TryGet(5000))
	b := p.Get(5000)
	p.Put(b)
	require.EqualValues(t, 8192, p.Kept())
	require.Same(t, b, p.Get(8000))
	require.Zero(t, p.Kept())
	require.Nil(t, p.TryGet(8000), "it is on loan")
	p.Put(nil)
	p.Put(p.Get(1<<27 + 1))
	require.Zero(t, p.Kept(), "too large to keep")
}

func TestKeepsNoMoreThanItsBound(t *testing.T) {
	var p Pool
	var all []*Buffer
	for range 5 {
		all = append(all, &Buffer{B: make([]byte, 1<<26), class: class(1 << 26)})
	}
	for _, b := range all {
		p.Put(b)
	}
	require.EqualValues(t, maxKept, p.Kept())
}

func TestTrimDropsWhatNobodyNeeds(t *testing.T) {
	var p Pool
	a, b, c := p.Get(4096), p.Get(4096), p.Get(4096)
	p.Put(a)
	p.Put(b)
	p.Put(c)
	p.Trim() // they were in use since the last one
	require.EqualValues(t, 3*4096, p.Kept())
	p.Put(p.Get(4096)) // one of three is needed
	p.Trim()
	require.EqualValues(t, 4096, p.Kept())
	require.EqualValues(t, 4096, p.trim())
	require.Zero(t, p.Kept())
	p.Put(p.Get(1<<27 + 1))
	require.EqualValues(t, 1<<27+1, p.trim(), "too large to keep")
	require.Zero(t, p.trim())
	p.Trim()
}
