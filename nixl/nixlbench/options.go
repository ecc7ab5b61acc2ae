package nixlbench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
	"github.com/lmcache-go/lmcache-go/nixl/internal/pair"
)

const usageText = `usage: lmcache-go nixl bench [flags]

Measures reads and writes between two processes through NIXL's UCX backend, in
the manner of nixlbench: every size with every batch that fits into the buffer.
One request is made and reposted for --time; --rounds of them, the best counts.

With --compare the same cases are run by a bare C loop over the same C API and
by NIXL's Python binding, against the same target, turn by turn in one run.

Two hosts: run it with --serve :PORT on one and --connect HOST:PORT on the other.

flags:
`

// options are the command line.
type options struct {
	lib, python          string
	mem, remoteMem       string
	device, remoteDevice int
	sizes, batches, ops  string
	layout               string
	buffer               string
	threads              int
	time                 time.Duration
	rounds               int
	compare              string
	json                 string
	verify               bool
	serve, connect       string
	engine               string

	// Parsed.
	local, remote pair.Side
	sizeList      []int
	batchList     []int
	opList        []nixl.Op
	layouts       []string
	peers         []string
}

// parse reads the command line; code is the exit status when done.
func parse(args []string, stdout, stderr io.Writer) (o *options, done bool, code int) {
	o = &options{}
	f := flag.NewFlagSet("nixl bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		f.SetOutput(stdout) // what was asked for is no error
	}
	f.Usage = func() {
		fmt.Fprint(f.Output(), usageText)
		f.PrintDefaults()
	}
	f.StringVar(&o.lib, "lib", "", "the library, its folder or a Python environment, instead of looking for it")
	f.StringVar(&o.python, "python", os.Getenv("LMCACHE_GO_PYTHON"), "the interpreter whose environment is searched, and that runs the Python side")
	f.StringVar(&o.mem, "mem", "dram", "memory of the initiator: dram or vram")
	f.StringVar(&o.remoteMem, "remote-mem", "", "memory of the target; default: as --mem")
	f.IntVar(&o.device, "device", 0, "GPU of the initiator")
	f.IntVar(&o.remoteDevice, "remote-device", 0, "GPU of the target")
	f.StringVar(&o.sizes, "sizes", "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB", "bytes of one descriptor")
	f.StringVar(&o.batches, "batches", "1,16,256,4096", "descriptors of one transfer")
	f.StringVar(&o.ops, "ops", "READ,WRITE", "operations")
	f.StringVar(&o.layout, "layout", "scattered", "scattered: nothing merges; merged: all descriptors are neighbours; both")
	f.StringVar(&o.buffer, "buffer", "256MiB", "memory on each side; cases that need more are left out")
	f.IntVar(&o.threads, "threads", 0, "NIXL's num_threads; 0: chosen by package nixl, negative: none")
	f.StringVar(&o.engine, "engine", "", "UCX settings by name without UCX_, TLS=tcp,…")
	f.DurationVar(&o.time, "time", 100*time.Millisecond, "how long to repeat a case in one round")
	f.IntVar(&o.rounds, "rounds", 3, "rounds of each case")
	f.StringVar(&o.compare, "compare", "", "others to run the same cases: c, python, raw (a plain copy), default (Go with NIXL's own settings), separated by commas")
	f.StringVar(&o.json, "json", "", "write the results as JSON to this file, - for stdout instead of the table")
	f.BoolVar(&o.verify, "verify", true, "check every byte on both sides before a case is timed")
	f.StringVar(&o.serve, "serve", "", "be the target for an initiator on another host; HOST:PORT to listen on")
	f.StringVar(&o.connect, "connect", "", "use the target that --serve started at HOST:PORT")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil, true, 0
	case err != nil:
		return nil, true, 2
	case f.NArg() > 0:
		fmt.Fprintf(stderr, "lmcache-go nixl bench: unexpected %q\n", f.Arg(0))
		return nil, true, 2
	}
	if err := o.check(); err != nil {
		fmt.Fprintf(stderr, "lmcache-go nixl bench: %v\n", err)
		return nil, true, 2
	}
	return o, false, 0
}

