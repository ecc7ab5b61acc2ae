package pair

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// endpoint is an agent with UCX and registered memory.
type endpoint struct {
	agent *nixl.Agent
	ucx   *nixl.Backend
	mem   *Memory
	reg   *nixl.Registration
}

func newEndpoint(lib *nixl.Library, s Side, params map[string]string) (*endpoint, error) {
	mem, err := NewMemory(s)
	if err != nil {
		return nil, err
	}
	agent, err := nixl.NewAgent(lib, nixl.Config{ReapTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	config := nixl.UCX{Extra: params}
	if _, ok := params["num_threads"]; ok {
		config.Threads = -1 // it is in Extra
		if params["num_threads"] == "0" {
			delete(params, "num_threads")
		}
	}
	if s.Mem == nixl.VRAM {
		config.CUDA = []int{s.Dev}
	}
	ucx, err := agent.Backend(config)
	if err != nil {
		return nil, err
	}
	reg, err := ucx.Register(mem.Region())
	if err != nil {
		return nil, err
	}
	return &endpoint{agent, ucx, mem, reg}, nil
}

// ServeTarget is the target's process: it speaks over in and out until in ends.
func ServeTarget(lib *nixl.Library, s Side, params map[string]string, in io.Reader, out io.Writer) error {
	e, err := newEndpoint(lib, s, params)
	if err != nil {
		return err
	}
	defer e.agent.Close() //nolint:errcheck // the process ends
	blob, err := e.agent.MetadataRaw()
	if err != nil {
		return err
	}
	t := Target{Side: s, Name: e.agent.Name(), Blob: blob, Addr: e.mem.Addr()}
	if _, err := fmt.Fprintln(out, t.Line()); err != nil {
		return err
	}
	return answerLines(in, out, func(words []string) (string, error) { return e.common(words) })
}

// answerLines answers each line until there are no more.
func answerLines(in io.Reader, out io.Writer, f func(words []string) (string, error)) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		answer, err := f(words)
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

// common answers what both roles are asked.
func (e *endpoint) common(words []string) (string, error) {
	n, err := numbers(words[1:])
	switch {
	case err != nil:
		return "", err
	case words[0] == "fill" && len(n) == 1:
		return "ok", e.mem.Fill(uint64(n[0]))
	case words[0] == "check" && len(n) == 5:
		return "ok", e.mem.Check(uint64(n[0]), uint64(n[1]), n[2], n[3], n[4])
	}
	return "", fmt.Errorf("unknown command %q", strings.Join(words, " "))
}

// initiator is the Go side of the comparison.
type initiator struct {
	*endpoint
	target Target
	remote *nixl.Remote
	other  *gpuMemory // for raw copies

	localList, remoteList []nixl.Desc // reused from case to case
}

// ServeInitiator is the initiator's process.
func ServeInitiator(lib *nixl.Library, in io.Reader, out io.Writer) error {
	// The CPU time that is reported is this thread's.
	runtime.LockOSThread()
	var x *initiator
	defer func() {
		if x != nil {
			_ = x.agent.Close()
		}
	}()
	return answerLines(in, out, func(words []string) (string, error) {
		if words[0] == "start" {
			var err error
			x, err = startInitiator(lib, words)
			return "ok", err
		}
		if x == nil {
			return "", fmt.Errorf("not started")
		}
		switch words[0] {
		case "case":
			c, err := parseCase(words)
			if err != nil {
				return "", err
			}
			r, err := x.run(c)
			return r.Line(), err
		case "raw":
			c, err := parseCase(append([]string{"case", "WRITE"}, words[1:]...))
			if err != nil {
				return "", err
			}
			r, err := x.raw(c)
			return r.Line(), err
		default:
			return x.common(words)
		}
	})
}

func parseCase(words []string) (Case, error) {
	if len(words) != 6 {
		return Case{}, fmt.Errorf("a case has five words")
	}
	n, err := numbers(words[2:])
	if err != nil {
		return Case{}, err
	}
	c := Case{Op: nixl.Read, Len: n[0], Count: n[1], Stride: n[2], NSec: int64(n[3])}
	if words[1] == nixl.Write.String() {
		c.Op = nixl.Write
	}
	if c.Len < 8 || c.Count < 1 || c.Stride < c.Len {
		return Case{}, fmt.Errorf("a case of %d × %d bytes, stride %d", c.Count, c.Len, c.Stride)
	}
	return c, nil
}

func startInitiator(lib *nixl.Library, words []string) (*initiator, error) {
	if len(words) != 12 {
		return nil, fmt.Errorf("start has eleven words, not %d", len(words)-1)
	}
	target, err := ParseTarget(strings.Join(words[5:], " "))
	if err != nil {
		return nil, err
	}
	n, err := numbers(words[1:4])
	if err != nil {
		return nil, err
	}
	e, err := newEndpoint(lib, Side{nixl.MemType(n[0]), n[1], n[2]}, ParseParams(words[4]))
	if err != nil {
		return nil, err
	}
	remote, err := e.agent.AddRemoteRaw(context.Background(), target.Blob, target.Name)
	if err != nil {
		return nil, err
	}
	return &initiator{endpoint: e, target: target, remote: remote}, nil
}

// lists are the descriptors of a case; the next call reuses their memory.
func (x *initiator) lists(c Case) (local, remote nixl.Descs) {
	x.localList, x.remoteList = x.localList[:0], x.remoteList[:0]
	base, far, length, stride := x.mem.Addr(), x.target.Addr, uintptr(c.Len), uintptr(c.Stride)
	dev, farDev := x.dev(x.mem.Side), x.dev(x.target.Side)
	for i := range uintptr(c.Count) {
		x.localList = append(x.localList, nixl.Desc{Addr: base + i*stride, Len: length, Dev: dev})
		x.remoteList = append(x.remoteList, nixl.Desc{Addr: far + i*stride, Len: length, Dev: farDev})
	}
	return nixl.Descs{Mem: x.mem.Mem, List: x.localList}, nixl.Descs{Mem: x.target.Mem, List: x.remoteList}
}

func (*initiator) dev(s Side) uint64 {
	if s.Mem == nixl.VRAM {
		return uint64(s.Dev)
	}
	return 0
}

// run measures one case.
func (x *initiator) run(c Case) (Result, error) {
	var r Result
	make1 := func() (*nixl.Transfer, error) {
		local, remote := x.lists(c)
		return x.remote.NewTransfer(c.Op, x.ucx, local, remote, nixl.XferOptions{})
	}
	var err error
	if r.BuildNSec, err = bestOf(make1); err != nil {
		return r, err
	}
	if r.PreparedNSec, err = x.prepared(c); err != nil {
		return r, err
	}
	t, err := make1()
	if err != nil {
		return r, err
	}
	defer t.Close() //nolint:errcheck // the agent would
	r.Descs = t.Descs()
	once := func() error {
		done, err := t.Post()
		for !done && err == nil {
			done, err = t.Poll()
		}
		return err
	}
	return measure(r, c.NSec, once)
}

// bestOf is the time that making a transfer takes, at best.
func bestOf(f func() (*nixl.Transfer, error)) (nsec int64, err error) {
	for range 5 {
		begin := time.Now()
		t, err := f()
		if err != nil {
			return 0, err
		}
		nsec = least(nsec, time.Since(begin).Nanoseconds())
		if err := t.Close(); err != nil {
			return 0, err
		}
	}
	return nsec, nil
}

// prepared measures the making of a transfer from prepared lists.
func (x *initiator) prepared(c Case) (int64, error) {
	row := func(s Side, addr uintptr) nixl.Blocks {
		return nixl.Blocks{Addr: addr, Len: uintptr(c.Len), Dev: x.dev(s), Stride: uintptr(c.Stride), Count: uint64(c.Count)}
	}
	local, err := x.ucx.PrepLocalBlocks(x.mem.Mem, row(x.mem.Side, x.mem.Addr()))
	if err != nil {
		return 0, err
	}
	defer local.Close() //nolint:errcheck // the agent would
	remote, err := x.remote.PrepBlocks(x.ucx, x.target.Mem, row(x.target.Side, x.target.Addr))
	if err != nil {
		return 0, err
	}
	defer remote.Close() //nolint:errcheck // the agent would
	var index []int32
	return bestOf(func() (*nixl.Transfer, error) {
		index = index[:0]
		for i := range int32(c.Count) {
			index = append(index, i)
		}
		return nixl.NewTransfer(c.Op, local, index, remote, index, nixl.XferOptions{})
	})
}

// maxRound bounds a chunk; chunks are short, so that some of them run
// undisturbed on a busy machine.
const maxRound = 64

func least(best, v int64) int64 {
	if best == 0 {
		return v
	}
	return min(best, v)
}

// measure repeats a transfer for at least nsec, in rounds that double so that
// looking at the clock does not count. The first one warms up.
func measure(r Result, nsec int64, once func() error) (Result, error) {
	if err := once(); err != nil {
		return r, err
	}
	for round := 1; r.WallNSec < nsec; round = min(2*round, maxRound) {
		begin, before := time.Now(), capi.ThreadCPU()
		for range round {
			if err := once(); err != nil {
				return r, err
			}
		}
		cpu, wall := capi.ThreadCPU()-before, time.Since(begin).Nanoseconds()
		r.CPUNSec += cpu
		r.WallNSec += wall
		r.Iters += round
		r.BestCPU = least(r.BestCPU, 1000*cpu/int64(round))
		r.BestWall = least(r.BestWall, 1000*wall/int64(round))
	}
	return r, nil
}

// raw copies as much between the same two places without NIXL: on the GPUs by
// the driver, on the host by memmove within this process.
func (x *initiator) raw(c Case) (Result, error) {
	if x.mem.gpu == nil && x.target.Mem == nixl.DRAM {
		half := x.mem.Size / 2
		n := min(c.Bytes(), half)
		b := x.mem.host.Bytes()
		r, err := measure(Result{Descs: 1}, c.NSec, func() error { copy(b[half:half+n], b[:n]); return nil })
		if n < c.Bytes() { // as if all of it had been copied
			scale := func(v int64) int64 { return int64(float64(v) * float64(c.Bytes()) / float64(n)) }
			r.CPUNSec, r.WallNSec, r.BestCPU, r.BestWall = scale(r.CPUNSec), scale(r.WallNSec), scale(r.BestCPU), scale(r.BestWall)
		}
		return r, err
	}
	if x.mem.gpu == nil || x.target.Mem != nixl.VRAM {
		return Result{}, fmt.Errorf("no raw copy between these kinds of memory")
	}
	if x.other == nil {
		var err error
		if x.other, err = newGPUMemory(x.target.Dev, x.mem.Size); err != nil {
			return Result{}, err
		}
	}
	if err := x.mem.gpu.d.use(x.mem.Dev); err != nil {
		return Result{}, err
	}
	return measure(Result{Descs: c.Count}, c.NSec, func() error {
		for i := range c.Count {
			if err := x.mem.gpu.copyTo(x.other, i*c.Stride, c.Len); err != nil {
				return err
			}
		}
		return x.mem.gpu.d.call("cuCtxSynchronize")
	})
}

// RoleArgs are the arguments that make this program play a role; Role reads
// them.
func RoleArgs(role, lib string, s Side, params map[string]string) []string {
	return []string{"--role", role, lib, strconv.Itoa(int(s.Mem)), strconv.Itoa(s.Dev), strconv.Itoa(s.Size), FormatParams(params)}
}

// Role plays a role when args ask for one: done tells that they did, and code
// is then the exit status.
func Role(args []string, in io.Reader, out, errw io.Writer) (done bool, code int) {
	if len(args) != 7 || args[0] != "--role" {
		return false, 0
	}
	err := play(args, in, out)
	if err != nil {
		// Both ways: the parent reads the first, a person the second.
		fmt.Fprintln(out, "error "+strings.ReplaceAll(err.Error(), "\n", " "))
		fmt.Fprintln(errw, args[1]+":", err)
		return true, 1
	}
	return true, 0
}

func play(args []string, in io.Reader, out io.Writer) error {
	lib, err := nixl.Load(nixl.LoadOptions{Path: args[2]})
	if err != nil {
		return err
	}
	n, err := numbers(args[3:6])
	if err != nil {
		return err
	}
	s := Side{nixl.MemType(n[0]), n[1], n[2]}
	switch args[1] {
	case "target":
		return ServeTarget(lib, s, ParseParams(args[6]), in, out)
	case "initiator":
		return ServeInitiator(lib, in, out)
	default:
		return fmt.Errorf("unknown role %q", args[1])
	}
}
