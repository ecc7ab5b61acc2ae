package mpserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// failure is what the table of wire-protocol 3.1 demands of an operation.
type failure struct {
	refused bool
	value   []byte // nil: the ordinary empty reply
}

func failures() map[wire.Op]failure {
	no := failure{value: wire.AppendBool(nil, false)}
	zero := failure{value: wire.AppendInt(nil, 0)}
	refused, none := failure{refused: true}, failure{}
	store := failure{value: wire.AppendStoreReply(nil, nil, false)}
	m := map[wire.Op]failure{
		wire.OpPing: no, wire.OpCommitStore: no, wire.OpCommitRetrieve: no,
		wire.OpQueryPrefetchStatus: zero, wire.OpWaitPrefetchStatus: zero,
		wire.OpStore: store, wire.OpRetrieve: store,
		wire.OpPrepareStore:    {value: wire.AppendPrepareStore(nil, nil, nil, false)},
		wire.OpPrepareRetrieve: {value: wire.AppendPrepareRetrieve(nil, false, nil, nil, false)},
	}
	for _, op := range []wire.Op{wire.OpUnregisterKVCache, wire.OpUnregisterEngineDriven, wire.OpFreeLookupLocks, wire.OpEndSession, wire.OpReportBlockAllocation, wire.OpLookup, wire.OpP2PQueryLookupResults, wire.OpP2PUnlockObjects} {
		m[op] = none
	}
	for _, op := range []wire.Op{wire.OpNoop, wire.OpGetChunkSize, wire.OpGetExperimental, wire.OpClear, wire.OpRegisterKVCache, wire.OpRegisterEngineDriven} {
		m[op] = refused
	}
	return m
}

// Every operation has an answer for wrong counts and unreadable payloads, and
// it is the one that the real client understands.
func TestBadRequestsAreAnsweredInBand(t *testing.T) {
	s := startServer(t, nil)
	p := connect(t, s)
	want := failures()
	for op := wire.OpUnknown + 1; op < wire.NumOps; op++ {
		if op == wire.OpSubscribeKVEvents || op == wire.OpP2PLookupAndLock {
			continue // tests of their own
		}
		w, known := want[op]
		if !known {
			w = failure{refused: true} // not served
		}
		for _, n := range []int{op.Arity(), op.Arity() + 1, op.Arity() - 1} {
			if n < 0 || n == op.Arity() && n == 0 && known {
				continue
			}
			var payloads [][]byte
			for range n {
				payloads = append(payloads, []byte{0xc1})
			}
			v, refused := p.call(op, payloads...)
			require.Equal(t, w.refused, refused, "%s with %d bad payloads", op, n)
			require.Equal(t, w.value, v, "%s with %d bad payloads", op, n)
		}
	}
	p.p2pTask()
}

// p2pTask sends a p2p lookup that cannot be decoded: it gets a task whose
// query stays empty.
func (p *peer) p2pTask() {
	p.t.Helper()
	v, refused := p.call(wire.OpP2PLookupAndLock, []byte{0xc1}, []byte{0xc1})
	require.False(p.t, refused)
	got, refused := p.call(wire.OpP2PQueryLookupResults, v)
	require.False(p.t, refused)
	require.Nil(p.t, got, "its query stays empty")
}

// A peer gets one invalid address per key, once.
func TestPeersCountAMiss(t *testing.T) {
	p := connect(t, startServer(t, nil))
	keys := []wire.ObjectKey{{ChunkHash: make([]byte, 32), Model: "m", Rank: 1}, {ChunkHash: make([]byte, 32), Model: "m", Rank: 2}}
	task, _ := p.call(wire.OpP2PLookupAndLock, wire.AppendObjectKeys(nil, keys), wire.AppendGroupLayouts(nil, nil, nil))
	v, _ := p.call(wire.OpP2PQueryLookupResults, task)
	got, err := wire.DecodeAddresses(v)
	require.NoError(t, err)
	require.Len(t, got, 2)
	for _, a := range got {
		require.False(t, a.Valid())
	}
	v, _ = p.call(wire.OpP2PQueryLookupResults, task)
	require.Nil(t, v, "told once")
	p.none(wire.OpP2PUnlockObjects, wire.AppendObjectKeys(nil, keys))
}

