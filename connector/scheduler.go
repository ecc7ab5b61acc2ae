package connector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// SchedulerOptions configures a [Scheduler]. Model and BlockTokens are required.
type SchedulerOptions struct {
	// Model as the engine names it.
	Model string
	// Config of the connector. Its zero value means [DefaultConfig].
	Config Config
	// Parallel layout of the engine. Its number of servers is that of Config.
	Parallel Parallel
	// BlockTokens is the tokens of a block in each group of the engine's
	// blocks; one entry for an ordinary model.
	BlockTokens []int
	// Instance is what REPORT_BLOCK_ALLOCATION carries. Default: the process id.
	Instance int64
	// Client options; the timeout is Config's.
	Client Options
	// Logger: default discards.
	Logger *slog.Logger
}

// Scheduler is the part of an engine's scheduler that knows the servers: what
// to load, what to store, and what to forget. It belongs to the goroutine that
// schedules; only [Scheduler.Healthy] and [Scheduler.Stats] may be called from
// others. Nothing waits for a server but [NewScheduler], Await and Reset.
type Scheduler struct {
	cfg         Config
	model       string
	worldSize   int
	readers     int
	tpArgument  int
	blockTokens []int
	span        int // least common multiple of blockTokens
	chunk       int
	instance    int64
	servers     []*serverLink
	trackers    map[string]*tracker
	log         *slog.Logger
	stats       schedulerStats
}

type serverLink struct {
	client *Client
	beat   *heartbeat
}

// SchedulerStats counts since the start.
type SchedulerStats struct {
	// Lookups that were answered, and the time from asking to knowing, summed.
	Lookups       int64
	LookupSeconds float64
	// HitTokens and AskedTokens of those lookups.
	HitTokens, AskedTokens int64
	// FailedLoads are requests computed because their load failed.
	FailedLoads int64
}

type schedulerStats struct {
	lookups, nanos, hit, asked, failed atomic.Int64
}

// NewScheduler connects to all servers, asks each for its chunk size, and
// checks that they fit each other and the engine. It waits for at most
// Config.Timeout; the error is an [ErrUnreachable] or an [ErrConfig].
func NewScheduler(ctx context.Context, o SchedulerOptions) (*Scheduler, error) {
	if len(o.Config.Servers) == 0 {
		o.Config = DefaultConfig()
	}
	o.Parallel.Servers = len(o.Config.Servers)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Client.Logger == nil {
		o.Client.Logger = o.Logger
	}
	o.Client.Timeout = o.Config.Timeout
	if err := errors.Join(o.Parallel.Check(), wire.CheckModel(o.Model)); err != nil {
		return nil, err
	}
	if len(o.BlockTokens) == 0 {
		return nil, fmt.Errorf("%w: BlockTokens is empty: give the block size of each group", ErrConfig)
	}
	if o.Instance == 0 {
		o.Instance = int64(os.Getpid())
	}
	s := &Scheduler{
		cfg: o.Config, model: o.Parallel.KeyModel(o.Model), worldSize: o.Parallel.KVWorldSize(), readers: o.Parallel.Readers(),
		tpArgument: o.Parallel.tpArgument(), blockTokens: o.BlockTokens, span: 1, instance: o.Instance,
		trackers: make(map[string]*tracker), log: o.Logger,
	}
	if err := s.connect(ctx, o.Client); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for _, n := range o.BlockTokens {
		if n < 1 || s.chunk%n != 0 {
			return nil, errors.Join(fmt.Errorf("%w: the server's chunk of %d tokens is no multiple of the engine's block of %d: start it with another --chunk-size", ErrConfig, s.chunk, n), s.Close())
		}
		s.span = lcm(s.span, n)
	}
	return s, nil
}

func (s *Scheduler) connect(ctx context.Context, o Options) error {
	for _, url := range s.cfg.Servers {
		c, err := Dial(url, o)
		if err != nil {
			return err
		}
		s.servers = append(s.servers, &serverLink{c, newHeartbeat(c, s.cfg.HeartbeatInterval, s.log)})
		n, err := c.ChunkSize(ctx)
		if err != nil {
			return unreachable(url, s.cfg.Timeout, err)
		}
		if s.chunk != 0 && n != s.chunk {
			return fmt.Errorf("%w: %s has chunks of %d tokens, %s of %d: start them with the same --chunk-size", ErrConfig, url, n, s.cfg.Servers[0], s.chunk)
		}
		s.chunk = n
	}
	return nil
}

func unreachable(url string, timeout time.Duration, err error) error {
	return fmt.Errorf("%w at '%s' within %.1fs: is it running, and is lmcache.mp.host/port right? %w", ErrUnreachable, url, timeout.Seconds(), err)
}

func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// ChunkSize is the tokens in a chunk.
func (s *Scheduler) ChunkSize() int { return s.chunk }

// Healthy says whether all servers answer. While one does not, lookups count
// nothing and nothing is sent but pings.
func (s *Scheduler) Healthy() bool {
	for _, sv := range s.servers {
		if !sv.beat.healthy.Load() {
			return false
		}
	}
	return true
}

// Stats of now.
func (s *Scheduler) Stats() SchedulerStats {
	return SchedulerStats{
		Lookups: s.stats.lookups.Load(), LookupSeconds: time.Duration(s.stats.nanos.Load()).Seconds(),
		HitTokens: s.stats.hit.Load(), AskedTokens: s.stats.asked.Load(), FailedLoads: s.stats.failed.Load(),
	}
}

