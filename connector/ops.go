package connector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// The calls below are the operations of wire-protocol 5 that an engine makes.
// They wait until the reply is there or ctx ends; without a deadline in ctx,
// for at most [Options].Timeout. Errors are those of errors.go.

// none waits for a reply that is None.
func none(ctx context.Context, k *Call) error {
	_, present, err := k.Wait(ctx)
	if err == nil && present {
		return fmt.Errorf("%w: %v answered with a value", ErrReply, k.op)
	}
	return err
}

// value waits for a reply with a value and decodes it.
func value[T any](ctx context.Context, k *Call, decode func([]byte) (T, error)) (v T, err error) {
	frame, present, err := k.Wait(ctx)
	if err != nil {
		return v, err
	}
	if !present {
		return v, fmt.Errorf("%w: %v answered without a value", ErrReply, k.op)
	}
	if v, err = decode(frame); err != nil {
		return v, fmt.Errorf("%w: to %v: %w", ErrReply, k.op, err)
	}
	return v, nil
}

// ChunkSize asks for the tokens in a chunk.
func (c *Client) ChunkSize(ctx context.Context) (int, error) {
	n, err := value(ctx, c.Go(wire.OpGetChunkSize), wire.DecodeInt)
	if err == nil && (n < 1 || n > 1<<20) {
		return 0, fmt.Errorf("%w: a chunk size of %d tokens", ErrReply, n)
	}
	return int(n), err
}

// Experimental asks which experimental modules the server runs.
func (c *Client) Experimental(ctx context.Context) ([]string, error) {
	return value(ctx, c.Go(wire.OpGetExperimental), wire.DecodeStrings)
}

// Noop asks for a sign of life.
func (c *Client) Noop(ctx context.Context) error {
	s, err := value(ctx, c.Go(wire.OpNoop), wire.DecodeString)
	if err == nil && s != "OK" {
		return fmt.Errorf("%w: noop answered %q", ErrReply, s)
	}
	return err
}

// Ping says that a worker is alive; without an instance it is a scheduler's.
// False means that the worker has to register again.
func (c *Client) Ping(ctx context.Context, instance int64, hasInstance bool) (bool, error) {
	return value(ctx, c.goPing(instance, hasInstance), decodePing)
}

var decodePing = wire.DecodeBool

// errPingFalse is why a scheduler's heartbeat is not well after a false.
var errPingFalse = errors.New("the server answered the ping with false")

func (c *Client) goPing(instance int64, hasInstance bool) *Call {
	m := newMessage(wire.OpPing, 1)
	if hasInstance {
		m.int(instance)
	} else {
		m.frame(wire.AppendNil(nil))
	}
	return c.start(m)
}

// Clear drops everything that nobody holds; with force, all.
func (c *Client) Clear(ctx context.Context, force bool) error {
	return none(ctx, c.Go(wire.OpClear, wire.AppendBool(nil, force)))
}

// keyed begins a request whose first payload is a key.
func (c *Client) keyed(op wire.Op, k *wire.Key, payloads int) *message {
	m := newKeyMessage(op, payloads)
	m.key(k)
	return m
}

// GoLookup begins a LOOKUP; tpSize is informative.
func (c *Client) GoLookup(k *wire.Key, tpSize int) *Call {
	m := c.keyed(wire.OpLookup, k, 2)
	m.int(int64(tpSize))
	return c.start(m)
}

// Lookup asks how many chunks of a prompt are there; the answer comes through
// QueryPrefetch or WaitPrefetch under the key's request id, exactly once, and
// what it counts is held for this request.
func (c *Client) Lookup(ctx context.Context, k *wire.Key, tpSize int) error {
	return none(ctx, c.GoLookup(k, tpSize))
}

// hits decodes the reply to query and wait: done is false while a lookup runs.
func hits(ctx context.Context, k *Call) (chunks int, done bool, err error) {
	frame, present, err := k.Wait(ctx)
	if err != nil || !present {
		return 0, false, err
	}
	n, ok, err := wire.DecodeOptInt(frame)
	if err != nil || n < 0 {
		return 0, false, fmt.Errorf("%w: to %v: % x", ErrReply, k.op, clip(frame))
	}
	return int(n), ok, nil
}

