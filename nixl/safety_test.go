package nixl_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// wantErr checks that an error matches a sentinel and says certain things.
func wantErr(t *testing.T, what string, err, want error, parts ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %q is not in: %v", what, p, err)
		}
	}
}

var global struct {
	p *byte
	b [4096]byte
}

func TestRegisterRefuses(t *testing.T) {
	n := newNode(t, 1<<20, nixl.Config{})
	f := func(what string, want error, parts []string, regions ...nixl.Region) {
		t.Helper()
		_, err := n.ucx.Register(regions...)
		wantErr(t, what, err, want, append(parts, "register", n.Name(), "UCX")...)
	}
	heap := make([]byte, 1<<20)
	f("Go heap", nixl.ErrGoMemory, []string{"MapBuffer", "DRAM"}, nixl.HostMemory(heap))
	f("Go heap, by its number", nixl.ErrGoMemory, nil, nixl.Region{Mem: nixl.DRAM, Desc: nixl.Desc{Addr: nixl.HostMemory(heap[100:]).Addr, Len: 10}})
	f("global", nixl.ErrGoMemory, nil, nixl.HostMemory(global.b[:]))
	f("twice", nixl.ErrOverlap, []string{"register the whole span once"}, n.buf.Region())
	f("inside", nixl.ErrOverlap, nil, nixl.HostMemory(n.buf.Bytes()[10:20]))
	f("nothing", nixl.ErrInvalidParam, nil)
	f("empty", nixl.ErrInvalidParam, nil, nixl.Region{Mem: nixl.DRAM, Desc: nixl.Desc{Addr: n.buf.Addr()}})
	f("file", nixl.ErrNotSupported, []string{"FILE", "DRAM VRAM"}, nixl.FilePath(1, "rw", "x", 1))
	f("mixed", nixl.ErrMismatch, nil, n.buf.Region(), nixl.CUDAMemory(1, 1, 0))
	f("null", nixl.ErrBackend, []string{"status -2 BACKEND"}, nixl.Region{Mem: nixl.DRAM, Desc: nixl.Desc{Len: 4096}})
	closed, err := nixl.MapBuffer(10, nixl.MapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	f("closed buffer", nixl.ErrClosed, nil, closed.Region())

	// Memory of another owner is fine.
	m, err := syscall.Mmap(-1, 0, 8192, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(m) }()
	reg, err := n.ucx.Register(nixl.HostMemory(m[:100]), nixl.HostMemory(m[100:200]))
	if err != nil {
		t.Fatal(err)
	}
	if err := reg.Close(); err != nil {
		t.Error(err)
	}
	if err := reg.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if s := n.Stats(); s.Registrations != 1 {
		t.Errorf("%d registrations, want 1", s.Registrations)
	}
}

func TestTransferRefuses(t *testing.T) {
	n, far := newNode(t, 1<<20, nixl.Config{}), newNode(t, 1<<20, nixl.Config{})
	r, _ := meet(t, n, far)
	f := func(what string, want error, parts []string, local, remote nixl.Descs) {
		t.Helper()
		_, err := r.NewTransfer(nixl.Write, n.ucx, local, remote, nixl.XferOptions{})
		wantErr(t, what, err, want, append(parts, "make transfer", n.Name(), far.Name(), "UCX")...)
	}
	l, x := n.buf, far.buf
	f("counts", nixl.ErrMismatch, []string{"1 local and 2 remote"}, dram(l.Desc(0, 8)), dram(x.Desc(0, 8), x.Desc(8, 8)))
	f("none", nixl.ErrMismatch, nil, dram(), dram())
	f("lengths", nixl.ErrMismatch, []string{"pair 1: 9 bytes local, 8 remote"}, dram(l.Desc(0, 8), l.Desc(0, 9)), dram(x.Desc(0, 8), x.Desc(8, 8)))
	over := l.Desc(0, 8)
	over.Addr += 1<<20 - 4
	f("local end", nixl.ErrNotRegistered, []string{"descriptor 1"}, dram(l.Desc(0, 8), over), dram(x.Desc(0, 8), x.Desc(8, 8)))
	over = x.Desc(0, 8)
	over.Addr += 1<<20 - 4
	f("remote end", nixl.ErrNotRegistered, []string{"descriptor 0", "region of the peer"}, dram(l.Desc(0, 8)), dram(over))
	f("local memory type", nixl.ErrNotRegistered, []string{"no VRAM"}, nixl.Descs{Mem: nixl.VRAM, List: []nixl.Desc{l.Desc(0, 8)}}, dram(x.Desc(0, 8)))
	if s := n.Stats(); s.Transfers != 0 {
		t.Errorf("%d transfers after refusals", s.Transfers)
	}
	if u := n.reg.Users(); u != 0 {
		t.Errorf("%d users of the registration after refusals", u)
	}

	local, err := n.ucx.PrepLocalBlocks(nixl.DRAM, nixl.Blocks{Addr: l.Addr(), Len: 4096, Stride: 4096, Count: 256})
	if err != nil {
		t.Fatal(err)
	}
	remote, err := r.Prep(n.ucx, dram(x.Desc(0, 4096), x.Desc(4096, 8192)))
	if err != nil {
		t.Fatal(err)
	}
	g := func(what string, want error, a *nixl.DescList, ai []int32, b *nixl.DescList, bi []int32, parts ...string) {
		t.Helper()
		_, err := nixl.NewTransfer(nixl.Read, a, ai, b, bi, nixl.XferOptions{})
		wantErr(t, what, err, want, append(parts, "make transfer")...)
	}
	g("index", nixl.ErrInvalidParam, local, []int32{256}, remote, []int32{0}, "local index 0 is 256 of 256")
	g("negative", nixl.ErrInvalidParam, local, []int32{0}, remote, []int32{-1})
	g("index counts", nixl.ErrMismatch, local, []int32{0, 1}, remote, []int32{0})
	g("block lengths", nixl.ErrInvalidParam, local, []int32{0}, remote, []int32{1}, "equal lengths")
	g("sides", nixl.ErrInvalidParam, remote, []int32{0}, local, []int32{0})
	if _, err := n.ucx.PrepLocal(dram(over)); !errors.Is(err, nixl.ErrNotRegistered) {
		t.Errorf("PrepLocal of foreign memory: %v", err)
	}

	t1, err := r.NewTransfer(nixl.Write, n.ucx, dram(l.Desc(0, 8)), dram(x.Desc(0, 8)), nixl.XferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = t1.Poll()
	wantErr(t, "Poll before Post", err, nixl.ErrNotPosted)
	wantErr(t, "Wait before Post", t1.Wait(t.Context()), nixl.ErrNotPosted)
	if _, err := t1.Telemetry(); !errors.Is(err, nixl.ErrInvalidState) {
		t.Errorf("Telemetry before Post: %v", err)
	}
	if err := t1.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = t1.Telemetry()
	wantErr(t, "Telemetry that is off", err, nixl.ErrNoTelemetry, "Config.Telemetry")
	if err := t1.Close(); err != nil {
		t.Error(err)
	}
	_, err = t1.Post()
	wantErr(t, "Post after Close", err, nixl.ErrClosed)
}

func TestMetadataRefuses(t *testing.T) {
	a, b := newNode(t, 4096, nixl.Config{}), newNode(t, 4096, nixl.Config{})
	framed, err := b.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.MetadataRaw()
	if err != nil {
		t.Fatal(err)
	}
	f := func(what string, want error, blob []byte, expect string, isRaw bool, parts ...string) {
		t.Helper()
		add := a.AddRemote
		if isRaw {
			add = a.AddRemoteRaw
		}
		_, err := add(t.Context(), blob, expect)
		wantErr(t, what, err, want, append(parts, "load metadata")...)
	}
	f("cut frame", nixl.ErrBadMetadata, framed[:len(framed)-1], "", false)
	f("raw as framed", nixl.ErrBadMetadata, raw, "", false, "AddRemoteRaw")
	f("cut blob", nixl.ErrBadMetadata, raw[:len(raw)-20], "", true, "cut off")
	f("wrong name", nixl.ErrMismatch, framed, "somebody", false, b.Name())
	own, err := a.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	f("own", nixl.ErrInvalidParam, own, "", false, "Loopback")
	part, err := b.PartialMetadata(b.reg)
	if err != nil {
		t.Fatal(err)
	}
	f("part of an unknown peer", nixl.ErrNotFound, part, "", false, "ConnectionMetadata")
	// None of these has spoilt the name.
	if _, err := a.AddRemote(t.Context(), framed, b.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.FetchRemote(t.Context(), "", nixlAddr("127.0.0.1:1")); !errors.Is(err, nixl.ErrInvalidParam) {
		t.Errorf("FetchRemote without a name: %v", err)
	}
	err = a.SendMetadata(nixlAddr(""))
	wantErr(t, "SendMetadata without a server", err, nixl.ErrInvalidParam, "NIXL_ETCD_ENDPOINTS")
}

// What a backend cannot do is an error and not a crash.
func TestBackendErrors(t *testing.T) {
	a := newAgent(t, nixl.Config{})
	_, err := a.Backend(nixl.Plugin{Name: "NO_SUCH_PLUGIN"})
	wantErr(t, "unknown plugin", err, nixl.ErrBackend, "create backend", "NO_SUCH_PLUGIN")
	_, err = a.Backend(nixl.Plugin{})
	wantErr(t, "no name", err, nixl.ErrInvalidParam)
	_, err = a.Backend(nixl.UCX{Engine: map[string]string{"TLS": "tcp,self"}})
	wantErr(t, "comma", err, nixl.ErrInvalidParam, "UCX_TLS")
	_, err = a.Backend(nixl.POSIX{API: "magic"})
	wantErr(t, "POSIX API", err, nixl.ErrInvalidParam)
	if _, err := a.Metadata(); !errors.Is(err, nixl.ErrInvalidParam) {
		t.Errorf("Metadata without a backend: %v", err)
	}
	u1, err := a.Backend(nixl.UCX{})
	if err != nil {
		t.Fatal(err)
	}
	u2, err := a.Backend(nixl.UCX{})
	if err != nil || u1 != u2 {
		t.Errorf("a second backend of a plugin: %v, %v", u2, err)
	}
	if _, err := nixl.NewAgent(a.Library(), nixl.Config{Name: "a\x00b"}); !errors.Is(err, nixl.ErrInvalidParam) {
		t.Errorf("a name with NUL: %v", err)
	}
}

// Everything may be closed in any order, and the agent first of all.
func TestCloseOrders(t *testing.T) {
	orders := map[string][]int{"forward": {0, 1, 2, 3, 4, 5}, "backward": {5, 4, 3, 2, 1, 0}, "mixed": {2, 5, 0, 3, 1, 4}}
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			far := newNode(t, 8192, nixl.Config{})
			n := newNode(t, 8192, nixl.Config{})
			r := addRemote(t, n.Agent, far.Agent)
			list, err := n.ucx.PrepLocal(dram(n.buf.Desc(0, 4096), n.buf.Desc(4096, 4096)))
			if err != nil {
				t.Fatal(err)
			}
			flist, err := r.Prep(n.ucx, dram(far.buf.Desc(0, 4096), far.buf.Desc(4096, 4096)))
			if err != nil {
				t.Fatal(err)
			}
			x, err := nixl.NewTransfer(nixl.Write, list, []int32{1}, flist, []int32{0}, nixl.XferOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := x.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			closers := []func() error{x.Close, list.Close, flist.Close, n.reg.Close, n.buf.Close, r.Close}
			for _, i := range order {
				if err := closers[i](); err != nil && !errors.Is(err, nixl.ErrBusy) {
					t.Errorf("closer %d: %v", i, err)
				}
			}
			<-x.Settled()
			<-n.reg.Done()
			<-n.buf.Done()
			<-r.Done()
			if s := n.Stats(); s.Transfers+s.Lists+s.Registrations+s.Remotes != 0 {
				t.Errorf("left over: %+v", s)
			}
			for _, i := range order {
				if err := closers[i](); err != nil {
					t.Errorf("closer %d, second time: %v", i, err)
				}
			}
		})
	}
	t.Run("agent first", func(t *testing.T) {
		far, n := newNode(t, 8192, nixl.Config{}), newNode(t, 8192, nixl.Config{})
		r := addRemote(t, n.Agent, far.Agent)
		x, err := r.NewTransfer(nixl.Write, n.ucx, dram(n.buf.Desc(0, 8)), dram(far.buf.Desc(0, 8)), nixl.XferOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		<-n.reg.Done()
		<-r.Done()
		for i, f := range []func() error{x.Close, n.reg.Close, r.Close, n.buf.Close, n.Close} {
			if err := f(); err != nil {
				t.Errorf("closer %d after the agent: %v", i, err)
			}
		}
		_, err = x.Post()
		wantErr(t, "Post", err, nixl.ErrClosed)
		_, err = n.Metadata()
		wantErr(t, "Metadata", err, nixl.ErrClosed)
		_, err = n.ucx.Register(far.buf.Region())
		wantErr(t, "Register", err, nixl.ErrClosed)
		_, err = n.PollNotifs()
		wantErr(t, "PollNotifs", err, nixl.ErrClosed)
		if _, open := <-n.Notifications(); open {
			t.Error("the stream of a closed agent is open")
		}
	})
}

func TestMapBuffer(t *testing.T) {
	f := func(size int, o nixl.MapOptions, align uintptr) {
		t.Helper()
		b, err := nixl.MapBuffer(size, o)
		if err != nil {
			t.Fatal(err)
		}
		if b.Size() != size || len(b.Bytes()) != size || b.Addr()%align != 0 {
			t.Errorf("%d bytes at %#x for %d, alignment %d", b.Size(), b.Addr(), size, align)
		}
		b.Bytes()[0], b.Bytes()[size-1] = 1, 2
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		<-b.Done()
	}
	f(1, nixl.MapOptions{}, 4096)
	f(5000, nixl.MapOptions{Populate: true}, 4096)
	f(3<<20, nixl.MapOptions{Pages: nixl.PagesTransparent, Populate: true}, 2<<20)
	f(5000, nixl.MapOptions{Align: 1 << 20}, 1<<20)
	for _, o := range []nixl.MapOptions{{Align: 3000}, {Align: 12345}} {
		if _, err := nixl.MapBuffer(1, o); !errors.Is(err, nixl.ErrInvalidParam) && o.Align > 4096 {
			t.Errorf("alignment %d: %v", o.Align, err)
		}
	}
	// Reserved huge pages are there or not; without them the error says what to do.
	huge, err := nixl.MapBuffer(1, nixl.MapOptions{Pages: nixl.PagesHuge2M})
	if err != nil {
		wantErr(t, "huge pages", err, syscall.ENOMEM, "vm.nr_hugepages")
	} else if huge.Addr()%(2<<20) != 0 || huge.Close() != nil {
		t.Errorf("a huge page at %#x", huge.Addr())
	}
	if _, err := nixl.MapBuffer(0, nixl.MapOptions{}); !errors.Is(err, nixl.ErrInvalidParam) {
		t.Errorf("no bytes: %v", err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "shared"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(8192); err != nil {
		t.Fatal(err)
	}
	b, err := nixl.MapBuffer(8192, nixl.MapOptions{File: file})
	if err != nil {
		t.Fatal(err)
	}
	b.Bytes()[5000] = 77
	var one [1]byte
	if _, err := file.ReadAt(one[:], 5000); err != nil || one[0] != 77 {
		t.Errorf("the file holds %v, %v", one, err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// An agent that is dropped without Close is told of, once the collector finds
// it, and nothing is freed behind its owner's back.
func TestDroppedAgentIsToldOf(t *testing.T) {
	lib := needLib(t)
	heard := make(chan string, 1)
	log := slog.New(slog.NewTextHandler(lineWriter(heard), nil))
	drop := func() {
		a, err := nixl.NewAgent(lib, nixl.Config{Name: "dropped", Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Plugins(); err != nil {
			t.Error(err)
		}
	}
	drop()
	eventually(t, "a word about the agent", func() bool {
		runtime.GC()
		select {
		case line := <-heard:
			return strings.Contains(line, "dropped without Close") && strings.Contains(line, "agent=dropped")
		default:
			return false
		}
	})
}

// lineWriter hands lines on as long as somebody takes them.
type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	select {
	case w <- string(p):
	default:
	}
	return len(p), nil
}
