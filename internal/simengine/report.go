package simengine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/connector/multi"
)

// reportEnv is vLLM's variable for the seconds between reports.
const reportEnv = "VLLM_LOG_STATS_INTERVAL"

// reportEvery is how often the log tells of throughput and transfers.
func (o *Options) reportEvery() time.Duration {
	if s, err := strconv.ParseFloat(o.Getenv(reportEnv), 64); err == nil && s > 0 && s < 1e6 {
		return time.Duration(s * float64(time.Second))
	}
	return 10 * time.Second
}

// reporter makes the lines that vLLM logs.
type reporter struct {
	e    *Engine
	last Stats
	mp   connector.SchedulerStats
	at   time.Time
	// The last interval had tokens: one more line tells that they have ended.
	active bool
}

// report logs at every interval until ctx ends, and once more then.
func report(ctx context.Context, e *Engine) {
	r := &reporter{e: e, at: time.Now()}
	t := time.NewTicker(e.opts.reportEvery())
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			r.log(time.Now())
			return
		case now := <-t.C:
			r.log(now)
		}
	}
}

func (r *reporter) log(now time.Time) {
	for _, line := range r.lines(now) {
		r.e.opts.Logger.Info(line) //nolint:sloglint // vLLM's lines, which tools look for
	}
}

// lines of an interval; none when nothing happened.
func (r *reporter) lines(now time.Time) []string {
	s := r.e.Stats()
	seconds := max(now.Sub(r.at).Seconds(), 1e-3)
	prompt := float64(s.ComputedTokens-s.Generated-r.last.ComputedTokens+r.last.Generated) / seconds
	generated := float64(s.Generated-r.last.Generated) / seconds
	busy := prompt > 0 || generated > 0 || s.Requests != r.last.Requests
	var out []string
	if busy || r.active {
		out = append(out, r.throughput(s, max(0, prompt), generated))
	}
	if line := multi.Line(r.e.composed, append(r.e.nixlStats(), r.lookups()...)); line != "" {
		out = append(out, line)
	}
	r.last, r.at, r.active = s, now, busy
	return out
}

func (r *reporter) throughput(s Stats, prompt, generated float64) string {
	parts := []string{
		fmt.Sprintf("Engine 000: Avg prompt throughput: %.1f tokens/s", prompt),
		fmt.Sprintf("Avg generation throughput: %.1f tokens/s", generated),
		fmt.Sprintf("Running: %d reqs", s.Running), fmt.Sprintf("Waiting: %d reqs", s.Waiting),
	}
	if n := s.Preempted - r.last.Preempted; n > 0 {
		parts = append(parts, fmt.Sprintf("Preemptions: %d", n))
	}
	parts = append(parts, fmt.Sprintf("GPU KV cache usage: %.1f%%", 100*r.e.usage(s)))
	rate := func(hits, of int64) float64 { return 100 * float64(hits) / float64(max(1, of)) }
	parts = append(parts, fmt.Sprintf("Prefix cache hit rate: %.1f%%", rate(s.LocalHits, s.PromptTokens)))
	if r.e.sched != nil {
		parts = append(parts, fmt.Sprintf("External prefix cache hit rate: %.1f%%", rate(s.ExternalHits, s.PromptTokens-s.LocalHits)))
	}
	return strings.Join(parts, ", ")
}

// lookups are LMCache's figures of the interval.
func (r *reporter) lookups() []multi.ChildStats {
	if r.e.mp == nil {
		return nil
	}
	n := r.e.mp.Stats()
	count, took := n.Lookups-r.mp.Lookups, n.LookupSeconds-r.mp.LookupSeconds
	r.mp = n
	if count == 0 {
		return nil
	}
	return []multi.ChildStats{{Name: connector.MPConnector, Stats: []multi.Stat{
		multi.Int("LMCache MP lookup count", count), multi.Float("LMCache MP lookup avg latency (ms)", 1000*took/float64(count), 3),
	}}}
}