func TestUIDAndOperationAreEchoedByteForByte(t *testing.T) {
	p := connect(t, startServer(t, nil))
	for _, op := range [][]byte{{24}, {0xcc, 24}, {0xcf, 0, 0, 0, 0, 0, 0, 0, 24}, strFrame("noop"), append([]byte{0xd9, 4}, "noop"...)} {
		for _, uid := range [][]byte{{}, {0xff, 0xc1}, []byte("anything")} {
			_, err := p.sock.SendMessage(uid, op)
			require.NoError(t, err)
			require.Equal(t, [][]byte{uid, op, wire.AppendString(nil, "OK")}, p.recv())
		}
	}
}

// Messages that nobody can answer are dropped, and the next request is served.
func TestGarbageIsDropped(t *testing.T) {
	s := startServer(t, nil)
	p := connect(t, s)
	r := rand.New(rand.NewPCG(7, 7))
	junk := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	_, err := p.sock.SendMessage("x")
	require.NoError(t, err)
	_, err = p.sock.SendMessage([]byte{1}, []byte{0xc1}, []byte{1})
	require.NoError(t, err)
	_, err = p.sock.SendMessage([]byte{1}, []byte{}, []byte("bogus"))
	require.NoError(t, err)
	_, err = p.sock.SendMessage([]byte{1}, []byte{}, []byte("ack"))
	require.NoError(t, err)
	p.silent(100 * time.Millisecond)
	sent := 0
	for range 3000 {
		parts := make([]any, 1+r.IntN(6))
		for i := range parts {
			parts[i] = junk(r.IntN(24))
		}
		if len(parts) > 1 && r.IntN(2) == 0 {
			parts[1] = wire.AppendInt(nil, int64(r.IntN(40)))
		}
		_, err := p.sock.SendMessage(parts...)
		require.NoError(t, err)
		sent++
	}
	q := connect(t, s)
	require.True(t, q.boolean(wire.OpPing, wire.AppendNil(nil)), "after %d messages of garbage", sent)
}

func TestPanickingHandlerIsAnsweredAndCounted(t *testing.T) {
	row := table[wire.OpPing]
	t.Cleanup(func() { table[wire.OpPing] = row }) // once the server has stopped
	table[wire.OpPing].handle = func(*Server, context.Context, *request) reply { panic("boom") }
	s := startServer(t, nil)
	p := connect(t, s)
	require.False(t, p.boolean(wire.OpPing, wire.AppendNil(nil)))
	v, _ := p.call(wire.OpNoop)
	require.NotNil(t, v, "the server goes on")
}

// A request that waited longer than its row allows is answered as failed,
// without running.
func TestDeadlineWhileQueued(t *testing.T) {
	s := startServer(t, nil)
	r := &request{client: &client{}, op: wire.OpPing, row: &table[wire.OpPing], received: time.Now().Add(-time.Hour), payloads: [][]byte{wire.AppendNil(nil)}}
	out := s.execute(r)
	require.Equal(t, "deadline", out.reason)
	require.Equal(t, wire.AppendBool(nil, false), out.value)
}

func TestFullLaneIsAnswered(t *testing.T) {
	release := make(chan struct{})
	row := table[wire.OpClear]
	t.Cleanup(func() { table[wire.OpClear] = row }) // once the server has stopped
	started := make(chan struct{}, 8)
	table[wire.OpClear].handle = func(*Server, context.Context, *request) reply {
		started <- struct{}{}
		<-release
		return empty
	}
	s := startServer(t, func(o *Options) { o.LaneDepth = 1; o.Workers = 1 })
	p := connect(t, s)
	op := wire.AppendOp(nil, wire.OpClear)
	p.send(op, boolFrame(false))
	testutil.Receive(t, "the first to run", started)
	p.send(op, boolFrame(false)) // waits
	third := p.send(op, boolFrame(false))
	require.Equal(t, [][]byte{third, {24}}, p.recv(), "refused at once, before the two that came earlier")
	// Another client is not held up by this one's lane, and the loop answers.
	q := connect(t, s)
	require.True(t, q.boolean(wire.OpPing, wire.AppendNil(nil)))
	close(release)
	for range 2 {
		require.Len(t, p.recv(), 2)
	}
}