// GoQueryPrefetch begins a QUERY_PREFETCH_STATUS.
func (c *Client) GoQueryPrefetch(requestID string) *Call {
	return c.Go(wire.OpQueryPrefetchStatus, wire.AppendString(nil, requestID))
}

// QueryPrefetch asks for the chunks that a lookup found; done is false while it
// runs.
func (c *Client) QueryPrefetch(ctx context.Context, requestID string) (chunks int, done bool, err error) {
	return hits(ctx, c.GoQueryPrefetch(requestID))
}

// WaitPrefetch is QueryPrefetch that lets the server wait for up to limit.
func (c *Client) WaitPrefetch(ctx context.Context, requestID string, limit time.Duration) (chunks int, done bool, err error) {
	return hits(ctx, c.Go(wire.OpWaitPrefetchStatus, wire.AppendString(nil, requestID), wire.AppendFloat(nil, limit.Seconds())))
}

// FreeLookupLocks gives back what a lookup holds of the whole chunks in the
// key's range. It waits for nothing.
func (c *Client) FreeLookupLocks(k *wire.Key, tpSize int) {
	m := c.keyed(wire.OpFreeLookupLocks, k, 2)
	m.int(int64(tpSize))
	c.start(m)
}

// EndSession ends what the server keeps of a request. It waits for nothing.
func (c *Client) EndSession(requestID string) {
	c.Post(wire.OpEndSession, wire.AppendString(nil, requestID))
}

// ReportBlockAllocation tells the server for its statistics which blocks the
// engine gave out. It waits for nothing. The instance is the scheduler's
// process id, as the reference sends it; no worker has it.
func (c *Client) ReportBlockAllocation(instance int64, model string, records []wire.BlockAllocationRecord) {
	c.Post(wire.OpReportBlockAllocation, wire.AppendInt(nil, instance), wire.AppendString(nil, model), wire.AppendBlockAllocationRecords(nil, records))
}

// Registration is the argument of REGISTER_KV_CACHE.
type Registration struct {
	InstanceID int64
	Tensors    []wire.DeviceWrapper
	Model      string
	WorldSize  int
	Engine     wire.EngineType
	Hints      wire.LayoutHints
	Groups     []wire.EngineGroupInfo
}

// RegisterKVCache registers a worker whose blocks the server copies.
func (c *Client) RegisterKVCache(ctx context.Context, r *Registration) error {
	return none(ctx, c.Go(wire.OpRegisterKVCache,
		wire.AppendInt(nil, r.InstanceID), wire.AppendDeviceWrappers(nil, r.Tensors), wire.AppendString(nil, r.Model),
		wire.AppendInt(nil, int64(r.WorldSize)), wire.AppendString(nil, string(r.Engine)), wire.AppendLayoutHints(nil, &r.Hints), wire.AppendEngineGroupInfos(nil, r.Groups)))
}

// UnregisterKVCache ends such a registration.
func (c *Client) UnregisterKVCache(ctx context.Context, instance int64) error {
	return none(ctx, c.Go(wire.OpUnregisterKVCache, wire.AppendInt(nil, instance)))
}

// Pool is the server's shared memory, as a registration hears of it. An empty
// name means that chunks travel as pickles.
type Pool struct {
	ShmName   string
	SizeBytes int64
}

// RegisterEngineDriven registers a worker that copies by itself.
func (c *Client) RegisterEngineDriven(ctx context.Context, e *wire.EngineDrivenContext) (Pool, error) {
	return value(ctx, c.Go(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, e)), func(b []byte) (Pool, error) {
		name, size, err := wire.DecodeEngineDrivenReply(b)
		return Pool{name, size}, err
	})
}

// UnregisterEngineDriven ends such a registration.
func (c *Client) UnregisterEngineDriven(ctx context.Context, instance int64) error {
	return none(ctx, c.Go(wire.OpUnregisterEngineDriven, wire.AppendInt(nil, instance)))
}

