package mpserver

import (
	"fmt"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
)

// periodic remembers the runs of a background task. The zero value has not run.
type periodic struct {
	mu      sync.Mutex
	last    time.Time     // guarded by mu: the start of the last run
	took    time.Duration // guarded by mu
	message string        // guarded by mu
	runs    int64         // guarded by mu
	failed  int64         // guarded by mu
}

// ran notes a run that began at start and has just ended.
func (p *periodic) ran(start time.Time, message string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.took, p.message = start, time.Since(start), message
	p.runs++
	if !ok {
		p.failed++
	}
}

// describe fills in what p knows.
func (p *periodic) describe(t httpapi.PeriodicThread) httpapi.PeriodicThread {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.LastRun, t.LastDuration, t.LastMessage, t.Runs, t.Failed = p.last, p.took, p.message, p.runs, p.failed
	return t
}

// PeriodicThreads implements [httpapi.Server]. Names that the reference has are
// the reference's.
func (f surface) PeriodicThreads() []httpapi.PeriodicThread {
	s := f.s
	running := !s.draining.Load() && s.tasks.dead() == ""
	st := s.cache.Stats()
	return []httpapi.PeriodicThread{
		s.probes.describe(httpapi.PeriodicThread{Name: "request-loop-probe", Level: httpapi.LevelCritical, Interval: probeEvery, Running: running, Started: s.start}),
		{
			Name: "l1-eviction-loop", Level: httpapi.LevelHigh, Interval: time.Second, Running: s.cache.Alive(), Started: s.start,
			LastRun: st.LastTurn, LastMessage: fmt.Sprintf("triggered=%d", st.TurnsTriggered), Runs: int64(st.Turns),
		},
		s.sweeps.describe(httpapi.PeriodicThread{Name: "lmcache-mp-worker-reaper", Level: httpapi.LevelMedium, Interval: sweepEvery, Running: running, Started: s.start}),
	}
}
