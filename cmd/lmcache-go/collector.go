package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// heapSlackBytes is how much garbage may gather between two collections.
	// The live heap is a few megabytes beside a pool of gigabytes, but each
	// request of 32k tokens allocates 130 KB: with Go's default of "as much as
	// is live" the collector would run every thirty messages.
	heapSlackBytes = 32 << 20
	// collectorTurn is how often the setting follows the live heap, which
	// grows with the cache of prompts.
	collectorTurn = 2 * time.Second
	maxPercent    = 1000
	minPercent    = 50
)

// tuneCollector keeps the garbage below about heapSlackBytes until ctx ends,
// unless the operator has set GOGC.
func tuneCollector(ctx context.Context, c console) {
	if c.env("GOGC") != "" {
		return
	}
	debug.SetGCPercent(maxPercent)
	go func() {
		tick := time.NewTicker(collectorTurn)
		defer tick.Stop()
		set := maxPercent
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			// Setting it stops the world for a moment: only for a real change.
			if p := collectorPercent(liveHeap()); p < set*3/4 || p > set*4/3 {
				set = p
				debug.SetGCPercent(p)
			}
		}
	}()
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
