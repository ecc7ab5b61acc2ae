package nixldoctor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// host lists what of the machine decides over transports.
func host() []string {
	var list []string
	add := func(name, value string) { list = append(list, name+": "+value) }
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil {
		value := "unlimited"
		if lim.Cur != unix.RLIM_INFINITY {
			value = fmt.Sprintf("%d KiB (RDMA pins memory within it)", lim.Cur>>10)
		}
		add("RLIMIT_MEMLOCK", value)
	}
	if data, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil {
		add("kernel.yama.ptrace_scope", strings.TrimSpace(string(data))+" (above 0 UCX cma may be refused between processes)")
	}
	ib, _ := filepath.Glob("/dev/infiniband/uverbs*")
	add("RDMA devices", fmt.Sprint(len(ib)))
	return list
}

// print writes the report for a person.
func (r *Report) print(w io.Writer) {
	fmt.Fprintln(w, "Library")
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	shown := 0
	for _, c := range r.Candidates {
		used := r.Library != nil && c.Path == r.Library.Path
		if !c.Exists && r.Library != nil {
			continue
		}
		mark, state := " ", "absent"
		if c.Exists {
			state = "there"
		}
		if used {
			mark, state = "*", "used"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", mark, c.Origin, state, c.Path, c.Note)
		shown++
	}
	_ = t.Flush()
	if skipped := len(r.Candidates) - shown; skipped > 0 {
		fmt.Fprintf(w, "  (%d more places where it is not)\n", skipped)
	}
	if l := r.Library; l != nil {
		l.print(w)
	}
	section(w, "Environment", r.Env)
	section(w, "Host", r.Host)
	if len(r.Pairs) > 0 {
		fmt.Fprintln(w, "Between two processes of this host")
		t = tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
		for _, p := range r.Pairs {
			if p.Err != "" {
				fmt.Fprintf(t, "  %s\tfailed: %s\n", p.Name, p.Err)
				continue
			}
			fmt.Fprintf(t, "  %s\twrite %.2f GB/s%s\tread %.2f GB/s%s\n", p.Name, p.WriteGBps, via(p, true), p.ReadGBps, via(p, false))
		}
		_ = t.Flush()
	}
	for _, s := range r.Warnings {
		fmt.Fprintln(w, "WARNING:", s)
	}
	for _, s := range r.Problems {
		fmt.Fprintln(w, "PROBLEM:", s)
	}
	if len(r.Problems) == 0 {
		fmt.Fprintln(w, "NIXL works here.")
	}
}

func via(p Pair, write bool) string {
	for _, l := range p.Lanes {
		if write && l.Write() || !write && l.Read() {
			return " via " + l.Transport()
		}
	}
	return ""
}

func section(w io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(w, title)
	for _, s := range lines {
		fmt.Fprintln(w, "  "+s)
	}
}

func (l *Library) print(w io.Writer) {
	version := l.Version
	if version == "" {
		version = "unknown"
	}
	fmt.Fprintf(w, "  version %s; exact status codes: %s, views for GPU-started transfers: %s\n", version, yes(l.Features.ExactStatus), yes(l.Features.Views))
	for _, f := range l.UCX {
		fmt.Fprintln(w, "  UCX", f)
	}
	gpus := fmt.Sprint(l.GPUs)
	if l.NoGPU != "" {
		gpus += " (" + l.NoGPU + ")"
	}
	fmt.Fprintln(w, "  GPUs", gpus)
	fmt.Fprintln(w, "Plugins")
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	for _, p := range l.Plugins {
		switch {
		case p.Err == "":
			fmt.Fprintf(t, "  %s\t%s\n", p.Name, strings.Join(p.Mems, " "))
		case len(p.Missing) > 0:
			fmt.Fprintf(t, "  %s\tcannot be loaded: %s\n", p.Name, names(p.Missing))
		default:
			fmt.Fprintf(t, "  %s\tcannot be loaded: %s\n", p.Name, p.Err)
		}
	}
	_ = t.Flush()
	if len(l.Modules) > 0 {
		fmt.Fprintln(w, "UCX modules")
		t = tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
		for _, m := range l.Modules {
			state := "ok"
			if len(m.Missing) > 0 {
				state = names(m.Missing)
			}
			fmt.Fprintf(t, "  %s\t%s\n", m.Name, state)
		}
		_ = t.Flush()
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func names(list []Missing) string {
	var parts []string
	for _, m := range list {
		parts = append(parts, m.Name)
	}
	return "missing " + strings.Join(parts, ", ")
}