// GoStore begins a STORE of blocks, one list for each group; event is a handle
// that the server waits for before it reads them.
func (c *Client) GoStore(k *wire.Key, instance int64, blocks [][]int64, event []byte) *Call {
	m := c.keyed(wire.OpStore, k, 4)
	m.transfer(instance, blocks, event)
	return c.start(m)
}

// GoRetrieve begins a RETRIEVE into blocks, less whole blocks in the first skip
// tokens of the range.
func (c *Client) GoRetrieve(k *wire.Key, instance int64, blocks [][]int64, event []byte, skip int) *Call {
	m := c.keyed(wire.OpRetrieve, k, 5)
	m.transfer(instance, blocks, event)
	m.int(int64(skip))
	return c.start(m)
}

func (m *message) transfer(instance int64, blocks [][]int64, event []byte) {
	m.int(instance)
	n := 16 + len(blocks)*5
	for _, b := range blocks {
		n += 9 * len(b)
	}
	m.build(n, func(dst []byte) []byte { return wire.AppendBlockIDs(dst, blocks) })
	m.build(len(event)+5, func(dst []byte) []byte { return wire.AppendBytes(dst, event) })
}

// TransferResult reads the reply to a STORE or RETRIEVE that is there: the
// event that marks its completion, empty when it is complete, and an error
// unless the transfer has succeeded or will with the event.
func TransferResult(k *Call) (event []byte, err error) {
	frame, present, err := k.Result()
	if err != nil {
		return nil, err
	}
	if !present {
		return nil, fmt.Errorf("%w: %v answered without a value", ErrReply, k.op)
	}
	event, ok, err := wire.DecodeStoreReply(frame)
	if err != nil {
		return nil, fmt.Errorf("%w: to %v: %w", ErrReply, k.op, err)
	}
	if !ok {
		return nil, fmt.Errorf("%w: %v", ErrFailed, k.op)
	}
	return event, nil
}

// PrepareStore asks for slots of the chunks of the key's range that the server
// lacks.
func (c *Client) PrepareStore(ctx context.Context, k *wire.Key, instance int64) (*wire.PrepareStoreReply, error) {
	m := c.keyed(wire.OpPrepareStore, k, 2)
	m.int(instance)
	return value(ctx, c.start(m), wire.DecodePrepareStore)
}

// CommitStore ends a store: the slots are full. False means that nothing was
// stored.
func (c *Client) CommitStore(ctx context.Context, k *wire.Key, instance int64) (bool, error) {
	return c.commitStore(ctx, k, instance, 0, func(dst []byte) []byte { return dst })
}

// commitStore is CommitStore with size bytes of inline data that fill appends
// in place.
func (c *Client) commitStore(ctx context.Context, k *wire.Key, instance int64, size int, fill func(dst []byte) []byte) (bool, error) {
	m := c.keyed(wire.OpCommitStore, k, 3)
	m.int(instance)
	m.build(size+5, func(dst []byte) []byte { return fill(wire.AppendBytesHead(dst, size)) })
	return value(ctx, c.start(m), wire.DecodeBool)
}

// PrepareRetrieve asks for the chunks of the key's range, which a lookup of the
// same request must have found. Success is false for a miss.
func (c *Client) PrepareRetrieve(ctx context.Context, k *wire.Key, instance int64) (*wire.PrepareRetrieveReply, error) {
	m := c.keyed(wire.OpPrepareRetrieve, k, 2)
	m.int(instance)
	return value(ctx, c.start(m), wire.DecodePrepareRetrieve)
}

// CommitRetrieve ends a retrieve: nothing reads the slots any more.
func (c *Client) CommitRetrieve(ctx context.Context, k *wire.Key, instance int64) (bool, error) {
	m := c.keyed(wire.OpCommitRetrieve, k, 2)
	m.int(instance)
	return value(ctx, c.start(m), wire.DecodeBool)
}
