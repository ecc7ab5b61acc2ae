package connector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// WorkerOptions configures a [Worker]. Model is required.
type WorkerOptions struct {
	// Model as the engine names it.
	Model string
	// Config of the connector. Its zero value means [DefaultConfig].
	Config Config
	// Parallel layout of the engine, and which rank this is.
	Parallel Parallel
	Rank     int
	// InstanceID names this worker for as long as the process lives. Default:
	// 63 random bits.
	InstanceID int64
	// Client options; the timeout is Config's.
	Client Options
	// Logger: default discards.
	Logger *slog.Logger
}

// Worker moves the blocks of one rank. Its methods belong to the goroutine that
// runs the model, and none but NewWorker, Register, Flush and Close waits for
// the server. Between a transfer's start and its end, as Poll tells it, the
// blocks named in it are read (a store) or written (a load).
type Worker struct {
	opts     WorkerOptions
	cfg      Config
	model    string
	world    int
	shard    int
	readers  int
	writes   bool
	instance int64
	client   *Client
	beat     *heartbeat
	log      *slog.Logger
	chunk    int
	features []string

	mover    mover // nil before Register
	caches   *Caches
	flights  []*flight
	storing  map[string]int      // stores in flight of each request
	finished map[string]struct{} // requests that ended, not yet in Sent
	stats    workerStats
}

// mover is a transfer mode.
type mover interface {
	// register makes the server know the worker, also again.
	register(ctx context.Context) error
	unregister(ctx context.Context) error
	// begin starts a transfer; it does not wait.
	begin(f *flight)
	// drain refuses more and waits until nothing of ours is being copied.
	drain()
	close() error
}

// flight is a transfer under way.
type flight struct {
	load bool
	tr   *Transfer
	key  wire.Key
	// call of a server-driven transfer, and the server's event once it was
	// answered.
	call  *Call
	event []byte
	// cancel and done of an engine-driven transfer; err is valid once done is
	// closed.
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	ended  bool
}

// WorkerStats counts since the start.
type WorkerStats struct {
	Loads, FailedLoads   int64
	Stores, FailedStores int64
	DroppedStores        int64
}

type workerStats struct {
	loads, failedLoads, stores, failedStores, dropped atomic.Int64
}

// Progress is what ended since the last Poll.
type Progress struct {
	// Sent are requests that have ended and whose stores are done: their blocks
	// may be reused. Each is named once.
	Sent []string
	// Received are requests whose load ended, well or not. Each load is named
	// once.
	Received []string
	// BadBlocks were to be written by loads that failed, where the engine has
	// one group of blocks.
	BadBlocks []int64
	// Failed are the requests of failed loads, where it has several.
	Failed []string
}

// NewWorker connects to this rank's server and asks for its chunk size and
// features. The error is an [ErrUnreachable] or an [ErrConfig].
func NewWorker(ctx context.Context, o WorkerOptions) (*Worker, error) {
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
	p := o.Parallel
	if err := errors.Join(p.Check(), wire.CheckModel(o.Model)); err != nil {
		return nil, err
	}
	if world := p.withDefaults().WorldSize; o.Rank < 0 || o.Rank >= world {
		return nil, fmt.Errorf("%w: rank %d of %d", ErrConfig, o.Rank, world)
	}
	if o.InstanceID == 0 {
		o.InstanceID = rand.Int64() //nolint:gosec // an identity, not a secret
	}
	url := o.Config.Servers[p.Server(o.Rank)]
	c, err := Dial(url, o.Client)
	if err != nil {
		return nil, err
	}
	w := &Worker{
		opts: o, cfg: o.Config, model: p.KeyModel(o.Model), world: p.KVWorldSize(), shard: p.KVWorkerID(o.Rank), readers: p.Readers(),
		writes: p.Writes(o.Rank) && o.Config.Role.Stores(), instance: o.InstanceID, client: c, log: o.Logger,
		storing: make(map[string]int), finished: make(map[string]struct{}),
	}
	w.beat = newHeartbeat(c, o.Config.HeartbeatInterval, o.Logger)
	w.beat.instance, w.beat.worker = w.instance, true
	if w.chunk, err = c.ChunkSize(ctx); err != nil {
		return nil, errors.Join(unreachable(url, o.Config.Timeout, err), w.Close(ctx))
	}
	if w.features, err = c.Experimental(ctx); err != nil {
		o.Logger.Warn("the server does not tell its features: none are used", "component", "mq", "url", url, "err", err)
	}
	return w, nil
}

