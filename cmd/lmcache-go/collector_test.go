package main

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCollectorPercent(t *testing.T) {
	f := func(liveMiB uint64, want int) {
		t.Helper()
		require.Equal(t, want, collectorPercent(liveMiB<<20), "%d MiB", liveMiB)
	}
	f(0, maxPercent)
	f(1, maxPercent)
	f(16, 200)
	f(32, 100)
	f(1<<20, minPercent)
	runtime.GC()
	require.NotZero(t, liveHeap(), "the runtime still has the metric")
}
