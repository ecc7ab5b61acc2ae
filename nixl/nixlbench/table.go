package nixlbench

import (
	"fmt"
	"io"
	"strings"
)

// table prints results as they come, in columns of fixed width.
type table struct {
	w     io.Writer
	names []string
}

func newTable(w io.Writer, names []string) *table { return &table{w, names} }

func (t *table) head(r *Report) {
	fmt.Fprintf(t.w, "library  %s\nmachine  %s\nlocal    %s\nremote   %s\nparams   %s\n", r.Library, r.Machine, r.Local, r.Remote, formatParams(r.Params))
	for _, l := range r.Lanes {
		op := "READ"
		if l.Write() {
			op = "WRITE"
		}
		fmt.Fprintf(t.w, "%-8s via %s\n", op, l.Transport())
	}
	for _, s := range r.Warnings {
		fmt.Fprintln(t.w, "WARNING:", s)
	}
	fmt.Fprintf(t.w, "\n%-5s %-9s %8s %6s", "op", "layout", "size", "batch")
	for _, n := range t.names {
		fmt.Fprintf(t.w, " │ %8s %10s %9s %9s", n+" GB/s", "wall µs", "CPU µs", "build µs")
	}
	fmt.Fprintln(t.w)
}

func (t *table) row(r Row) {
	fmt.Fprintf(t.w, "%-5s %-9s %8s %6d", r.Op, r.Layout, formatSize(r.Bytes), r.Count)
	for _, n := range t.names {
		m, ok := r.By[n]
		if !ok {
			fmt.Fprintf(t.w, " │ %8s %10s %9s %9s", "-", "-", "-", "-")
			continue
		}
		fmt.Fprintf(t.w, " │ %8.2f %10.2f %9.2f %9.1f", m.GBps, m.Wall, m.CPU, m.Build)
	}
	fmt.Fprintln(t.w)
}

// end sums up what the comparison shows.
func (t *table) end(r *Report) {
	fmt.Fprintln(t.w)
	for _, name := range t.names[1:] {
		var lines []string
		for _, row := range r.Rows {
			g, ok := row.By["go"]
			m, other := row.By[name]
			if !ok || !other {
				continue
			}
			lines = append(lines, fmt.Sprintf("  %-5s %-9s %8s × %-5d throughput %.2f, CPU %+.2f µs (× %.2f)%s", row.Op, row.Layout, formatSize(row.Bytes), row.Count,
				ratio(g.GBps, m.GBps), g.CPU-m.CPU, ratio(g.CPU, m.CPU), builds(g, m)))
		}
		if len(lines) > 0 {
			fmt.Fprintf(t.w, "go against %s:\n%s\n", name, strings.Join(lines, "\n"))
		}
	}
	for _, s := range r.Warnings {
		if strings.Contains(s, "left out") {
			fmt.Fprintln(t.w, "note:", s)
		}
	}
}

func builds(g, m Measure) string {
	if g.Build == 0 || m.Build == 0 {
		return ""
	}
	s := fmt.Sprintf(", building %.1f× as fast", ratio(m.Build, g.Build))
	if m.BuildArray > 0 {
		s += fmt.Sprintf(" (from numpy arrays %.1f×)", ratio(m.BuildArray, g.Build))
	}
	if g.Prepared > 0 && m.Prepared > 0 {
		s += fmt.Sprintf(", from prepared lists %.1f× (%.1f× as fast as its building)", ratio(m.Prepared, g.Prepared), ratio(m.Build, g.Prepared))
	}
	return s
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func formatParams(m map[string]string) string {
	if len(m) == 0 {
		return "NIXL's own"
	}
	var parts []string
	for k, v := range m {
		parts = append(parts, k+"="+v)
	}
	return strings.Join(parts, " ")
}
