package mpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Server is one MP cache server. Make it with [New], start it with
// [Server.Run]; Run returns when its context ends and everything is released.
type Server struct {
	opt    Options
	log    *slog.Logger
	start  time.Time
	arena  *l1cache.Arena
	cache  *l1cache.Cache
	hasher *hash.Hasher
	met    *metrics.Metrics
	ops    [wire.NumOps]*metrics.Op // counters of each operation; 0 is whatever is not served

	sock      *transport
	lanes     *pool
	clients   *clients
	instances *instances
	sessions  *sessions
	peers     p2pTasks
	forms     kvlayout.Forms
	// headsFirst: some engine's objects are not in the order that workers which
	// copy themselves know.
	headsFirst atomic.Bool
	dev        device.Device // of the workers whose KV the server copies
	devName    string
	gpus       *gpus
	inventory  *inventory
	http       *httpServer
	health     health
	retiring   joiner // closes streams and mappings of ended instances
	tasks      taskGroup

	// What the HTTP surface tells and keeps.
	quotas         quotas
	warm           prefetches
	failures       failureLog
	probes, sweeps periodic
	hashLog        *hashLog // nil without --lookup-hash-log-dir
	events         *kvEvents

	// hurry ends when copies on their way at the stop are to be called off,
	// abandon when the stop waits for them no longer.
	hurry, abandon         context.Context
	hurryUp, abandonCopies context.CancelFunc

	// draining: the server stops; new requests hear their failure.
	draining  atomic.Bool
	refusedAt atomic.Int64 // when a refused connection was told of, unix ns
	directly  atomic.Int64 // stores whose bytes were read straight into the pool
	closeOnce sync.Once
	closeErr  error
}

// New checks o, binds both sockets and maps the pool; its pages are populated
// in the background. The server answers once [Server.Run] is called. Whoever
// does not call Run must call [Server.Close].
func New(o Options) (*Server, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o.setDefaults()
	s := &Server{opt: o, log: o.Logger, start: time.Now()}
	s.hurry, s.hurryUp = context.WithCancel(context.Background())
	s.abandon, s.abandonCopies = context.WithCancel(context.Background())
	var err error
	if s.hasher, err = hash.New(hash.Options{Algorithm: o.HashAlgorithm, ChunkSize: o.ChunkSize, CacheBytes: o.PromptCacheBytes, PythonHashSeed: o.PythonHashSeed}); err != nil {
		return nil, err
	}
	s.met = metrics.New(metrics.Options{InstanceID: o.InstanceID, Version: o.Version, Hide: o.DisableMetrics, SampleRate: o.sampleRate()})
	for op := range s.ops {
		if name := wire.Op(op).String(); table[op].handle != nil || op == 0 {
			s.ops[op] = s.met.Op(name)
		}
	}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if o.LookupHashLog.Dir != "" {
		if s.hashLog, err = newHashLog(o.LookupHashLog, o.ChunkSize, o.Logger); err != nil {
			return nil, err
		}
	}
	s.clients = newClients()
	s.events = newKVEvents(o.KVEventLogSize, o.ChunkSize, s.start.UnixNano(), func(c *client, out *outgoing) { s.send(c, out, false) })
	// Sockets first: a busy port is the commonest mistake and must be told
	// before gigabytes are mapped.
	if s.sock, err = newTransport(&o, socket{s}); err != nil {
		return nil, err
	}
	if o.HTTPPort >= 0 {
		if s.http, err = listenHTTP(s); err != nil {
			return nil, err
		}
	}
	name := SegmentName(o.L1.ShmName)
	s.arena, err = l1cache.OpenArena(l1cache.ArenaOptions{ShmName: name, SizeBytes: o.L1.SizeBytes, Logger: o.Logger.With("component", "l1")})
	if err != nil {
		err = fmt.Errorf("map the L1 pool of %d bytes: %w", o.L1.SizeBytes, err)
		return nil, err
	}
	observer, rate := s.observer()
	s.cache, err = l1cache.New(l1cache.Options{
		Arena: s.arena, AlignBytes: o.L1.AlignBytes,
		Evict: o.L1.EvictionPolicy != EvictNone, Policy: policies[o.L1.EvictionPolicy], TriggerWatermark: o.L1.TriggerWatermark, EvictionRatio: o.L1.EvictionRatio,
		WriteTTL: o.L1.WriteTTL, ReadTTL: o.L1.ReadTTL, Now: o.l1Now, Ticks: o.l1Ticks, SampleRate: rate,
		Logger: o.Logger.With("component", "l1"), Observer: observer,
	})
	if err != nil {
		return nil, err
	}
	if s.dev, s.devName = o.device, "fake"; s.dev == nil {
		s.dev, s.devName = device.NewCPU(device.CPUOptions{}), "cpu"
	}
	s.gpus = newGPUs(o.gpuDriver, s.arena, s.log, s.retiring.run)
	s.inventory = &inventory{read: o.gpuInventory}
	s.instances = newInstances(s.retire)
	s.sessions = newSessions(s.cache, o, s.tell)
	s.lanes = newPool(o.workers(), s.runLane)
	s.met.SetGauges(s.gauges)
	return s, nil
}