// ChunkSize is the tokens in a chunk.
func (w *Worker) ChunkSize() int { return w.chunk }

// Features are the experimental modules of the server.
func (w *Worker) Features() []string { return w.features }

// InstanceID names this worker.
func (w *Worker) InstanceID() int64 { return w.instance }

// Healthy says whether the server answers.
func (w *Worker) Healthy() bool { return w.beat.healthy.Load() }

// Stats of now.
func (w *Worker) Stats() WorkerStats {
	return WorkerStats{
		Loads: w.stats.loads.Load(), FailedLoads: w.stats.failedLoads.Load(), Stores: w.stats.stores.Load(),
		FailedStores: w.stats.failedStores.Load(), DroppedStores: w.stats.dropped.Load(),
	}
}

// mode resolves [ModeAuto]: a server opens a GPU's memory, a processor copies
// its own.
func (w *Worker) mode(m Memory) TransferMode {
	if w.cfg.Mode != ModeAuto {
		return w.cfg.Mode
	}
	if m.Host() != nil {
		return ModeEngineDriven
	}
	return ModeLMCacheDriven
}

// Register tells the server of the engine's KV tensors, which must stay where
// they are until Close. It may be called once.
func (w *Worker) Register(ctx context.Context, c *Caches) error {
	if w.mover != nil {
		return fmt.Errorf("%w: Register was called before", ErrConfig)
	}
	var m mover
	var err error
	if w.mode(c.Memory) == ModeEngineDriven {
		m, err = newEngineDriven(w, c)
	} else {
		m, err = newServerDriven(w, c)
	}
	if err != nil {
		return err
	}
	w.beat.known = w.client.connections.Load()
	if err := m.register(ctx); err != nil {
		return errors.Join(fmt.Errorf("register instance %d: %w", w.instance, err), m.close())
	}
	w.mover, w.caches = m, c
	w.beat.recover = m.register
	w.log.Info("registered", "component", "mq", "instance_id", w.instance, "model", w.model, "worker_id", w.shard, "mode", w.mode(c.Memory))
	return nil
}

// key is this rank's form of a transfer's key.
func (w *Worker) key(t *Transfer) wire.Key {
	k := t.Key
	k.HasWorker, k.WorkerID = true, w.shard
	return k
}

// Load starts the loads of a step (start_load_kv of vLLM).
func (w *Worker) Load(loads []Transfer) {
	for i := range loads {
		w.begin(&loads[i], true)
	}
}

// Save starts the stores of a step, whose blocks the engine has filled, or will
// have by the event that [Memory].Record returns now (wait_for_save of vLLM).
func (w *Worker) Save(stores []Transfer) {
	if !w.writes {
		return
	}
	for i := range stores {
		w.begin(&stores[i], false)
	}
}

func (w *Worker) begin(t *Transfer, load bool) {
	f := &flight{load: load, tr: t, key: w.key(t)}
	if w.mover != nil {
		w.beat.start()
	}
	switch {
	case w.mover == nil:
		f.end(fmt.Errorf("%w: no KV cache is registered", ErrMode))
	case !w.Healthy():
		f.end(ErrUnhealthy)
		if !load {
			w.stats.dropped.Add(1)
			return
		}
	default:
		w.mover.begin(f)
	}
	w.flights = append(w.flights, f)
	if !load {
		w.storing[f.key.RequestID]++
	}
}

// end ends a flight that nothing runs for.
func (f *flight) end(err error) { f.ended, f.err = true, err }

// poll says whether the transfer is over; err is valid then.
func (f *flight) poll(m Memory) bool {
	if f.ended {
		return true
	}
	if f.done != nil {
		select {
		case <-f.done:
			f.ended = true
			return true
		default:
			return false
		}
	}
	if f.call != nil {
		if !f.call.Ready() {
			return false
		}
		event, err := TransferResult(f.call)
		f.call = nil
		if err != nil || len(event) == 0 {
			f.end(err)
			return true
		}
		f.event = event
	}
	ok, err := m.Complete(f.event)
	if err != nil {
		f.end(fmt.Errorf("%w: the server's event: %w", ErrFailed, err))
		return true
	}
	f.ended = ok
	return ok
}

