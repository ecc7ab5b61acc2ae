// Package nixldoctor is the command `lmcache-go doctor nixl`: it says which
// NIXL this machine has, what its plugins lack, and which transports UCX uses
// between two processes here.
package nixldoctor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
	"github.com/lmcache-go/lmcache-go/nixl/internal/pair"
)

// Report is everything that the doctor found.
type Report struct {
	Candidates []nixl.Candidate `json:"candidates"`
	Library    *Library         `json:"library,omitempty"`
	// Env are variables that NIXL and UCX read.
	Env   []string `json:"env,omitempty"`
	Host  []string `json:"host,omitempty"`
	Pairs []Pair   `json:"pairs,omitempty"`
	// Warnings are what works and should not be left so; Problems are what
	// does not work.
	Warnings []string `json:"warnings,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// Pair is two kinds of memory in two processes of this machine.
type Pair struct {
	Name  string      `json:"name"`
	Lanes []pair.Lane `json:"lanes,omitempty"`
	// WriteGBps, ReadGBps of the largest piece, 10^9 bytes a second.
	WriteGBps float64 `json:"write_gbps"`
	ReadGBps  float64 `json:"read_gbps"`
	Err       string  `json:"err,omitempty"`
}

// self starts this program again with the doctor's arguments.
var self pair.Command = func(ctx context.Context, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	return exec.CommandContext(ctx, exe, append([]string{"doctor", "nixl"}, args...)...)
}

const usageText = `usage: lmcache-go doctor nixl [flags]

Says which NIXL library is found where, what its plugins lack, and which
transports UCX uses between two processes of this machine. Ends with 1 when
host memory cannot be moved between two processes.

flags:
`

// Main is the command. It ends with 0 when NIXL works, 1 when it does not, 2
// for a command line that cannot be read.
func Main(args []string, stdout, stderr io.Writer) int {
	if len(args) == 2 && args[0] == inspectRole {
		return inspect(args[1], stdout)
	}
	if done, code := pair.Role(args, os.Stdin, stdout, stderr); done {
		return code
	}
	flags := flag.NewFlagSet("doctor nixl", flag.ContinueOnError)
	flags.SetOutput(stderr)
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		flags.SetOutput(stdout) // what was asked for is no error
	}
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usageText)
		flags.PrintDefaults()
	}
	lib := flags.String("lib", "", "the library, its folder or a Python environment, instead of looking for it")
	python := flags.String("python", os.Getenv("LMCACHE_GO_PYTHON"), "the interpreter whose environment is searched")
	asJSON := flags.Bool("json", false, "print the report as JSON")
	noProbe := flags.Bool("no-probe", false, "start no transfers")
	timeout := flags.Duration("timeout", 2*time.Minute, "the most that all probes may take")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "lmcache-go doctor nixl: unexpected %q\n", flags.Arg(0))
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	r := examine(ctx, nixl.LoadOptions{Path: *lib, Python: *python}, !*noProbe)
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			fmt.Fprintln(stderr, "lmcache-go doctor nixl:", err)
			return 1
		}
	} else {
		r.print(stdout)
	}
	if len(r.Problems) > 0 {
		return 1
	}
	return 0
}

func examine(ctx context.Context, o nixl.LoadOptions, probe bool) *Report {
	r := &Report{Candidates: nixl.Find(o), Env: environment(), Host: host()}
	var tried []string
	for _, c := range r.Candidates {
		if !c.Exists {
			continue
		}
		l, err := inspected(ctx, c.Path)
		if err == nil && l.Path != "" {
			l.Origin = c.Origin
			r.Library = l
			break
		}
		if err == nil {
			err = errors.New(l.Err)
		}
		tried = append(tried, fmt.Sprintf("%s: %v", c.Path, err))
	}
	if r.Library == nil {
		r.Problems = append(r.Problems, "no NIXL library can be used: pip install nixl-cu13 (or nixl-cu12) into the active environment, or set "+nixl.EnvLibDir)
		r.Problems = append(r.Problems, tried...)
		return r
	}
	r.judge()
	if probe {
		r.probe(ctx)
	}
	return r
}

// inspected runs the inspection in a process of its own.
func inspected(ctx context.Context, path string) (*Library, error) {
	cmd := self(ctx, inspectRole, path)
	var words strings.Builder
	cmd.Stderr = &words
	out, err := cmd.Output()
	l := &Library{}
	if jerr := json.Unmarshal(out, l); jerr == nil {
		return l, nil
	}
	return nil, fmt.Errorf("inspecting it failed: %w: %s", err, lastLines(words.String(), 5))
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// judge looks for what is wrong or could be better.
func (r *Report) judge() {
	l := r.Library
	if l.Err != "" {
		r.Problems = append(r.Problems, l.Err)
	}
	ucp := 0
	for _, f := range l.UCX {
		if strings.Contains(f, "libucp") {
			ucp++
		}
	}
	if ucp > 1 {
		r.Warnings = append(r.Warnings, "more than one UCX in the process: "+strings.Join(l.UCX, " "))
	}
	if !l.Features.ExactStatus && !l.Features.Messages {
		r.Warnings = append(r.Warnings, "the library does not tell errors apart: a dead peer looks like any backend error")
	}
	for _, m := range l.Modules {
		if strings.Contains(m.Name, "cuda") && len(m.Missing) > 0 && l.GPUs > 0 {
			r.Warnings = append(r.Warnings, fmt.Sprintf("UCX module %s cannot be loaded, GPU memory is slow or refused: %s is missing", m.Name, m.Missing[0].Name))
		}
	}
}

// probe transfers between two processes for each pair of memories there is.
func (r *Report) probe(ctx context.Context) {
	const size = 64 << 20
	dram := pair.Side{Mem: nixl.DRAM, Size: size}
	vram := func(dev int) pair.Side { return pair.Side{Mem: nixl.VRAM, Dev: dev, Size: size} }
	type sides struct {
		name          string
		local, remote pair.Side
	}
	list := []sides{{"host ↔ host", dram, dram}}
	if r.Library.GPUs > 0 {
		list = append(list,
			sides{"GPU 0 ↔ GPU 0", vram(0), vram(0)},
			sides{"GPU 0 ↔ host", vram(0), dram},
			sides{"host ↔ GPU 0", dram, vram(0)})
	}
	if r.Library.GPUs > 1 {
		list = append(list, sides{"GPU 0 ↔ GPU 1", vram(0), vram(1)})
	}
	for i, s := range list {
		p := r.probePair(ctx, s.name, s.local, s.remote)
		r.Pairs = append(r.Pairs, p)
		if p.Err != "" {
			if i == 0 {
				r.Problems = append(r.Problems, fmt.Sprintf("%s: %s", s.name, p.Err))
			} else {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s: %s", s.name, p.Err))
			}
		}
		r.Warnings = append(r.Warnings, laneWarnings(p)...)
	}
}

func (r *Report) probePair(ctx context.Context, name string, local, remote pair.Side) Pair {
	p := Pair{Name: name}
	var words strings.Builder
	params, _ := nixl.UCX{Threads: -1}.Params() // what package nixl sets by itself cannot be wrong
	params["num_threads"] = "0"
	o := pair.Options{Self: self, Lib: r.Library.Path, Local: local, Remote: remote, Params: params, Stderr: pair.Locked(&words)}
	const big = 16 << 20
	c := func(op nixl.Op, length int) pair.Case {
		return pair.Case{Op: op, Len: length, Count: 1, Stride: length, NSec: int64(50 * time.Millisecond)}
	}
	cases := []pair.Case{c(nixl.Write, big), c(nixl.Read, big)}
	lanes, rates, err := pair.Lanes(ctx, o, cases)
	if err != nil {
		p.Err = err.Error()
		if w := lastLines(words.String(), 3); w != "" {
			p.Err += ": " + w
		}
		return p
	}
	p.Lanes, p.WriteGBps, p.ReadGBps = lanes, rates[0].GBps(cases[0]), rates[1].GBps(cases[1])
	return p
}

func laneWarnings(p Pair) []string {
	var list []string
	for _, l := range p.Lanes {
		if !l.Emulated() {
			continue
		}
		op := "READ"
		if l.Write() {
			op = "WRITE"
		}
		text := fmt.Sprintf("%s: %s goes over %s: an emulation that needs both CPUs", p.Name, op, l.Transport())
		if strings.Contains(p.Name, "GPU") {
			text += "; on one host map the memory and copy instead (CUDA IPC), between hosts an RDMA card is needed"
		} else {
			text += "; shared memory (cma) is not allowed here: same user, CAP_SYS_PTRACE or kernel.yama.ptrace_scope=0?"
		}
		list = append(list, text)
	}
	if p.WriteGBps > 10*p.ReadGBps && p.ReadGBps > 0 {
		list = append(list, fmt.Sprintf("%s: READ is %.0f times slower than WRITE: push rather than pull", p.Name, p.WriteGBps/p.ReadGBps))
	}
	return list
}

// environment lists the variables that NIXL and UCX read.
func environment() []string {
	var list []string
	for _, kv := range os.Environ() {
		for _, p := range []string{"NIXL_", "UCX_", "CUDA_VISIBLE_DEVICES=", "LD_LIBRARY_PATH=", "LD_PRELOAD=", "VIRTUAL_ENV="} {
			// Credentials of stores have other names; these hold none.
			if strings.HasPrefix(kv, p) {
				list = append(list, kv)
			}
		}
	}
	slices.Sort(list)
	return list
}