// sharesPool reports whether engine-driven clients copy through the shared
// segment; otherwise they send pickles.
func (s *Server) sharesPool() bool { return s.arena.ShmName() != "" }

// Addr is the endpoint of the request socket, as in "tcp://127.0.0.1:6555".
func (s *Server) Addr() string { return s.sock.endpoint }

// HTTPAddr is "host:port" of the HTTP surface, "" when there is none.
func (s *Server) HTTPAddr() string {
	if s.http == nil {
		return ""
	}
	return s.http.addr()
}

// Run serves until ctx ends, then drains within Options.DrainTimeout and
// releases everything. It returns nil after an orderly stop.
func (s *Server) Run(ctx context.Context) error {
	s.health.started(time.Now())
	s.tasks.run("request socket", s.serve)
	s.tasks.run("housekeeping", s.housekeeping)
	s.tasks.run("probe", s.probe)
	s.tasks.run("kv events", s.events.run)
	if s.hashLog != nil {
		s.tasks.run("lookup hash log", s.hashLog.run)
	}
	s.lanes.start()
	if s.http != nil {
		s.tasks.run("http", s.http.serve)
	}
	s.log.Info("ready", "addr", s.Addr(), "http", s.HTTPAddr(), "chunk_size", s.opt.ChunkSize,
		"l1_bytes", s.opt.L1.SizeBytes, "shm", s.arena.ShmName(), "dur", time.Since(s.start).Round(time.Microsecond))
	<-ctx.Done()
	begin := time.Now()
	s.draining.Store(true)
	s.log.Info("stopping", "deadline", s.opt.DrainTimeout)
	err := s.Close() //nolint:contextcheck // ctx has ended; the stop has a limit of its own
	s.log.Info("stopped", "dur", time.Since(begin).Round(time.Microsecond))
	return err
}

// Close stops the server and releases its memory, sockets and segment. It is
// what Run does at its end; calling it again does nothing.
func (s *Server) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.shutdown() })
	return s.closeErr
}

func (s *Server) shutdown() error {
	s.draining.Store(true)
	var errs []error
	ctx, cancel := context.WithTimeout(context.Background(), s.opt.DrainTimeout)
	defer cancel()
	if s.http != nil {
		errs = append(errs, s.http.shutdown(ctx))
	}
	idle := true
	if s.lanes != nil && !s.lanes.drain(ctx) {
		idle = false
		errs = append(errs, fmt.Errorf("requests still running after %s were abandoned", s.opt.DrainTimeout))
	}
	if !s.stopCopies(ctx) {
		idle = false
		errs = append(errs, fmt.Errorf("copies still running after %s were abandoned", s.opt.DrainTimeout))
	}
	if s.sessions != nil {
		s.sessions.close()
	}
	s.tasks.stop()
	if s.sock != nil {
		errs = append(errs, s.sock.close())
	}
	s.tasks.wait()
	if s.hashLog != nil {
		s.hashLog.close() // if nothing ran, nobody else does
	}
	if s.cache != nil {
		errs = append(errs, s.cache.Close())
	}
	if s.arena != nil {
		if idle {
			errs = append(errs, s.arena.Close())
		} else if name := s.arena.ShmName(); name != "" {
			// Somebody may still touch the pool: it stays mapped until the
			// process ends, but its name goes.
			errs = append(errs, os.Remove(filepath.Join("/dev/shm", name)))
		}
	}
	return errors.Join(errs...)
}

// stopCopies lets the copies on their way finish until ctx ends, and calls the
// rest off; their requests are answered. It reports whether nothing touches
// the pool any more.
func (s *Server) stopCopies(ctx context.Context) bool {
	defer s.hurryUp()
	defer s.abandonCopies()
	if s.instances == nil {
		return true
	}
	s.instances.close()
	done := s.retiring.wait(ctx)
	s.hurryUp()
	if err := s.dev.Close(); err != nil {
		s.log.Error("close the device", "component", "device", "err", err)
	}
	if !done {
		last, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		done = s.retiring.wait(last)
	}
	s.inventory.close()
	if err := s.gpus.close(); err != nil {
		s.log.Error("close the GPU driver", "component", "device", "err", err)
	}
	return done
}

// taskGroup runs the long-lived goroutines of a server and knows when one has
// ended that should not have.
type taskGroup struct {
	wg      sync.WaitGroup
	once    sync.Once
	stopped chan struct{}
	mu      sync.Mutex
	ended   string // guarded by mu: the first goroutine that ended before stop
}

func (g *taskGroup) done() chan struct{} {
	g.once.Do(func() { g.stopped = make(chan struct{}) })
	return g.stopped
}

// run starts fn, which must return soon after stop is closed.
func (g *taskGroup) run(name string, fn func(stop <-chan struct{})) {
	stop := g.done()
	g.wg.Go(func() {
		defer func() {
			select {
			case <-stop:
			default:
				g.mu.Lock()
				if g.ended == "" {
					g.ended = name
				}
				g.mu.Unlock()
			}
		}()
		fn(stop)
	})
}

// dead is the name of a goroutine that has ended too early, "" if none has.
func (g *taskGroup) dead() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}

func (g *taskGroup) stop() {
	select {
	case <-g.done():
	default:
		close(g.stopped)
	}
}

func (g *taskGroup) wait() { g.wg.Wait() }
