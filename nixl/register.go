package nixl

import (
	"fmt"
	"os"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// Registration is memory that the library may read and write, and that peers
// may when they have its metadata. It covers the regions of one Register call.
//
// Ending a registration does not take away what peers know: over shared memory
// transports (UCX cma) a peer that still has the metadata can go on writing to
// the addresses. Have peers forget first, or do not reuse the memory.
type Registration struct {
	agent   *Agent
	backend *Backend
	mem     MemType
	regions []Region
	descs   []Desc
	metas   [][]byte
	done    chan struct{}

	users   int  // lists, views and transfers; guarded by agent.mu
	closing bool // guarded by agent.mu
	ended   bool // guarded by agent.mu
}

// regionKey and regionSet: the regions of one backend and memory type, as C
// looks them up.
type regionKey struct {
	backend *Backend
	mem     MemType
}

// regionSet is replaced, never changed, so that readers need no lock.
type regionSet struct {
	ranges []capi.Range    // sorted by device and start, disjoint
	owners []*Registration // of each range
}

// Register makes regions of one kind of memory known to the backend. It
// refuses Go memory and regions that overlap registered ones of the backend:
// NIXL would find the wrong one. Register large regions; each costs a system
// call or more, and a transfer's descriptors must each lie within one.
func (b *Backend) Register(regions ...Region) (*Registration, error) {
	if len(regions) == 0 {
		e := b.agent.fail("register")
		e.Backend, e.Cause, e.Detail = b.name, ErrInvalidParam, "no region"
		return nil, e
	}
	mem := regions[0].Mem
	fail := func(cause error, detail, remedy string) *Error {
		e := b.fail("register", mem)
		e.Cause, e.Detail, e.Remedy = cause, detail, remedy
		return e
	}
	if !b.Supports(mem) {
		return nil, fail(ErrNotSupported, fmt.Sprintf("the backend moves %v", b.MemTypes()), "")
	}
	for i, g := range regions {
		switch {
		case g.Mem != mem:
			return nil, fail(ErrMismatch, fmt.Sprintf("region %d is %s", i, g.Mem), "register each kind of memory by itself")
		case g.Len == 0 && mem != Object && mem != File, g.Len > 1<<60, g.Addr+g.Len < g.Addr:
			return nil, fail(ErrInvalidParam, fmt.Sprintf("region %d has %d bytes", i, g.Len), "")
		}
	}
	if err := b.agent.enter("register"); err != nil {
		return nil, err
	}
	defer b.agent.leave()
	r := &Registration{agent: b.agent, backend: b, mem: mem, regions: slices.Clone(regions), done: make(chan struct{})}
	if err := r.take(fail); err != nil {
		r.giveBack(false)
		return nil, err
	}
	if err := r.admit(fail); err != nil {
		r.giveBack(false)
		return nil, err
	}
	if err := b.agent.lib.c.Register(b.agent.h, b.h, int(mem), toC(r.descs), r.metas); err != nil {
		b.agent.mu.Lock()
		r.dropRanges()
		b.agent.mu.Unlock()
		r.giveBack(false)
		e := fail(nil, fmt.Sprintf("%d regions, the first at %#x, %d bytes, device %d", len(r.descs), r.descs[0].Addr, r.descs[0].Len, r.descs[0].Dev), registerRemedy(b, mem)).from(err)
		return nil, e
	}
	return r, nil
}

// take claims what the regions rest on: buffers, files, GPU contexts.
func (r *Registration) take(fail func(error, string, string) *Error) error {
	taken := r.regions[:0:0]
	defer func() { r.regions = taken }()
	for i, g := range r.regions {
		switch {
		case g.buffer != nil:
			if err := g.buffer.retain(); err != nil {
				return fail(err, fmt.Sprintf("the buffer of region %d", i), "")
			}
		case g.file != nil:
			fd, err := unix.FcntlInt(g.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return fail(os.NewSyscallError("dup", err), g.file.Name(), "")
			}
			g.file, g.Dev = os.NewFile(uintptr(fd), g.file.Name()), uint64(fd)
		case r.mem == DRAM:
			isGo, known := capi.IsGoMemory(g.Addr)
			if isGo {
				return fail(ErrGoMemory, fmt.Sprintf("region %d at %#x", i, g.Addr), "take it from MapBuffer, C or a mapping")
			}
			if !known {
				return fail(ErrGoMemory, "with GODEBUG=cgocheck=0 it cannot be told from other memory", "use MapBuffer, or unset cgocheck")
			}
		}
		taken = append(taken, g)
		if r.mem == VRAM {
			if err := r.backend.enableCUDA(int(g.Dev)); err != nil {
				return err
			}
		}
	}
	return nil
}

// admit enters the regions into the agent's books.
func (r *Registration) admit(fail func(error, string, string) *Error) error {
	withMeta := false
	for _, g := range r.regions {
		r.descs = append(r.descs, g.Desc)
		r.metas = append(r.metas, g.Meta)
		withMeta = withMeta || len(g.Meta) > 0
	}
	if !withMeta {
		r.metas = nil
	}
	a := r.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	key := regionKey{r.backend, r.mem}
	next := &regionSet{}
	if old := a.regions[key]; old != nil {
		next.ranges, next.owners = slices.Clone(old.ranges), slices.Clone(old.owners)
	}
	for i, d := range r.descs {
		g := capi.Range{Dev: d.Dev, Start: uint64(d.Addr), End: uint64(d.Addr + d.Len)}
		at := sort.Search(len(next.ranges), func(k int) bool {
			return next.ranges[k].Dev > g.Dev || (next.ranges[k].Dev == g.Dev && next.ranges[k].Start >= g.Start)
		})
		if clash := next.overlap(at, g); clash >= 0 {
			c := next.ranges[clash]
			return fail(ErrOverlap, fmt.Sprintf("region %d [%#x, %#x) with [%#x, %#x), device %d", i, g.Start, g.End, c.Start, c.End, c.Dev),
				"register the whole span once")
		}
		next.ranges = slices.Insert(next.ranges, at, g)
		next.owners = slices.Insert(next.owners, at, r)
	}
	a.regions[key] = next
	a.regs[r] = struct{}{}
	return nil
}

// overlap returns the neighbour of position at that overlaps g, or -1.
func (s *regionSet) overlap(at int, g capi.Range) int {
	if at > 0 && s.ranges[at-1].Dev == g.Dev && s.ranges[at-1].End > g.Start {
		return at - 1
	}
	if at < len(s.ranges) && s.ranges[at].Dev == g.Dev && (s.ranges[at].Start < g.End || s.ranges[at].Start == g.Start) {
		return at
	}
	return -1
}

// dropRanges takes the regions out of the books; it needs agent.mu.
func (r *Registration) dropRanges() {
	key := regionKey{r.backend, r.mem}
	next := &regionSet{}
	for i, owner := range r.agent.regions[key].owners {
		if owner != r {
			next.ranges = append(next.ranges, r.agent.regions[key].ranges[i])
			next.owners = append(next.owners, owner)
		}
	}
	r.agent.regions[key] = next
	delete(r.agent.regs, r)
	r.ended = true
}

// giveBack lets go of buffers and files and tells whoever waits.
func (r *Registration) giveBack(quarantine bool) {
	for _, g := range r.regions {
		switch {
		case g.buffer != nil:
			g.buffer.release(quarantine)
		case g.file != nil && !quarantine:
			_ = g.file.Close() // a descriptor of our own; its data was written by the backend
		}
	}
	if !quarantine {
		close(r.done)
	}
}

// Mem is the kind of memory.
func (r *Registration) Mem() MemType { return r.mem }

// Backend is the backend that the memory is registered with.
func (r *Registration) Backend() *Backend { return r.backend }

// Regions are the registered spans. For a [FileRegion] Dev is the number of
// the registration's own file descriptor.
func (r *Registration) Regions() []Desc { return slices.Clone(r.descs) }

// Desc is length bytes from offset on of region i.
func (r *Registration) Desc(i int, offset, length uintptr) Desc {
	d := r.descs[i]
	if length > d.Len || offset > d.Len-length {
		panic(fmt.Sprintf("nixl: Registration.Desc(%d, %d, %d) of a region of %d bytes", i, offset, length, d.Len))
	}
	return Desc{Addr: d.Addr + offset, Len: length, Dev: d.Dev}
}

// Users counts the lists, views and transfers that rest on the registration.
func (r *Registration) Users() int {
	r.agent.mu.Lock()
	defer r.agent.mu.Unlock()
	return r.users
}

// Done is closed when the registration has ended and the library will not
// touch the memory any more. It stays open for good when the agent had to be
// destroyed under a transfer that never ended.
func (r *Registration) Done() <-chan struct{} { return r.done }

// Close ends the registration. While lists, views or transfers rest on it
// Close returns an error that matches [ErrBusy]; new ones are refused, and the
// registration ends when the last of them is closed and has ended. Until Done
// is closed the memory must stay.
func (r *Registration) Close() error {
	a := r.agent
	a.mu.Lock()
	if r.ended {
		a.mu.Unlock()
		return nil
	}
	r.closing = true
	users := r.users
	a.mu.Unlock()
	if users > 0 {
		e := r.backend.fail("deregister", r.mem)
		e.Cause, e.Detail = ErrBusy, fmt.Sprintf("%d lists, views or transfers use it", users)
		e.Remedy = "close them; the memory must stay until Done is closed"
		return e
	}
	return r.tryEnd()
}

// tryEnd deregisters when it is time to. The last user calls it, and Close.
func (r *Registration) tryEnd() error {
	a := r.agent
	a.life.RLock()
	defer a.life.RUnlock()
	a.mu.Lock()
	if r.ended || !r.closing || r.users > 0 || a.h == 0 {
		a.mu.Unlock()
		return nil
	}
	r.ended = true // of two callers one goes on
	a.mu.Unlock()
	err := a.lib.c.Deregister(a.h, r.backend.h, int(r.mem), toC(r.descs), r.metas)
	a.mu.Lock()
	r.dropRanges()
	a.mu.Unlock()
	r.giveBack(false)
	if err != nil {
		return r.backend.fail("deregister", r.mem).from(err)
	}
	return nil
}

// QueryResult is what a backend knows about one region.
type QueryResult struct {
	Found bool
	Info  map[string]string // files: size, mode, mtime, in decimal
}

// FileQuery names a file for [Backend.Query].
func FileQuery(path string) Region { return Region{Mem: File, Meta: []byte(path)} }

// ObjectQuery names an object for [Backend.Query].
func ObjectQuery(key string) Region { return Region{Mem: Object, Meta: []byte(key)} }

// Query asks the backend whether files ([FileQuery]) or objects
// ([ObjectQuery]) are there.
func (b *Backend) Query(regions ...Region) ([]QueryResult, error) {
	if len(regions) == 0 {
		return nil, nil
	}
	mem := regions[0].Mem
	descs, metas := make([]Desc, len(regions)), make([][]byte, len(regions))
	for i, g := range regions {
		if g.Mem != mem {
			e := b.fail("query", mem)
			e.Cause, e.Detail = ErrMismatch, fmt.Sprintf("region %d is %s", i, g.Mem)
			return nil, e
		}
		descs[i], metas[i] = g.Desc, g.Meta
	}
	if err := b.agent.enter("query"); err != nil {
		return nil, err
	}
	defer b.agent.leave()
	answers, err := b.agent.lib.c.Query(b.agent.h, b.h, int(mem), toC(descs), metas)
	if err != nil {
		return nil, b.fail("query", mem).from(err)
	}
	results := make([]QueryResult, len(answers))
	for i, m := range answers {
		results[i] = QueryResult{Found: m != nil, Info: m}
	}
	return results, nil
}

// registerRemedy says what most often makes a registration fail.
func registerRemedy(b *Backend, m MemType) string {
	switch {
	case b.name == "UCX" && m == VRAM:
		return "UCX saw no GPU memory: UCX_TLS must allow cuda, and libcuda.so.1 and libcudart must be found (lmcache-go doctor nixl)"
	case b.name == "UCX":
		var lim unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil && lim.Cur < 1<<40 {
			return fmt.Sprintf("is the memory mapped, and RLIMIT_MEMLOCK (%d KiB) large enough for RDMA?", lim.Cur>>10)
		}
		return "is the memory mapped?"
	default:
		return ""
	}
}
