package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
)

// print writes a run for people.
func (r *result) print(out io.Writer) {
	c := r.Config
	fmt.Fprintf(out, "%s, %d clients x %d in flight, %s, layout %s, mode %s, %.1f s\n",
		c.Ops, c.Clients, c.Depth, c.Transport, c.Layout, c.Mode, r.WallS)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "op\tn\tops/s\tmean us\tp50 us\tp95 us\tp99 us\tmax us\tGB/s wall\tGB/s busy\t")
	for _, name := range slices.Sorted(maps.Keys(r.Ops)) {
		o := r.Ops[name]
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t%s\t\n",
			name, o.N, o.OpsS, o.MeanUS, o.P50US, o.P95US, o.P99US, o.MaxUS, dash(o.GBsWall), dash(o.GBsBusy))
	}
	_ = w.Flush() // fails when out does, which nobody can be told
	if u := r.Server; u != nil {
		fmt.Fprintf(out, "server: %.2f us CPU per %s, %.0f %% of a core, %d threads, RSS %.0f MiB (anonymous %.0f, shared %.0f)\n",
			u.CPUUSPerOp, r.mainOp(), u.CPUPct, u.After.Threads, u.After.MiB["VmRSS"], u.After.MiB["RssAnon"], u.After.MiB["RssShmem"])
	}
	fmt.Fprintf(out, "client: %.0f %% of a core\n", r.ClientCPUPct)
	if r.MemcpyGBs > 0 {
		fmt.Fprintf(out, "memcpy by one thread: %.2f GB/s\n", r.MemcpyGBs)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Counters)) {
		fmt.Fprintf(out, "%s: %d\n", name, r.Counters[name])
	}
}

func dash(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

// The labels under which peer.sh keeps its runs.
const (
	labelOurs = "ours"
	labelReal = "real"
)

// report compares the runs in a file, one JSON object a line, whose labels are
// "WORKLOAD/ours" and "WORKLOAD/real" in alternation. It prints, for each
// workload, the medians and the ratio of each pair of neighbours as median and
// range.
func report(out io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var names []string
	runs := map[string][]*result{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		r := &result{}
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			return fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		if !slices.Contains(names, r.Label) {
			names = append(names, r.Label)
		}
		runs[r.Label] = append(runs[r.Label], r)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "workload\tmeasure\treal\tours\tratio median [min..max]\t")
	for _, name := range names {
		workload, ok := cutSuffix(name, "/"+labelOurs)
		if !ok {
			continue
		}
		compare(w, workload, runs[name], runs[workload+"/"+labelReal])
	}
	return w.Flush()
}

func cutSuffix(s, suffix string) (string, bool) {
	if len(s) > len(suffix) && s[len(s)-len(suffix):] == suffix {
		return s[:len(s)-len(suffix)], true
	}
	return s, false
}

// measure is what report compares.
type measure struct {
	name     string
	inverted bool // smaller is better
	of       func(r *result) float64
}

// measures of a run.
var measures = []measure{
	{"ops/s", false, func(r *result) float64 { return r.Ops[r.mainOp()].OpsS }},
	{"p50 us", true, func(r *result) float64 { return r.Ops[r.lead()].P50US }},
	{"p99 us", true, func(r *result) float64 { return r.Ops[r.lead()].P99US }},
	{"GB/s", false, func(r *result) float64 { return r.Ops[r.lead()].GBsBusy }},
	{"% of memcpy", false, func(r *result) float64 {
		if r.MemcpyGBs == 0 {
			return 0
		}
		return round(100*r.Ops[r.lead()].GBsBusy/r.MemcpyGBs, 1)
	}},
	{"server CPU us/op", true, func(r *result) float64 {
		if r.Server == nil {
			return 0
		}
		return r.Server.CPUUSPerOp
	}},
	{"chunks refused", true, func(r *result) float64 { return float64(r.Counters["chunks_refused"]) }},
	{"newest kept %", false, func(r *result) float64 {
		return 100 * float64(r.Counters["audit_hit_chunks"]) / float64(max(1, r.Counters["audit_want_chunks"]))
	}},
}

// lead is the operation whose latency stands for the workload.
func (r *result) lead() string {
	if r.Config.Ops == "mixed" {
		return "cycle"
	}
	return r.Config.Ops
}

// measuresOf are the measures that a workload's results have.
func measuresOf(r *result) []measure {
	if r.Config != nil {
		return measures
	}
	var all []measure
	for _, name := range slices.Sorted(maps.Keys(r.Values)) {
		all = append(all, measure{name, true, func(r *result) float64 { return r.Values[name] }})
	}
	return all
}

func compare(w io.Writer, workload string, ours, peers []*result) {
	for _, m := range measuresOf(ours[0]) {
		n := min(len(ours), len(peers))
		a, b, ratios := make([]float64, 0, n), make([]float64, 0, n), make([]float64, 0, n)
		for i := range n {
			x, y := m.of(ours[i]), m.of(peers[i])
			a, b = append(a, x), append(b, y)
			if m.inverted {
				x, y = y, x
			}
			if y > 0 {
				ratios = append(ratios, x/y)
			}
		}
		if len(a) == 0 || slices.Max(a) == 0 && slices.Max(b) == 0 {
			continue
		}
		ratio := "-"
		if len(ratios) > 0 {
			ratio = fmt.Sprintf("%.2f [%.2f..%.2f]", median(ratios), slices.Min(ratios), slices.Max(ratios))
		}
		fmt.Fprintf(w, "%s\t%s\t%.6g\t%.6g\t%s\t\n", workload, m.name, median(b), median(a), ratio)
	}
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}
