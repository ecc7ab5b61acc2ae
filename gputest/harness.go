package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// chunk is the server's default chunk size in tokens.
const chunk = 256

// harness is a running server and the processes that use it.
type harness struct {
	o      *options
	dir    string
	server *exec.Cmd
	log    string
	url    string
	http   string
	up     time.Duration
	report report

	mu    sync.Mutex
	procs map[string]*process
	seq   int
}

// start starts the server and waits until it is well.
func start(ctx context.Context, o *options, w io.Writer) (*harness, error) {
	dir, err := os.MkdirTemp("", "gputest")
	if err != nil {
		return nil, err
	}
	h := &harness{o: o, dir: dir, procs: map[string]*process{}, log: o.logPath, report: report{w: w}}
	if h.log == "" {
		h.log = filepath.Join(dir, "server.log")
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	web, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	h.url, h.http = fmt.Sprintf("tcp://127.0.0.1:%d", port), fmt.Sprintf("http://127.0.0.1:%d", web)
	args := []string{
		"server", "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--http-port", strconv.Itoa(web),
		"--l1-size-gb", strconv.FormatFloat(o.l1GB, 'g', -1, 64), "--eviction-policy", "LRU",
	}
	args = append(args, strings.Fields(o.serverArgs)...)
	h.server = exec.CommandContext(ctx, o.server, args...)
	h.server.Cancel = func() error { return h.server.Process.Signal(syscall.SIGTERM) }
	h.server.WaitDelay = 10 * time.Second
	f, err := os.Create(h.log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h.server.Stdout, h.server.Stderr = f, f
	begin := time.Now()
	if err := h.server.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.server, err)
	}
	for {
		if _, err := h.get(ctx, "/healthcheck"); err == nil {
			break
		}
		if time.Since(begin) > time.Minute || ctx.Err() != nil || h.server.Process.Signal(syscall.Signal(0)) != nil {
			h.close()
			return nil, fmt.Errorf("the server did not come up:\n%s", h.tail())
		}
		time.Sleep(20 * time.Millisecond)
	}
	h.up = time.Since(begin)
	h.report.note("server", "up after %v, pid %d", h.up.Round(time.Millisecond), h.server.Process.Pid)
	return h, nil
}

func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// get reads a page of the server.
func (h *harness) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.http+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", path, resp.Status)
	}
	return b, err
}

// status is what the harness reads of GET /status.
type status struct {
	Go struct {
		Instances []struct {
			ID    int64  `json:"instance_id"`
			State string `json:"state"`
		} `json:"instances"`
		GPUs json.RawMessage `json:"gpus"`
	} `json:"lmcache_go"`
}

func (h *harness) status(ctx context.Context) (st status, err error) {
	b, err := h.get(ctx, "/status")
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	return st, err
}