// A subscription to events gets one batch that says "disabled", and its end
// only after the client has acknowledged it.
func TestSubscriptionWithoutAStream(t *testing.T) {
	for _, control := range []string{"ack", "cancel"} {
		p := connect(t, startServer(t, func(o *Options) { o.KVEventLogSize = -1 }))
		op := strFrame("subscribe_kv_events")
		uid := p.send(op, intFrame(1), strFrame("m"), intFrame(0), intFrame(10))
		frames := p.recv()
		require.Len(t, frames, 3)
		batch, err := wire.DecodeKVEventBatch(frames[2])
		require.NoError(t, err)
		require.False(t, batch.Enabled)
		require.Empty(t, batch.Events)
		p.silent(50 * time.Millisecond)
		_, err = p.sock.SendMessage(uid, []byte{}, control)
		require.NoError(t, err)
		require.Equal(t, [][]byte{uid, op}, p.recv())
	}
}

// An operation of the other transfer mode is answered as its failure, in band
// where it has one: a refused store would be raised in the engine's step.
func TestOperationsOfTheOtherTransferMode(t *testing.T) {
	want := failures()
	for mode, ops := range map[TransferMode][]wire.Op{
		TransferEngineDriven:  {wire.OpStore, wire.OpRetrieve, wire.OpRegisterKVCache, wire.OpUnregisterKVCache},
		TransferLMCacheDriven: {wire.OpPrepareStore, wire.OpCommitStore, wire.OpPrepareRetrieve, wire.OpCommitRetrieve, wire.OpRegisterEngineDriven, wire.OpUnregisterEngineDriven},
	} {
		t.Run(string(mode), func(t *testing.T) {
			p := connect(t, startServer(t, func(o *Options) { o.TransferMode = mode }))
			for _, op := range ops {
				var payloads [][]byte
				for range op.Arity() {
					payloads = append(payloads, intFrame(1))
				}
				v, refused := p.call(op, payloads...)
				require.Equal(t, want[op].refused, refused, "%s", op)
				require.Equal(t, want[op].value, v, "%s", op)
			}
		})
	}
}

// Requests of one client and class are answered in order, large ones that go
// to a lane before small ones behind them.
func TestOneClientsRequestsKeepTheirOrder(t *testing.T) {
	s := startServer(t, nil)
	p := connect(t, s)
	large := keyOf("large", prompt(1, 60000))
	for i := range 20 {
		k := large
		k.RequestID = fmt.Sprint("r", i)
		p.send(wire.AppendOp(nil, wire.OpLookup), keyFrame(scheduler(k)), intFrame(1))
		p.send(wire.AppendOp(nil, wire.OpQueryPrefetchStatus), strFrame(k.RequestID))
		p.send(wire.AppendOp(nil, wire.OpEndSession), strFrame(k.RequestID))
	}
	for i := range 60 {
		frames := p.recv()
		require.Equal(t, wire.AppendInt(nil, int64(i+1)), frames[0])
	}
	active, jobs := s.sessions.counts()
	require.Zero(t, active)
	require.Zero(t, jobs)
}

func TestDrainingAnswersFailures(t *testing.T) {
	s := startServer(t, nil)
	p := connect(t, s)
	require.True(t, p.boolean(wire.OpPing, wire.AppendNil(nil)))
	s.draining.Store(true)
	require.False(t, p.boolean(wire.OpPing, wire.AppendNil(nil)))
	ok, reason := s.Health()
	require.False(t, ok)
	require.Equal(t, "stopping", reason)
}

// The orderly stop answers what is parked before the socket goes.
func TestStopAnswersWhoWaits(t *testing.T) {
	s, err := New(Options{HTTPPort: -1, ChunkSize: testChunk, L1: L1Options{SizeBytes: 1 << 20}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	p := connect(t, s)
	require.True(t, p.boolean(wire.OpPing, wire.AppendNil(nil)))
	s.sessions.begin("a", nil, time.Now())
	uid := p.send(wire.AppendOp(nil, wire.OpWaitPrefetchStatus), strFrame("a"), wire.AppendFloat(nil, 60))
	require.True(t, p.boolean(wire.OpPing, wire.AppendNil(nil)), "parked")
	cancel()
	require.Equal(t, [][]byte{uid, wire.AppendOp(nil, wire.OpWaitPrefetchStatus), intFrame(0)}, p.recv())
	require.NoError(t, testutil.Receive(t, "the end of Run", done))
}
