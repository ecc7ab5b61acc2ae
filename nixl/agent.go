package nixl

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// SyncMode says how NIXL guards an agent that several threads use.
type SyncMode int

const (
	// SyncDefault is SyncRW.
	SyncDefault SyncMode = iota
	// SyncRW is a readers-writer lock: transfers and notifications run side by
	// side, registration and metadata alone.
	SyncRW
	// SyncStrict is one mutex.
	SyncStrict
	// SyncNone is no lock: the program must not use the agent from two
	// goroutines at once, and neither Wait nor Notifications may be used, which
	// have goroutines of their own.
	SyncNone
)

// native is NIXL's number of the mode (nixl_thread_sync_t).
func (m SyncMode) native() int32 {
	switch m {
	case SyncNone:
		return 0
	case SyncStrict:
		return 1
	default:
		return 2
	}
}

// Config describes an agent. The zero value works.
type Config struct {
	// Name is the agent's address in everything; it must be unique among all
	// agents that ever meet, and new at each start: peers keep connections by
	// name. Default: a random UUID.
	Name string
	// NoProgressThread leaves progress to calls into the agent. With the
	// thread, which is the default, a passive target answers, and
	// notifications arrive, while the program does something else.
	NoProgressThread bool
	// ProgressDelay is the pause of the progress thread between two looks.
	// Default 0: it polls without pause where the plugin does.
	ProgressDelay time.Duration
	// Sync guards the agent. Default: SyncRW.
	Sync SyncMode
	// Listen opens NIXL's metadata listener. Default: off. See [Listen].
	Listen *Listen
	// Telemetry makes [Transfer.Telemetry] answer.
	Telemetry bool
	// Spin is how long Wait polls without a pause before it sleeps; it holds
	// an OS thread for that time. Default 50 µs, at most 1 ms, negative: none.
	Spin time.Duration
	// PollPause is the longest pause between two looks at the transfers that
	// are waited for or being cancelled. Default 1 ms.
	PollPause time.Duration
	// ReapTimeout is how long Close waits for running transfers to end before
	// it destroys the agent under them; see [Agent.Close]. Default 30 s.
	ReapTimeout time.Duration
	// NotifQueue is how many notifications [Agent.Notifications] holds ready.
	// When they are not taken no more are asked of the library, which keeps
	// them. Default 1024.
	NotifQueue int
	// NotifPause is the longest pause between two looks for notifications.
	// Default 2 ms; the pause is 100 µs while they keep coming.
	NotifPause time.Duration
	// Logger hears of what no caller can be told: peers lost, transfers that
	// do not end. Default: nothing is logged.
	Logger *slog.Logger
}