// tail is the end of the server's log.
func (h *harness) tail() string {
	b, err := os.ReadFile(h.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

// process returns a worker process by name, started on first use.
func (h *harness) process(ctx context.Context, name string, gpu int) (*process, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.procs[name]; p != nil {
		return p, nil
	}
	device := h.o.device
	if device != "cpu" {
		device = fmt.Sprintf("cuda:%d", gpu)
	}
	p, err := startProcess(ctx, h.o.python, h.dir, name, device)
	if err != nil {
		return nil, err
	}
	h.procs[name] = p
	return p, nil
}

// drop ends a process.
func (h *harness) drop(name string, kill bool) {
	h.mu.Lock()
	p := h.procs[name]
	delete(h.procs, name)
	h.mu.Unlock()
	switch {
	case p == nil:
	case kill:
		p.kill()
	default:
		p.close()
	}
}

// finish stops the server in order and notes how it ended.
func (h *harness) finish() {
	for name := range h.procs {
		h.drop(name, false)
	}
	begin := time.Now()
	_ = h.server.Process.Signal(syscall.SIGTERM)
	err := h.server.Wait()
	h.report.add(result{Group: "server", Name: "orderly stop", OK: err == nil, Text: fmt.Sprintf("%v, %v", time.Since(begin).Round(time.Millisecond), errText(err))})
	if h.report.failed() {
		fmt.Fprintf(h.report.w, "\nend of the server's log:\n%s\n\n", h.tail())
	}
}

func errText(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

func (h *harness) close() {
	for name := range h.procs {
		h.drop(name, true)
	}
	if h.server.ProcessState == nil {
		_ = h.server.Process.Kill()
		_ = h.server.Wait()
	}
	_ = os.RemoveAll(h.dir)
}

// cache is the shape of an engine's KV cache.
type cache struct {
	layers, blocks, slots, heads, width, planes, bytes int
	order, wrapper                                     string
}

// hint is kv_layout of the registration.
func (c *cache) hint() string {
	switch c.order {
	case "LBHNC":
		return "HND"
	case "LBNHC":
		return "NHD"
	}
	return c.order
}

// engine is a registered worker: a process's cache and a connection.
type engine struct {
	h        *harness
	p        *process
	c        *cache
	model    string
	world    int
	rank     int
	id       int64
	client   *connector.Client
	rng      *rand.Rand
	scramble int64
	size     int64
}

var errCase = errors.New("gputest")

// engine allocates a cache in a process and registers it.
func (h *harness) engine(ctx context.Context, p *process, model string, world, rank int, c cache) (*engine, error) {
	if c.planes == 0 {
		c.planes = 1
	}
	if c.bytes == 0 {
		c.bytes = 2
	}
	if c.wrapper == "" {
		c.wrapper = "cuda"
	}
	h.mu.Lock()
	h.seq++
	e := &engine{h: h, p: p, c: &c, model: model, world: world, rank: rank, id: int64(7_000_000 + h.seq), rng: rand.New(rand.NewPCG(1, uint64(h.seq)))}
	h.mu.Unlock()
	a, err := p.do("alloc", map[string]any{
		"layers": c.layers, "blocks": c.blocks, "slots": c.slots, "heads": c.heads, "width": c.width,
		"order": c.order, "planes": c.planes, "bytes": c.bytes, "wrapper": c.wrapper,
	})
	if err != nil {
		return nil, err
	}
	e.size = a.Bytes
	if e.client, err = connector.Dial(h.url, connector.Options{Timeout: 60 * time.Second}); err != nil {
		return nil, err
	}
	if err := e.register(ctx, a.Tensors); err != nil {
		_ = e.client.Close()
		return nil, fmt.Errorf("register: %w", err)
	}
	return e, nil
}

func (e *engine) register(ctx context.Context, tensors []tensor) error {
	reg := connector.Registration{
		InstanceID: e.id, Model: e.model, WorldSize: e.world, Engine: wire.EngineVLLM, Hints: wire.LayoutHints{KVLayout: e.c.hint()},
		Groups: []wire.EngineGroupInfo{{TokensPerBlock: e.c.slots, WindowTokens: -1}},
	}
	for i := range tensors {
		w, err := tensors[i].wrapper()
		if err != nil {
			return err
		}
		reg.Tensors = append(reg.Tensors, w)
		reg.Groups[0].LayerIndices = append(reg.Groups[0].LayerIndices, i)
	}
	return e.client.RegisterKVCache(ctx, &reg)
}

// leave unregisters, frees the cache and closes the connection.
func (e *engine) leave(ctx context.Context) error {
	err := e.client.UnregisterKVCache(ctx, e.id)
	_, free := e.p.do("free", nil)
	return errors.Join(err, free, e.client.Close())
}

// ids are random blocks for a number of tokens, or adjacent ones. Block 0 means
// "nothing" and is never among them.
func (e *engine) ids(tokens int, adjacent bool) []int64 {
	n := tokens / e.c.slots
	out := make([]int64, n)
	if adjacent {
		first := 1 + e.rng.IntN(e.c.blocks-n)
		for i := range out {
			out[i] = int64(first + i)
		}
		return out
	}
	for i, b := range e.rng.Perm(e.c.blocks - 1)[:n] {
		out[i] = int64(b + 1)
	}
	return out
}

// prompt is some tokens that nobody else has.
type prompt struct {
	seed   int
	tokens []uint32
}

func (h *harness) prompt(tokens int) prompt {
	h.mu.Lock()
	h.seq++
	p := prompt{seed: h.seq, tokens: make([]uint32, tokens)}
	h.mu.Unlock()
	for i := range p.tokens {
		p.tokens[i] = uint32(p.seed*1_000_003+i*17) % 128000
	}
	return p
}

func (e *engine) key(p prompt, request string) wire.Key {
	return wire.Key{
		Model: e.model, WorldSize: e.world, WorkerID: e.rank, HasWorker: true,
		Tokens: wire.AppendTokens(nil, p.tokens), TokenCount: len(p.tokens), End: len(p.tokens), RequestID: request, NumKVReaders: 1,
	}
}

// store sends a STORE and returns the server's event.
func (e *engine) store(ctx context.Context, p prompt, ids []int64, event []byte) ([]byte, error) {
	k := e.key(p, fmt.Sprintf("store-%d-%d", e.id, p.seed))
	return result2(ctx, e.client.GoStore(&k, e.id, [][]int64{ids}, event))
}

// lookup asks as a scheduler does, and returns the chunks found.
func (e *engine) lookup(ctx context.Context, p prompt, request string) (int, error) {
	k := e.key(p, request)
	k.HasWorker, k.WorkerID = false, 0
	if err := e.client.Lookup(ctx, &k, e.world); err != nil {
		return 0, err
	}
	for {
		n, done, err := e.client.WaitPrefetch(ctx, request, time.Second)
		if err != nil || done {
			return n, err
		}
	}
}

// retrieve sends a RETRIEVE of what lookup found under request.
func (e *engine) retrieve(ctx context.Context, p prompt, ids []int64, event []byte, request string) ([]byte, error) {
	k := e.key(p, request)
	return result2(ctx, e.client.GoRetrieve(&k, e.id, [][]int64{ids}, event, 0))
}

func result2(ctx context.Context, c *connector.Call) ([]byte, error) {
	if _, _, err := c.Wait(ctx); err != nil {
		return nil, err
	}
	return connector.TransferResult(c)
}

func (e *engine) fill(p prompt, ids []int64) error {
	_, err := e.p.do("fill", map[string]any{"seed": p.seed, "ids": ids})
	return err
}

func (e *engine) wipe() error {
	a, err := e.p.do("scramble", nil)
	e.scramble = a.Value
	return err
}

// check compares the blocks with the prompt's content, and the others with
// what wipe left there.
func (e *engine) check(p prompt, ids []int64) error {
	a, err := e.p.do("check", map[string]any{"seed": p.seed, "ids": ids, "untouched": e.scramble})
	switch {
	case err != nil:
		return err
	case a.Wrong != 0:
		return fmt.Errorf("%w: %d elements are wrong", errCase, a.Wrong)
	case a.Dirty != nil && *a.Dirty != 0:
		return fmt.Errorf("%w: %d elements of other blocks were written", errCase, *a.Dirty)
	}
	return nil
}
