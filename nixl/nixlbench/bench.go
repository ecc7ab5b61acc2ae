// Package nixlbench is the command `lmcache-go nixl bench`: throughput and CPU
// time of transfers between two processes, beside a bare C loop, NIXL's Python
// binding and a plain copy where asked for.
package nixlbench

import (
	"context"
	_ "embed" // the other initiators
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/lmcache-go/lmcache-go/nixl"
	"github.com/lmcache-go/lmcache-go/nixl/internal/pair"
)

//go:embed initiators/loop.c
var loopC []byte

//go:embed initiators/loop.py
var loopPython []byte

// self starts this program again with the bench's arguments.
var self pair.Command = func(ctx context.Context, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	return exec.CommandContext(ctx, exe, append([]string{"nixl", "bench"}, args...)...)
}

// Main is the command. It ends with 0, 1 when a transfer failed, 2 for a
// command line that cannot be read.
func Main(args []string, stdout, stderr io.Writer) int {
	if done, code := pair.Role(args, os.Stdin, stdout, stderr); done {
		return code
	}
	o, done, code := parse(args, stdout, stderr)
	if done {
		return code
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := run(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "lmcache-go nixl bench:", err)
		return 1
	}
	return 0
}

func run(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	lib, err := locate(nixl.LoadOptions{Path: o.lib, Python: o.python})
	if err != nil {
		return err
	}
	params, err := o.params()
	if err != nil {
		return err
	}
	stderr = pair.Locked(stderr)
	p := pair.Options{Self: self, Lib: lib, Local: o.local, Remote: o.remote, Params: params, Stderr: stderr}
	if o.serve != "" {
		return serve(ctx, o.serve, p, stderr)
	}
	b := &bench{options: o, pair: p, stderr: stderr, report: Report{
		Library: lib, Machine: machine(), Local: side(o.local), Remote: side(o.remote), Params: params,
	}}
	defer b.close()
	if err := b.start(ctx); err != nil {
		return err
	}
	if o.json != "-" {
		b.table = newTable(stdout, b.names)
		b.table.head(&b.report)
	}
	if err := b.runAll(); err != nil {
		return err
	}
	return b.finish(stdout)
}

// locate finds the library's file without loading it: that is the children's
// part.
func locate(o nixl.LoadOptions) (string, error) {
	list := nixl.Find(o)
	for _, c := range list {
		if c.Exists && filepath.IsAbs(c.Path) {
			return c.Path, nil
		}
	}
	lib, err := nixl.Load(o) // only the loader can find it now, or say why not
	if err != nil {
		return "", err
	}
	return lib.Path(), nil
}

func machine() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s, %d CPUs, %s/%s, %s", host, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func side(s pair.Side) string {
	if s.Mem == nixl.VRAM {
		return fmt.Sprintf("VRAM of GPU %d, %s", s.Dev, formatSize(s.Size))
	}
	return fmt.Sprintf("%s, %s", s.Mem, formatSize(s.Size))
}

// Report is the outcome.
type Report struct {
	Library  string            `json:"library"`
	Machine  string            `json:"machine"`
	Local    string            `json:"local"`
	Remote   string            `json:"remote"`
	Params   map[string]string `json:"params"`
	Lanes    []pair.Lane       `json:"lanes"`
	Warnings []string          `json:"warnings,omitempty"`
	Rows     []Row             `json:"rows"`
}

// Row is one case.
type Row struct {
	Op       string             `json:"op"`
	Layout   string             `json:"layout"`
	Bytes    int                `json:"bytes"` // of one descriptor
	Count    int                `json:"count"`
	Verified bool               `json:"verified"`
	By       map[string]Measure `json:"by"` // "go", "c", "python", "raw", "default"
}

// Measure is the best of the rounds of one initiator. Times are microseconds a
// transfer; CPU is the calling thread's.
type Measure struct {
	GBps  float64 `json:"gbps"`
	Wall  float64 `json:"wall_us"`
	CPU   float64 `json:"cpu_us"`
	Build float64 `json:"build_us"`
	// BuildArray is Python's from numpy arrays.
	BuildArray float64 `json:"build_array_us,omitempty"`
	// Prepared is as Build, from prepared lists.
	Prepared float64 `json:"prepared_us,omitempty"`
	Descs    int     `json:"descs,omitempty"`
}

type bench struct {
	*options
	pair   pair.Options
	stderr io.Writer
	report Report
	table  *table

	target  *pair.Process
	names   []string
	runners map[string]*pair.Process
	extra   []*pair.Process
	temp    string
}