// Close ends the connections. Requests that were not finished are not told to
// the servers, which find out by themselves.
func (s *Scheduler) Close() error {
	var errs []error
	for _, sv := range s.servers {
		sv.beat.close()
		errs = append(errs, sv.client.Close())
	}
	return errors.Join(errs...)
}

// track returns the tracker of a request, a new one if there is none.
func (s *Scheduler) track(r *Request) *tracker {
	t := s.trackers[r.ID]
	if t == nil {
		t = &tracker{req: r}
		p, err := parseParams(r.Params)
		if err != nil {
			s.log.Warn("kv_transfer_params are not usable and were left out", "component", "mq", "request_id", r.ID, "err", err)
			p = params{maxOffload: -1}
		}
		t.params = p
		s.trackers[r.ID] = t
	}
	t.req = r
	return t
}

// Enqueued may be called when a request enters the waiting queue: with
// lmcache.mp.eager_prefetch its lookup begins then.
func (s *Scheduler) Enqueued(r *Request) {
	if !s.cfg.EagerPrefetch {
		return
	}
	if t := s.track(r); t.state == prefetching && t.lookup == nil {
		s.beginLookup(t)
	}
}

// Match says how many tokens behind the first computed ones of a request can be
// loaded (get_num_new_matched_tokens of vLLM). It is called for a waiting
// request whose ComputedTokens is 0; computed is what the engine has in its own
// prefix cache. ready is false while the servers have not answered: ask again at
// the next step. A load is always asynchronous: the request waits until every
// worker names it in [Progress].Received.
func (s *Scheduler) Match(r *Request, computed int) (tokens int, ready bool) {
	t := s.trackers[r.ID]
	if t != nil && r.Preempted && t.state != prefetching {
		delete(s.trackers, r.ID)
		t = nil
	}
	if t == nil {
		t = s.track(r)
	}
	t.req = r
	switch {
	case t.state == bypass:
		return 0, true
	case t.state == stateReady && r.ComputedTokens == 0 && t.hit > 0:
		s.log.Warn("a load failed: the request is computed", "component", "mq", "request_id", r.ID)
		s.stats.failed.Add(1)
		t.bypassLoad()
		return 0, true
	case t.state != prefetching:
		return 0, true
	}
	if t.lookup == nil {
		s.beginLookup(t)
	}
	if !s.cfg.NonblockingLookup {
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
		_ = s.Await(ctx, r) // poll below tells what came of it
		cancel()
	}
	counted := t.lookup.done
	if !s.poll(t.lookup) {
		return 0, false
	}
	l := t.lookup
	if !counted {
		s.stats.lookups.Add(1)
		s.stats.nanos.Add(int64(l.end.Sub(l.begin)))
		s.stats.hit.Add(int64(l.chunks * s.chunk))
		s.stats.asked.Add(int64(t.count))
	}
	hit := l.chunks * s.chunk
	t.localHit = computed / s.span * s.span
	t.hit, t.stored = hit, hit
	need := max(0, hit-computed)
	if need > 0 && hit == len(r.Tokens) {
		need-- // the last token is computed for its logits
	}
	return need, true
}

// Allocated tells which blocks a request has now, all of them in order, one
// list for each group, and how many external tokens the engine will take from a
// load (update_state_after_alloc of vLLM): what Match said, or 0 when another
// connector loads them or nobody does.
func (s *Scheduler) Allocated(r *Request, blocks [][]int64, external int) {
	t := s.track(r)
	t.setBlocks(blocks)
	if t.state == bypass {
		t.state = stateReady
		return
	}
	if t.state != prefetching {
		return
	}
	load := external > 0 && t.hit > t.localHit
	t.state = stateReady
	if load {
		t.state = waitingForLoad
	}
	if l := t.lookup; l != nil && !l.done {
		s.giveUp(l) // the engine did not wait for the answer
	}
	t.lookup = nil
	if t.hit > 0 {
		if load {
			s.freeAll(t, 0, t.localHit)
		} else {
			s.freeAll(t, 0, t.hit)
		}
	}
}

// Finish forgets a request that has ended, or was aborted (request_finished of
// vLLM). What a lookup holds for it and no load will use is freed first.
func (s *Scheduler) Finish(r *Request) Finished {
	t := s.trackers[r.ID]
	delete(s.trackers, r.ID)
	f := Finished{KeepBlocks: s.cfg.Role.Stores()}
	if t != nil {
		t.req = r
		s.freeUnused(t)
		if t.wantStats {
			f.Cached = &CachedTokens{Local: t.localHit, LMCache: t.hit, External: max(0, t.hit-t.localHit)}
		}
	}
	if s.Healthy() {
		for _, sv := range s.servers {
			sv.client.EndSession(r.ID)
		}
	}
	return f
}

// freeUnused frees what a request holds that ends before its load began. The
// reference leaves that to the server's TTL of five minutes.
func (s *Scheduler) freeUnused(t *tracker) {
	switch {
	case t.state == waitingForLoad:
		s.freeAll(t, t.localHit/s.chunk*s.chunk, t.hit)
	case t.state == prefetching && t.lookup != nil && !t.lookup.done:
		s.giveUp(t.lookup)
	case t.state == prefetching && t.lookup != nil && t.lookup.chunks > 0:
		s.freeAll(t, 0, t.lookup.chunks*s.chunk)
	}
}

// Reset drops what the servers hold and nobody uses (reset_cache of vLLM).
func (s *Scheduler) Reset(ctx context.Context) error {
	var errs []error
	for _, sv := range s.servers {
		errs = append(errs, sv.client.Clear(ctx, false))
	}
	return errors.Join(errs...)
}
