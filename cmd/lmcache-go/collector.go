package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// heapSlackBytes is how much garbage may gather between two collections.
	// The live heap is a few megabytes beside a pool of gigabytes, but each
	// request of 32k tokens allocates 130 KB: with Go's default of "as much as
	// is live" the collector would run every thirty messages.
	heapSlackBytes = 32 << 20
	maxPercent     = 1000
	minPercent     = 20
)

// tuneCollector keeps the garbage below about heapSlackBytes until ctx ends,
// unless the operator has set GOGC. The setting follows each collection: a
// burst of new prompts makes the live heap twenty times as large within a
// second, and what suited the small one would let it grow by gigabytes.
func tuneCollector(ctx context.Context, c console) {
	if c.env("GOGC") != "" {
		return
	}
	debug.SetGCPercent(maxPercent)
	set := maxPercent
	afterCollections(ctx, func() {
		// Setting it stops the world for a moment: only for a real change.
		if p := collectorPercent(liveHeap()); p < set*7/8 || p > set*4/3 {
			set = p
			debug.SetGCPercent(p)
		}
	})
}

// afterCollections calls f soon after each collection until ctx ends, one call
// at a time.
func afterCollections(ctx context.Context, f func()) {
	var arm func()
	arm = func() {
		// It has a pointer in it, so it does not lie in a block with others.
		runtime.AddCleanup(new(*int), func(struct{}) {
			if ctx.Err() == nil {
				f()
				arm()
			}
		}, struct{}{})
	}
	arm()
}

// collectorPercent is the GOGC that leaves heapSlackBytes over live bytes.
func collectorPercent(live uint64) int {
	if live == 0 {
		return maxPercent
	}
	return int(min(maxPercent, max(minPercent, 100*heapSlackBytes/live)))
}

// liveHeap is what the last collection found in use.
func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