func (b *bench) start(ctx context.Context) error {
	b.runners = map[string]*pair.Process{}
	target, t, err := b.startTarget(ctx)
	if err != nil {
		return err
	}
	b.target = target
	if b.connect == "" {
		b.lanes(ctx)
	}
	add := func(name string, p *pair.Process, err error) error {
		if err != nil {
			return err
		}
		b.names, b.runners[name] = append(b.names, name), p
		return nil
	}
	p, err := b.pair.StartInitiator(ctx, t)
	if err := add("go", p, err); err != nil {
		return err
	}
	for _, name := range b.peers {
		switch name {
		case "raw":
			err = add(name, b.runners["go"], nil)
		case "c":
			p, err = b.startC(ctx, t)
			err = add(name, p, err)
		case "python":
			p, err = b.startPython(ctx, t)
			err = add(name, p, err)
		case "default":
			// Backends of both sides with what NIXL does by itself.
			plain := b.pair
			plain.Params = map[string]string{"num_threads": "0"}
			var target2 *pair.Process
			var t2 pair.Target
			if target2, t2, err = plain.StartTarget(ctx); err == nil {
				b.extra = append(b.extra, target2)
				p, err = plain.StartInitiator(ctx, t2)
				err = add(name, p, err)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) startTarget(ctx context.Context) (*pair.Process, pair.Target, error) {
	if b.connect == "" {
		return b.pair.StartTarget(ctx)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", b.connect)
	if err != nil {
		return nil, pair.Target{}, err
	}
	p := pair.Connect("target at "+b.connect, conn)
	line, err := p.Ask("")
	if err != nil {
		return nil, pair.Target{}, err
	}
	t, err := pair.ParseTarget(line)
	return p, t, err
}

// lanes asks UCX which transports it will use.
func (b *bench) lanes(ctx context.Context) {
	o := b.pair
	o.Stderr = io.Discard
	c := func(op nixl.Op) pair.Case {
		n := min(4<<20, b.local.Size)
		return pair.Case{Op: op, Len: n, Count: 1, Stride: n, NSec: 1}
	}
	lanes, _, err := pair.Lanes(ctx, o, []pair.Case{c(nixl.Write), c(nixl.Read)})
	if err != nil {
		b.report.Warnings = append(b.report.Warnings, "transports are unknown: "+err.Error())
		return
	}
	b.report.Lanes = lanes
	for _, l := range lanes {
		if l.Emulated() {
			op := "READ"
			if l.Write() {
				op = "WRITE"
			}
			b.report.Warnings = append(b.report.Warnings, fmt.Sprintf("%s goes over %s: an emulation, far below what the machine can do", op, l.Transport()))
		}
	}
}

// startC compiles and starts the bare loop.
func (b *bench) startC(ctx context.Context, t pair.Target) (*pair.Process, error) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	dir, err := b.tempDir()
	if err != nil {
		return nil, err
	}
	src, exe := filepath.Join(dir, "loop.c"), filepath.Join(dir, "loop")
	if err := os.WriteFile(src, loopC, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, cc, "-O2", "-o", exe, src, "-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling the C loop with %s: %w\n%s", cc, err, out)
	}
	cmd := exec.CommandContext(ctx, exe, b.pair.Lib)
	return b.startOther("c", cmd, t)
}

func (b *bench) startPython(ctx context.Context, t pair.Target) (*pair.Process, error) {
	python := b.python
	if python == "" {
		python = "python3"
	}
	dir, err := b.tempDir()
	if err != nil {
		return nil, err
	}
	script := filepath.Join(dir, "loop.py")
	if err := os.WriteFile(script, loopPython, 0o600); err != nil {
		return nil, err
	}
	return b.startOther("python", exec.CommandContext(ctx, python, script), t)
}

func (b *bench) startOther(name string, cmd *exec.Cmd, t pair.Target) (*pair.Process, error) {
	// What package nixl sets for itself, so that all run alike.
	cmd.Env = append(cmd.Environ(), "UCX_LOG_FILE=stderr", "UCX_RCACHE_MAX_UNRELEASED=1024")
	cmd.Stderr = b.stderr
	p, err := pair.StartSpawned(name, cmd, b.pair.StartLine(t))
	if err != nil {
		return nil, fmt.Errorf("--compare %s: %w", name, err)
	}
	return p, nil
}

func (b *bench) tempDir() (string, error) {
	var err error
	if b.temp == "" {
		b.temp, err = os.MkdirTemp("", "lmcache-go-nixl-bench")
	}
	return b.temp, err
}

func (b *bench) close() {
	for name, p := range b.runners {
		if name != "raw" {
			_ = p.Close() // it has answered all that counts
		}
	}
	for _, p := range append(b.extra, b.target) {
		if p != nil {
			_ = p.Close()
		}
	}
	if b.temp != "" {
		_ = os.RemoveAll(b.temp)
	}
}

func (b *bench) runAll() error {
	cases, left := b.cases()
	if left > 0 {
		b.report.Warnings = append(b.report.Warnings, fmt.Sprintf("%d cases do not fit into %s and were left out; see --buffer", left, formatSize(b.local.Size)))
	}
	if len(cases) == 0 {
		return errors.New("no case fits into the buffer; see --buffer")
	}
	for _, c := range cases {
		row, err := b.runCase(c)
		if err != nil {
			return fmt.Errorf("%s of %d × %s: %w", c.Op, c.Count, formatSize(c.Len), err)
		}
		b.report.Rows = append(b.report.Rows, row)
		if b.table != nil {
			b.table.row(row)
		}
	}
	return nil
}

func (b *bench) runCase(c namedCase) (Row, error) {
	row := Row{Op: c.Op.String(), Layout: c.layout, Bytes: c.Len, Count: c.Count, By: map[string]Measure{}}
	if b.verify {
		if err := b.check(c.Case); err != nil {
			return row, err
		}
		row.Verified = true
	}
	for range b.rounds {
		for _, name := range b.names {
			line := c.Line()
			if name == "raw" {
				line = fmt.Sprintf("raw %d %d %d %d", c.Len, c.Count, c.Stride, c.NSec)
			}
			answer, err := b.runners[name].Ask(line)
			if err != nil {
				if name == "raw" {
					continue // there is none between these memories
				}
				return row, err
			}
			r, err := pair.ParseResult(answer)
			if err != nil {
				return row, fmt.Errorf("%s: %w", name, err)
			}
			row.By[name] = better(row.By[name], measureOf(r, c.Case))
		}
	}
	return row, nil
}

func measureOf(r pair.Result, c pair.Case) Measure {
	return Measure{
		GBps: r.GBps(c), Wall: r.WallPerOp(), CPU: r.CPUPerOp(), Build: float64(r.BuildNSec) / 1e3,
		BuildArray: float64(r.BuildArrayNSec) / 1e3, Prepared: float64(r.PreparedNSec) / 1e3, Descs: r.Descs,
	}
}

// better keeps the best of each figure: noise only adds.
func better(old, m Measure) Measure {
	if old.Wall == 0 {
		return m
	}
	m.GBps = max(m.GBps, old.GBps)
	m.Wall, m.CPU, m.Build = min(m.Wall, old.Wall), min(m.CPU, old.CPU), min(m.Build, old.Build)
	m.BuildArray, m.Prepared = min(m.BuildArray, old.BuildArray), min(m.Prepared, old.Prepared)
	return m
}

// check moves a pattern with one transfer and looks at every byte on the side
// that received, those between the descriptors too.
func (b *bench) check(c pair.Case) error {
	from, to := b.runners["go"], b.target
	if c.Op == nixl.Read {
		from, to = to, from
	}
	once := c
	once.NSec = 1
	steps := []struct {
		p    *pair.Process
		line string
	}{
		{from, "fill 1"},
		{to, "fill 2"},
		{b.runners["go"], once.Line()},
		{to, fmt.Sprintf("check 1 2 %d %d %d", c.Len, c.Count, c.Stride)},
	}
	for _, s := range steps {
		if _, err := s.p.Ask(s.line); err != nil {
			return fmt.Errorf("verifying (%s): %w", strings.Fields(s.line)[0], err)
		}
	}
	return nil
}

func (b *bench) finish(stdout io.Writer) error {
	if b.table != nil {
		b.table.end(&b.report)
	}
	if b.json == "" {
		return nil
	}
	data, err := json.MarshalIndent(b.report, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if b.json == "-" {
		_, err = stdout.Write(data)
		return err
	}
	return os.WriteFile(b.json, data, 0o644)
}

// serve is a target for initiators on other hosts, one after another.
func serve(ctx context.Context, address string, o pair.Options, stderr io.Writer) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(stderr, "listening on", l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintln(stderr, "serving", conn.RemoteAddr())
		cmd := o.Self(ctx, pair.RoleArgs("target", o.Lib, o.Remote, o.Params)...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = conn, conn, stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(stderr, "target:", err)
		}
		_ = conn.Close()
	}
}
