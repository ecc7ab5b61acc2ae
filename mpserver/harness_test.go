package mpserver

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

const (
	testChunk  = 16 // tokens
	testModel  = "test/model"
	replyLimit = 5 * time.Second
	// An object of the test worker: 2 planes, 1 layer, 16 slots, 64 bytes.
	testObject = 2 * 1 * testChunk * 64
)

// startServer runs a server on ports of the kernel's choice until the test ends.
func startServer(t *testing.T, change func(*Options)) *Server {
	t.Helper()
	o := Options{HTTPPort: -1, ChunkSize: testChunk, L1: L1Options{SizeBytes: 4 << 20}, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	<-s.arena.Grown()
	return s
}

// peer is a client: one DEALER.
type peer struct {
	t    *testing.T
	ctx  *zmq.Context
	sock *zmq.Socket
	uid  int64
}

func connect(t *testing.T, s *Server) *peer {
	t.Helper()
	ctx, err := zmq.NewContext()
	require.NoError(t, err)
	sock, err := ctx.NewSocket(zmq.DEALER)
	require.NoError(t, err)
	require.NoError(t, sock.SetLinger(0))
	require.NoError(t, sock.SetRcvtimeo(replyLimit))
	require.NoError(t, sock.Connect(s.Addr()))
	p := &peer{t: t, ctx: ctx, sock: sock}
	t.Cleanup(p.close)
	return p
}

func (p *peer) close() {
	if p.sock == nil {
		return
	}
	require.NoError(p.t, p.sock.Close())
	require.NoError(p.t, p.ctx.Term())
	p.sock = nil
}

// send sends a request and returns its uid frame.
func (p *peer) send(op []byte, payloads ...[]byte) []byte {
	p.t.Helper()
	p.uid++
	uid := wire.AppendInt(nil, p.uid)
	parts := []any{uid, op}
	for _, x := range payloads {
		parts = append(parts, x)
	}
	_, err := p.sock.SendMessage(parts...)
	require.NoError(p.t, err)
	return uid
}

func (p *peer) recv() [][]byte {
	p.t.Helper()
	frames, err := p.sock.RecvMessageBytes(0)
	require.NoError(p.t, err, "no reply")
	return frames
}

// silent fails when a reply arrives within d.
func (p *peer) silent(d time.Duration) {
	p.t.Helper()
	require.NoError(p.t, p.sock.SetRcvtimeo(d))
	frames, err := p.sock.RecvMessageBytes(0)
	require.Error(p.t, err, "unexpected reply %x", frames)
	require.NoError(p.t, p.sock.SetRcvtimeo(replyLimit))
}

// call sends a request and returns its reply: op frame and, if any, value.
func (p *peer) call(op wire.Op, payloads ...[]byte) (value []byte, refused bool) {
	p.t.Helper()
	opFrame := wire.AppendOp(nil, op)
	uid := p.send(opFrame, payloads...)
	frames := p.recv()
	require.GreaterOrEqual(p.t, len(frames), 2)
	require.Equal(p.t, uid, frames[0], "uid of the reply")
	if string(frames[1]) != string(opFrame) {
		require.Len(p.t, frames, 2, "a refusal has two frames")
		return nil, true
	}
	if len(frames) == 2 {
		return nil, false
	}
	require.Len(p.t, frames, 3)
	return frames[2], false
}

func (p *peer) boolean(op wire.Op, payloads ...[]byte) bool {
	p.t.Helper()
	v, refused := p.call(op, payloads...)
	require.False(p.t, refused)
	b, err := wire.DecodeBool(v)
	require.NoError(p.t, err)
	return b
}

func (p *peer) none(op wire.Op, payloads ...[]byte) {
	p.t.Helper()
	v, refused := p.call(op, payloads...)
	require.False(p.t, refused)
	require.Nil(p.t, v)
}

func intFrame(v int64) []byte { return wire.AppendInt(nil, v) }

func strFrame(s string) []byte { return wire.AppendString(nil, s) }

func boolFrame(b bool) []byte { return wire.AppendBool(nil, b) }

// prompt makes n tokens that differ between seeds from the first one on.
func prompt(seed uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]uint32, n)
	for i := range out {
		out[i] = r.Uint32() % 150000
	}
	return out
}

