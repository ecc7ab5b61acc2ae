package main

import (
	"context"
	"runtime"
	"testing"
	"time"

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

// The setting follows each collection, for as long as it is wanted.
func TestAfterCollections(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := make(chan struct{}, 1)
	afterCollections(ctx, func() { calls <- struct{}{} })
	for range 3 {
		runtime.GC()
		select {
		case <-calls:
		case <-time.After(10 * time.Second):
			t.Fatal("not called after a collection")
		}
	}
	cancel()
	runtime.GC()
	runtime.GC()
	select {
	case <-calls:
		t.Fatal("called after its end")
	case <-time.After(50 * time.Millisecond):
	}
}
