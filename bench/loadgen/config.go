package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// layout is the shape of a model's KV cache, bfloat16, two planes.
type layout struct{ layers, heads, headSize int }

// layouts by the names of load_real_client.py; for 256-token chunks an object
// takes 32 MiB, 1 MiB, 16 KiB and 4 KiB.
var layouts = map[string]layout{
	"llama8b": {32, 8, 128},
	"small":   {8, 1, 128},
	"tiny":    {1, 1, 16},
	"micro":   {1, 1, 4},
}

const (
	dtype        = "bfloat16"
	elementBytes = 2
	blockTokens  = 16 // of the pretended engine
	vocabulary   = 128256
)

func (l layout) hidden() int              { return l.heads * l.headSize }
func (l layout) chunkBytes(chunk int) int { return 2 * l.layers * chunk * l.hidden() * elementBytes }

func (l layout) shape(chunk int) []int64 {
	return []int64{2, int64(l.layers), int64(chunk), int64(l.hidden())}
}

// The workloads of --ops.
var workloads = []string{"ping", "noop", "chunk_size", "lookup", "store", "retrieve", "mixed"}

// config is one run.
type config struct {
	URL          string        `json:"url"`
	Transport    string        `json:"transport"`
	Ops          string        `json:"ops"`
	Clients      int           `json:"clients"`
	Depth        int           `json:"depth"`
	Seconds      float64       `json:"seconds"`
	Warmup       float64       `json:"warmup"`
	Requests     int           `json:"requests"`
	Tokens       int           `json:"tokens"`
	Chunks       int           `json:"chunks"`
	Mode         string        `json:"mode"`
	Layout       string        `json:"layout"`
	Hit          bool          `json:"hit"`
	Prompts      int           `json:"prompts"`
	SharedPrefix int           `json:"shared_prefix"`
	Prefill      int           `json:"prefill"`
	WarmRatio    float64       `json:"warm_ratio"`
	NoCopy       bool          `json:"no_copy"`
	VerifyEvery  int           `json:"verify_every"`
	Audit        int           `json:"audit"`
	Clear        bool          `json:"clear"`
	ClearAgain   bool          `json:"clear_again"`
	Fill         string        `json:"fill,omitempty"`
	Model        string        `json:"model"`
	Salt         int           `json:"salt"`
	ServerPID    int           `json:"server_pid"`
	Timeout      time.Duration `json:"-"`

	jsonOut bool
	label   string
	report  string
	sink    bool
	sinkMB  int
}

func parseFlags(args []string, out io.Writer) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("loadgen", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&c.URL, "url", "tcp://127.0.0.1:6555", "the server's request socket")
	f.StringVar(&c.Transport, "transport", "tcp", "tcp: ZMTP written in Go, the cheapest; zmq: libzmq, as real clients have it")
	f.StringVar(&c.Ops, "ops", "ping", strings.Join(workloads, " | "))
	f.IntVar(&c.Clients, "clients", 1, "connections, each with its own goroutine")
	f.IntVar(&c.Depth, "depth", 1, "requests in flight per client")
	f.Float64Var(&c.Seconds, "seconds", 5, "length of the measured part")
	f.Float64Var(&c.Warmup, "warmup", 0, "seconds before it that are not counted")
	f.IntVar(&c.Requests, "requests", 0, "end after so many requests of each client, if that is before --seconds; 0: no such end")
	f.IntVar(&c.Tokens, "tokens", 8192, "prompt length of lookups")
	f.IntVar(&c.Chunks, "chunks", 4, "chunks per request of store, retrieve and mixed")
	f.StringVar(&c.Mode, "mode", "shm", "shm | pickle: what the server is expected to negotiate")
	f.StringVar(&c.Layout, "layout", "small", "llama8b (32 MiB a chunk) | small (1 MiB) | tiny (16 KiB) | micro (4 KiB)")
	f.BoolVar(&c.Hit, "hit", false, "lookups hit fully (prompts are stored first)")
	f.IntVar(&c.Prompts, "prompts", 0, "lookups that miss: repeat this many prompts; 0: every prompt is new")
	f.IntVar(&c.SharedPrefix, "shared-prefix", 0, "tokens that all prompts of lookups have in common")
	f.IntVar(&c.Prefill, "prefill", 4, "stored prompts per client")
	f.Float64Var(&c.WarmRatio, "warm-ratio", 0.5, "part of the requests of mixed that use a stored prompt")
	f.BoolVar(&c.NoCopy, "no-copy", false, "control plane only: no bytes through shared memory")
	f.IntVar(&c.VerifyEvery, "verify-every", 1, "compare every nth retrieve with what was stored; 0: none")
	f.IntVar(&c.Audit, "audit", 0, "after a store run, look the last n stored prompts up again per client")
	f.BoolVar(&c.Clear, "clear", false, "send CLEAR first")
	f.BoolVar(&c.ClearAgain, "clear-again", false, "send CLEAR after the warm-up: a pool that is empty, and mapped by the clients")
	f.StringVar(&c.Fill, "fill", "", "after the warm-up, fill the shared pool with objects of this layout")
	f.StringVar(&c.Model, "model", "bench-model", "model name, the layout is appended")
	f.IntVar(&c.Salt, "salt", 0, "key space of this run; 0: random")
	f.IntVar(&c.ServerPID, "server-pid", 0, "report this process's CPU time and memory")
	f.DurationVar(&c.Timeout, "timeout", 60*time.Second, "give up when no reply comes for so long")
	f.BoolVar(&c.jsonOut, "json", false, "print one JSON object instead of a table")
	f.StringVar(&c.label, "label", "", "with --json: the run's name, kept in the object")
	f.StringVar(&c.report, "report", "", "no run: compare the objects in this file, one a line (see peer.sh)")
	f.BoolVar(&c.sink, "sink", false, "no run: serve at --url in pickle mode and throw everything away, until SIGTERM")
	f.IntVar(&c.sinkMB, "sink-mb", 0, "with --sink: read stores into a span of so many MiB in turn, not into the same buffer over and over")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: every setting is a flag", f.Arg(0))
	}
	return c, c.check()
}