// giveUp ends the wait for a server that is dead.
func (f *flight) giveUp() {
	if f.call != nil {
		f.call.Cancel(ErrUnhealthy)
	}
	if f.cancel != nil {
		f.cancel()
	}
}

// Poll tells what ended, given the requests that the engine finished since the
// last call (get_finished of vLLM).
func (w *Worker) Poll(finished []string) Progress {
	var p Progress
	healthy := w.Healthy()
	keep := w.flights[:0]
	for _, f := range w.flights {
		if !healthy {
			f.giveUp()
		}
		if w.caches != nil && !f.poll(w.caches.Memory) || w.caches == nil && !f.ended {
			keep = append(keep, f)
			continue
		}
		w.settle(f, &p)
	}
	clear(w.flights[len(keep):])
	w.flights = keep
	for _, id := range finished {
		w.finished[id] = struct{}{}
	}
	for id := range w.finished {
		if w.storing[id] == 0 {
			delete(w.finished, id)
			p.Sent = append(p.Sent, id)
		}
	}
	return p
}

// settle counts a flight that is over.
func (w *Worker) settle(f *flight, p *Progress) {
	id := f.key.RequestID
	if f.cancel != nil {
		f.cancel()
	}
	if f.err != nil {
		w.log.Warn("a transfer failed", "component", "mq", "request_id", id, "load", f.load, "start", f.key.Start, "end", f.key.End, "err", f.err)
	}
	if !f.load {
		if w.storing[id]--; w.storing[id] == 0 {
			delete(w.storing, id)
		}
		if f.err != nil {
			w.stats.failedStores.Add(1)
		} else {
			w.stats.stores.Add(1)
		}
		return
	}
	p.Received = append(p.Received, id)
	if f.err == nil {
		w.stats.loads.Add(1)
		return
	}
	w.stats.failedLoads.Add(1)
	if len(f.tr.Blocks) != 1 {
		p.Failed = append(p.Failed, id)
		return
	}
	// Blocks that were to be skipped whole hold what they held.
	ids := f.tr.Blocks[0]
	skip := 0
	if n := f.key.End - f.key.Start; n > 0 {
		skip = min(len(ids), f.tr.SkipTokens*len(ids)/n)
	}
	p.BadBlocks = append(p.BadBlocks, ids[skip:]...)
}

// Flush waits until all stores in flight are done, for at most Config.Timeout:
// after it the engine may overwrite blocks of preempted requests.
func (w *Worker) Flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	for _, f := range w.flights {
		if f.load || f.ended {
			continue
		}
		var done <-chan struct{} = f.done
		if f.call != nil {
			done = f.call.Done()
		}
		if done == nil {
			continue
		}
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("%w: stores in flight: %w", ErrTimeout, ctx.Err())
		}
	}
	return nil
}

// unregister takes leave. A server that cannot be reached finds out by the
// connection, or by its own reaper.
func (w *Worker) unregister(ctx context.Context) error {
	if !w.Healthy() || !w.client.Connected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(w.cfg.Timeout, max(time.Second, w.cfg.HeartbeatInterval)))
	defer cancel()
	err := w.mover.unregister(ctx)
	if errors.Is(err, ErrDisconnected) {
		return nil
	}
	return err
}

// Close gives up what is in flight, unregisters, and closes the connection; call
// Flush first to keep the stores. Nothing touches the engine's memory or the
// server's pool after it, unless the server is dead and a copy of its was under
// way.
func (w *Worker) Close(ctx context.Context) error {
	for _, f := range w.flights {
		f.giveUp()
	}
	w.beat.close()
	var err error
	if w.mover != nil {
		// The server may give slots to others once it has heard of our end.
		w.mover.drain()
		err = errors.Join(w.unregister(ctx), w.mover.close())
		w.mover = nil
	}
	return errors.Join(err, w.client.Close())
}