// Listen configures NIXL's own metadata listener: TCP on all IPv4 addresses,
// without authentication. Anybody who reaches the port can load metadata into
// the agent and make it forget peers. Exchange blobs over a channel of your own
// where you can ([Agent.Metadata], [Agent.AddRemote]).
type Listen struct {
	// Port to listen on. 0 chooses a free one; see [Agent.ListenPort].
	Port uint16
	// Pause between two looks. Default 10 ms.
	Pause time.Duration
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = newUUID()
	}
	switch {
	case c.Spin == 0:
		c.Spin = 50 * time.Microsecond
	case c.Spin < 0:
		c.Spin = 0
	}
	c.Spin = min(c.Spin, time.Millisecond)
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.PollPause, time.Millisecond)
	def(&c.ReapTimeout, 30*time.Second)
	def(&c.NotifPause, 2*time.Millisecond)
	if c.NotifQueue <= 0 {
		c.NotifQueue = 1024
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Agent is one name in NIXL's world: backends, registered memory, known peers,
// and the transfers between them. All methods may be called from several
// goroutines.
type Agent struct {
	lib    *Library
	h      uintptr
	hot    capi.Hot
	cfg    Config
	port   uint16
	react  *reactor
	notifs notifier

	// life is held for reading during calls that need the agent alive, and for
	// writing while it is destroyed. Posting and polling do not take it: they
	// hold their transfer, and Close takes these first.
	life sync.RWMutex

	// spare holds an empty list of the library's for each side and memory type.
	spare [2][File + 1]atomic.Uintptr

	making sync.Mutex // one backend is made at a time; taken before life

	// metadata is a lock of one: loading and forgetting peers, one at a time.
	metadata chan struct{}

	// mu guards what follows, and the reference counts of registrations,
	// lists, views and peers. It is never held across a call into C.
	mu       sync.Mutex
	backends map[string]*Backend
	regs     map[*Registration]struct{}
	regions  map[regionKey]*regionSet
	lists    map[*DescList]struct{}
	views    map[*View]struct{}
	xfers    map[*Transfer]struct{}
	remotes  map[string]*Remote
	poisoned map[string]struct{}
	loading  string // name that AddRemote is loading

	leak      *leak
	closeOnce sync.Once
	closeErr  error
	closing   chan struct{} // closed when Close begins
}

// NewAgent makes an agent. With Config.Listen it fails when the port is taken.
func NewAgent(lib *Library, cfg Config) (*Agent, error) {
	cfg = cfg.withDefaults()
	c := capi.AgentConfig{
		Progress: !cfg.NoProgressThread, Telemetry: cfg.Telemetry, Sync: cfg.Sync.native(),
		ProgressDelay: uint64(cfg.ProgressDelay / time.Microsecond), ListenDelay: 100000,
	}
	a := &Agent{
		lib: lib, cfg: cfg, metadata: make(chan struct{}, 1), closing: make(chan struct{}),
		backends: map[string]*Backend{}, regs: map[*Registration]struct{}{}, regions: map[regionKey]*regionSet{},
		lists: map[*DescList]struct{}{}, views: map[*View]struct{}{}, xfers: map[*Transfer]struct{}{}, remotes: map[string]*Remote{}, poisoned: map[string]struct{}{},
	}
	if len(cfg.Name) > 255 || hasNUL(cfg.Name) {
		return nil, &Error{Op: "create agent", Cause: ErrInvalidParam, Detail: "the name is longer than 255 bytes or holds a NUL"}
	}
	if err := a.create(c); err != nil {
		return nil, err
	}
	a.hot = lib.c.Hot(a.h)
	a.react = newReactor(a)
	a.leak = &leak{name: cfg.Name, log: cfg.Logger}
	runtime.AddCleanup(a, (*leak).report, a.leak)
	return a, nil
}

// leak tells of an agent that was dropped without Close. It frees nothing: the
// order in which things end matters, and the collector knows none.
type leak struct {
	name   string
	log    *slog.Logger
	closed atomic.Bool
}

func (l *leak) report() {
	if !l.closed.Load() {
		l.log.Error("nixl agent was dropped without Close: its memory, threads and connections stay", "agent", l.name)
	}
}

// create makes the agent in the library; with a listener on a port of our
// choosing it tries again when somebody else was faster.
func (a *Agent) create(c capi.AgentConfig) error {
	l := a.cfg.Listen
	if l == nil {
		h, err := a.lib.c.CreateAgent(a.cfg.Name, c)
		if err != nil {
			return a.fail("create agent").from(err)
		}
		a.h = h
		return nil
	}
	pause := l.Pause
	if pause <= 0 {
		pause = 10 * time.Millisecond
	}
	c.Listen, c.ListenDelay = true, uint64(max(pause/time.Microsecond, 1))
	var last error
	for range 5 {
		port, err := freePort(l.Port)
		if err != nil {
			return &Error{Op: "create agent", Agent: a.cfg.Name, Cause: err, Detail: "metadata listener", Remedy: "choose another Listen.Port, or 0 for a free one"}
		}
		c.Port = port
		h, cerr := a.lib.c.CreateAgent(a.cfg.Name, c)
		if cerr == nil {
			a.h, a.port = h, port
			return nil
		}
		last = a.fail("create agent").from(cerr)
		if l.Port != 0 {
			break
		}
	}
	return last
}

// Name is the agent's name.
func (a *Agent) Name() string { return a.cfg.Name }

// Library is the library that the agent lives in.
func (a *Agent) Library() *Library { return a.lib }

// ListenPort is the port of the metadata listener, 0 without one.
func (a *Agent) ListenPort() uint16 { return a.port }

// fail starts an error of this agent.
func (a *Agent) fail(op string) *Error { return &Error{Op: op, Agent: a.cfg.Name} }

// enter holds the agent alive for one call; the caller calls leave.
func (a *Agent) enter(op string) error {
	a.life.RLock()
	if a.h == 0 || a.isClosing() {
		a.life.RUnlock()
		e := a.fail(op)
		e.Cause, e.Detail = ErrClosed, "the agent was closed"
		return e
	}
	return nil
}

func (a *Agent) leave() { a.life.RUnlock() }

func (a *Agent) isClosing() bool {
	select {
	case <-a.closing:
		return true
	default:
		return false
	}
}

// Stats are counts of what an agent holds now.
type Stats struct {
	Backends, Registrations, Lists, Transfers, Remotes int
	// Running transfers have been posted and not ended; Abandoned ones are
	// those of them that were closed, cancelled or lost their peer, and whose
	// memory is pinned until they end.
	Running, Abandoned int
	// NotifsQueued wait in the stream of Notifications.
	NotifsQueued int
}

// Stats counts. It looks at every transfer.
func (a *Agent) Stats() Stats {
	a.mu.Lock()
	s := Stats{
		Backends: len(a.backends), Registrations: len(a.regs), Lists: len(a.lists), Transfers: len(a.xfers), Remotes: len(a.remotes),
	}
	all := a.transfers(nil)
	a.mu.Unlock()
	s.NotifsQueued = a.notifs.queued()
	for _, t := range all {
		t.mu.Lock()
		if t.state == xferRunning {
			s.Running++
			if t.abandoned != nil {
				s.Abandoned++
			}
		}
		t.mu.Unlock()
	}
	return s
}

// transfers lists those to one peer, or all; it needs mu.
func (a *Agent) transfers(r *Remote) []*Transfer {
	all := make([]*Transfer, 0, len(a.xfers))
	for t := range a.xfers {
		if r == nil || t.remote == r {
			all = append(all, t)
		}
	}
	return all
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func hasNUL(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return true
		}
	}
	return false
}
