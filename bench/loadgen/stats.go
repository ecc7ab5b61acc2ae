package main

import (
	"math"
	"slices"
	"time"
)

// stats is what one client counts.
type stats struct {
	latencies map[string][]time.Duration
	bytes     map[string]int64
	counters  map[string]int64
}

func newStats() *stats {
	return &stats{latencies: map[string][]time.Duration{}, bytes: map[string]int64{}, counters: map[string]int64{}}
}

func (s *stats) add(op string, d time.Duration, nbytes int64) {
	s.latencies[op] = append(s.latencies[op], d)
	if nbytes > 0 {
		s.bytes[op] += nbytes
	}
}

func (s *stats) inc(counter string, n int) {
	if n != 0 {
		s.counters[counter] += int64(n)
	}
}

// reset forgets everything; done between warm-up and measurement.
func (s *stats) reset() { *s = *newStats() }

// opResult is one operation of a run, over all clients. The names are those of
// load_real_client.py.
type opResult struct {
	N      int     `json:"n"`
	OpsS   float64 `json:"ops_s"`
	MeanUS float64 `json:"mean_us"`
	P50US  float64 `json:"p50_us"`
	P95US  float64 `json:"p95_us"`
	P99US  float64 `json:"p99_us"`
	MaxUS  float64 `json:"max_us"`
	// GBsWall has the time between the operations in it (verification,
	// lookups), GBsBusy only their own.
	GBsWall float64 `json:"gb_s_wall,omitempty"`
	GBsBusy float64 `json:"gb_s_busy,omitempty"`
}

// result is one run.
type result struct {
	Label    string              `json:"label,omitempty"`
	Config   *config             `json:"cfg"`
	WallS    float64             `json:"wall_s"`
	Ops      map[string]opResult `json:"ops"`
	Counters map[string]int64    `json:"counters"`
	Server   *serverUse          `json:"server,omitempty"`
	// ClientCPUPct is the load generator's own CPU use, 100 = one core: near
	// the number of cores the client is what limits the run.
	ClientCPUPct float64 `json:"client_cpu_pct"`
	// MemcpyGBs is what one thread copied just before and after the run; see memcpyRate.
	MemcpyGBs float64  `json:"memcpy_gb_s,omitempty"`
	Errors    []string `json:"errors,omitempty"`
	// Values are not of a run: what process.py measured, by name with unit.
	Values map[string]float64 `json:"values,omitempty"`
}

// summarize merges the clients' counts of a run that took wall.
func summarize(c *config, all []*stats, wall time.Duration) *result {
	r := &result{Config: c, Label: c.label, WallS: round(wall.Seconds(), 3), Ops: map[string]opResult{}, Counters: map[string]int64{}}
	latencies, bytes := map[string][]time.Duration{}, map[string]int64{}
	for _, s := range all {
		for op, l := range s.latencies {
			latencies[op] = append(latencies[op], l...)
		}
		for op, n := range s.bytes {
			bytes[op] += n
		}
		for name, n := range s.counters {
			r.Counters[name] += n
		}
	}
	for op, l := range latencies {
		slices.Sort(l)
		var sum time.Duration
		for _, d := range l {
			sum += d
		}
		o := opResult{
			N: len(l), OpsS: round(float64(len(l))/wall.Seconds(), 2), MeanUS: us(sum / time.Duration(len(l))),
			P50US: us(percentile(l, 0.50)), P95US: us(percentile(l, 0.95)), P99US: us(percentile(l, 0.99)), MaxUS: us(l[len(l)-1]),
		}
		if n := bytes[op]; n > 0 {
			o.GBsWall = round(float64(n)/wall.Seconds()/1e9, 3)
			o.GBsBusy = round(float64(n)/(sum.Seconds()/float64(c.Clients*c.Depth))/1e9, 3)
		}
		r.Ops[op] = o
	}
	return r
}

// percentile of sorted values.
func percentile(sorted []time.Duration, p float64) time.Duration {
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*p))]
}

func us(d time.Duration) float64 { return round(float64(d)/1e3, 1) }

func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}

// mainOp is the operation that the server's CPU time is divided by.
func (r *result) mainOp() string {
	if _, ok := r.Ops["cycle"]; ok {
		return "cycle"
	}
	return r.Config.Ops
}