// keyOf is a key of the whole prompt for worker 0 of 1.
func keyOf(id string, tokens []uint32) wire.Key {
	return wire.Key{Model: testModel, WorldSize: 1, HasWorker: true, Tokens: wire.AppendTokens(nil, tokens), TokenCount: len(tokens), End: len(tokens) / testChunk * testChunk, RequestID: id, NumKVReaders: 1}
}

func keyFrame(k wire.Key) []byte { return wire.AppendKey(nil, &k) }

// scheduler is k as a scheduler sends it: for all ranks.
func scheduler(k wire.Key) wire.Key {
	k.HasWorker, k.WorkerID = false, 0
	return k
}

// register registers an engine-driven worker and returns the pool it was told of.
func (p *peer) register(instance int64) (shm string) {
	p.t.Helper()
	c := wire.EngineDrivenContext{InstanceID: instance, Model: testModel, WorldSize: 1, BlockSize: testChunk, NumLayers: 1, HiddenDim: 64, DType: "uint8"}
	v, refused := p.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &c))
	require.False(p.t, refused)
	shm, _, err := wire.DecodeEngineDrivenReply(v)
	require.NoError(p.t, err)
	return shm
}

func (p *peer) prepareStore(k wire.Key, instance int64) *wire.PrepareStoreReply {
	p.t.Helper()
	v, _ := p.call(wire.OpPrepareStore, keyFrame(k), intFrame(instance))
	out, err := wire.DecodePrepareStore(v)
	require.NoError(p.t, err)
	return out
}

func (p *peer) commitStore(k wire.Key, instance int64) bool {
	p.t.Helper()
	return p.boolean(wire.OpCommitStore, keyFrame(k), intFrame(instance), wire.AppendBytes(nil, nil))
}

func (p *peer) prepareRetrieve(k wire.Key, instance int64) *wire.PrepareRetrieveReply {
	p.t.Helper()
	v, _ := p.call(wire.OpPrepareRetrieve, keyFrame(k), intFrame(instance))
	out, err := wire.DecodePrepareRetrieve(v)
	require.NoError(p.t, err)
	return out
}

func (p *peer) commitRetrieve(k wire.Key, instance int64) bool {
	p.t.Helper()
	return p.boolean(wire.OpCommitRetrieve, keyFrame(k), intFrame(instance))
}

// lookup is LOOKUP and QUERY until the answer is a number.
func (p *peer) lookup(k wire.Key) int {
	p.t.Helper()
	p.none(wire.OpLookup, keyFrame(scheduler(k)), intFrame(1))
	return p.query(k.RequestID)
}

func (p *peer) query(id string) int {
	p.t.Helper()
	for end := time.Now().Add(replyLimit); time.Now().Before(end); {
		v, refused := p.call(wire.OpQueryPrefetchStatus, strFrame(id))
		require.False(p.t, refused)
		if v == nil {
			continue
		}
		n, err := wire.DecodeInt(v)
		require.NoError(p.t, err)
		return int(n)
	}
	p.t.Fatal("the lookup never finished")
	return 0
}

func (p *peer) end(id string) {
	p.t.Helper()
	p.none(wire.OpEndSession, strFrame(id))
}

// pattern is what a store writes into a slot: a function of the prompt's
// first token and the chunk.
func pattern(first uint32, chunk int) []byte {
	out := make([]byte, testObject)
	for i := 0; i < len(out); i += 8 {
		binary.LittleEndian.PutUint64(out[i:], uint64(first)<<20|uint64(chunk)<<12|uint64(i))
	}
	return out
}

// store puts the whole prompt of k into the pool through its slots, as a
// worker that shares it would.
func (p *peer) store(s *Server, k wire.Key, instance int64, tokens []uint32) {
	p.t.Helper()
	r := p.prepareStore(k, instance)
	require.True(p.t, r.Present)
	for i, sl := range r.Slots {
		copy(s.arena.Bytes()[sl.Offset:sl.Offset+sl.Length], pattern(tokens[0], k.Start/testChunk+r.ChunkIndices[i]))
	}
	if len(r.Slots) > 0 {
		require.True(p.t, p.commitStore(k, instance))
	}
}

// requirePattern checks the slots of a retrieve against what store wrote.
func requirePattern(t *testing.T, s *Server, r *wire.PrepareRetrieveReply, first uint32) {
	t.Helper()
	require.True(t, r.Success)
	for i, sl := range r.Slots {
		require.Equal(t, pattern(first, i), s.arena.Bytes()[sl.Offset:sl.Offset+sl.Length], "chunk %d", i)
	}
}