// check reads the values; it reports all that is wrong.
func (o *options) check() error {
	var errs []error
	size, err := parseSize(o.buffer)
	errs = append(errs, err)
	if o.remoteMem == "" {
		o.remoteMem = o.mem
	}
	side := func(flag, mem string, dev int) pair.Side {
		switch mem {
		case "dram":
			return pair.Side{Mem: nixl.DRAM, Size: size}
		case "vram":
			return pair.Side{Mem: nixl.VRAM, Dev: dev, Size: size}
		}
		errs = append(errs, fmt.Errorf("--%s is dram or vram, not %q", flag, mem))
		return pair.Side{}
	}
	o.local, o.remote = side("mem", o.mem, o.device), side("remote-mem", o.remoteMem, o.remoteDevice)
	for _, s := range strings.Split(o.sizes, ",") {
		n, err := parseSize(s)
		if err == nil && (n < 8 || n%8 != 0) {
			err = fmt.Errorf("size %s is no multiple of 8 bytes", s)
		}
		errs = append(errs, err)
		o.sizeList = append(o.sizeList, n)
	}
	for _, s := range strings.Split(o.batches, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			errs = append(errs, fmt.Errorf("batch %q is no number above 0", s))
		}
		o.batchList = append(o.batchList, n)
	}
	for _, s := range strings.Split(o.ops, ",") {
		switch strings.ToUpper(s) {
		case "READ":
			o.opList = append(o.opList, nixl.Read)
		case "WRITE":
			o.opList = append(o.opList, nixl.Write)
		default:
			errs = append(errs, fmt.Errorf("operation %q is neither READ nor WRITE", s))
		}
	}
	switch o.layout {
	case "scattered", "merged":
		o.layouts = []string{o.layout}
	case "both":
		o.layouts = []string{"scattered", "merged"}
	default:
		errs = append(errs, fmt.Errorf("layout %q is none of scattered, merged, both", o.layout))
	}
	if o.compare != "" {
		for _, s := range strings.Split(o.compare, ",") {
			switch s {
			case "c", "python", "raw", "default":
				o.peers = append(o.peers, s)
			default:
				errs = append(errs, fmt.Errorf("--compare knows c, python, raw and default, not %q", s))
			}
		}
	}
	if o.rounds < 1 || o.time <= 0 {
		errs = append(errs, errors.New("--rounds and --time are above 0"))
	}
	return errors.Join(errs...)
}

// params are those of the Go initiator's and the target's UCX backend.
func (o *options) params() (map[string]string, error) {
	u := nixl.UCX{Threads: o.threads}
	if o.engine != "" {
		u.Engine = map[string]string{}
		for _, kv := range strings.Split(o.engine, ",") {
			k, v, _ := strings.Cut(kv, "=")
			u.Engine[k] = v
		}
	}
	m, err := u.Params()
	if err == nil && m["num_threads"] == "" {
		m["num_threads"] = "0" // the children choose nothing by themselves
	}
	return m, err
}

var units = []struct {
	name string
	n    int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

func parseSize(s string) (int, error) {
	for _, u := range units {
		if number, ok := strings.CutSuffix(strings.TrimSpace(s), u.name); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(number)); err == nil && n > 0 && n <= 1<<40/u.n {
				return n * u.n, nil
			}
		}
	}
	return 0, fmt.Errorf("size %q is no number of bytes, KiB, MiB or GiB", s)
}

func formatSize(n int) string {
	for _, u := range units {
		if n >= u.n && n%u.n == 0 {
			return fmt.Sprintf("%d %s", n/u.n, u.name)
		}
	}
	return strconv.Itoa(n)
}

// cases are all that fit into the buffers.
func (o *options) cases() (list []namedCase, left int) {
	for _, op := range o.opList {
		for _, layout := range o.layouts {
			for _, size := range o.sizeList {
				for _, batch := range o.batchList {
					stride := size
					if layout == "scattered" && batch > 1 {
						stride = 2 * size
					}
					if batch == 1 && layout == "merged" && len(o.layouts) > 1 {
						continue // the same as scattered
					}
					c := pair.Case{Op: op, Len: size, Count: batch, Stride: stride, NSec: o.time.Nanoseconds()}
					if size > o.local.Size || batch > o.local.Size/stride || c.Span() > o.local.Size {
						left++
						continue
					}
					list = append(list, namedCase{c, layout})
				}
			}
		}
	}
	return list, left
}

type namedCase struct {
	pair.Case
	layout string
}