// check completes the configuration and returns all that is wrong with it.
func (c *config) check() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(!slices.Contains(workloads, c.Ops), "--ops %s: want one of %s", c.Ops, strings.Join(workloads, ", "))
	bad(!slices.Contains([]string{"tcp", "zmq"}, c.Transport), "--transport %s: want tcp or zmq", c.Transport)
	bad(!slices.Contains([]string{"shm", "pickle"}, c.Mode), "--mode %s: want shm or pickle", c.Mode)
	_, known := layouts[c.Layout]
	bad(!known, "--layout %s: want llama8b, small, tiny or micro", c.Layout)
	_, known = layouts[c.Fill]
	bad(c.Fill != "" && (!known || c.Mode != "shm"), "--fill %s: want llama8b, small, tiny or micro, and --mode shm", c.Fill)
	bad(c.Clients < 1 || c.Clients > 999, "--clients %d: want 1 to 999", c.Clients)
	bad(c.Depth < 1 || c.Depth > maxDepth, "--depth %d: want 1 to %d", c.Depth, maxDepth)
	bad(c.Chunks < 1 || c.Tokens < 1 || c.Prefill < 0 || c.Prompts < 0 || c.Requests < 0, "--chunks, --tokens, --prefill, --prompts and --requests must not be negative")
	bad(c.SharedPrefix < 0 || c.SharedPrefix >= c.Tokens, "--shared-prefix %d: want less than --tokens %d", c.SharedPrefix, c.Tokens)
	bad((c.Hit || c.Ops == "retrieve") && c.Prefill < 1, "--prefill %d: a hit needs a stored prompt", c.Prefill)
	bad(!strings.HasPrefix(c.URL, "tcp://"), "--url %s: want tcp://host:port", c.URL)
	if c.Salt == 0 {
		c.Salt = 1 + rand.IntN(99998)
	}
	bad(c.Salt < 0 || c.Salt > 9_999_999, "--salt %d: want 1 to 9999999", c.Salt)
	c.Model += "-" + c.Layout
	return errors.Join(errs...)
}

// transfers tells whether the workload needs a registered instance.
func (c *config) transfers() bool {
	return c.Ops != "ping" && c.Ops != "noop" && c.Ops != "chunk_size"
}

// moves tells whether the workload stores or retrieves.
func (c *config) moves() bool { return c.Ops == "store" || c.Ops == "retrieve" || c.Ops == "mixed" }

// prefilled tells whether prompts are stored before the run.
func (c *config) prefilled() bool { return c.Ops == "retrieve" || c.Hit }
