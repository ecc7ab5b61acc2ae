package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/signal"
	"sync"
	"syscall"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver/torchpickle"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// sink is a server that keeps nothing: a store is received and thrown away, a
// retrieve is answered with bytes that lie ready. It is what the pickle mode of
// a real one can be at best: the same client, protocol and transport, and no
// work on the bytes.
type sink struct {
	chunkTokens int

	mu      sync.Mutex
	span    []byte            // guarded by mu: where stores are read to, in turn; nil: into a buffer
	at      int               // guarded by mu: where the next one goes
	shape   []int64           // guarded by mu: of the registered worker's objects
	lookups map[string]int    // guarded by mu: chunks by request
	pickles map[int]wireReply // guarded by mu: replies to PREPARE_RETRIEVE by chunks
}

type wireReply []byte

// madvHugepage is MADV_HUGEPAGE of Linux.
const madvHugepage = 14

// serveSink serves at url until it is told to end.
func serveSink(c *config, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return runSink(ctx, c, out)
}

func runSink(ctx context.Context, c *config, out io.Writer) error {
	s := &sink{chunkTokens: 256, lookups: map[string]int{}, pickles: map[int]wireReply{}}
	if c.sinkMB > 0 {
		mem, err := syscall.Mmap(-1, 0, c.sinkMB<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
		if err != nil {
			return fmt.Errorf("map %d MiB: %w", c.sinkMB, err)
		}
		_ = syscall.Madvise(mem, madvHugepage) // as the pool of a server, where the system allows it
		clear(mem)
		s.span = mem
	}
	r := zmtp.NewRouter(zmtp.RouterOptions{Handler: s})
	bound, err := r.Listen(c.URL)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "throwing away at", bound)
	done := make(chan error, 1)
	go func() { done <- r.Serve() }()
	<-ctx.Done()
	_ = r.Close(0)
	return <-done
}

func (s *sink) Connected(*zmtp.Peer)           {}
func (s *sink) Disconnected(*zmtp.Peer, error) {}
func (s *sink) Refused(net.Addr, error)        {}

// Place implements [zmtp.Placer]: with a span, a store is read into the next
// part of it, as into a pool that is larger than the caches, and not looked at.
func (s *sink) Place(_ *zmtp.Peer, frames [][]byte, size int) *zmtp.Placement {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > len(s.span) || len(frames) < 2 {
		return nil
	}
	if op, err := wire.ParseOp(frames[1]); err != nil || op != wire.OpCommitStore {
		return nil
	}
	if s.at+size > len(s.span) {
		s.at = 0
	}
	dst := s.span[s.at : s.at+size]
	s.at += size
	return &zmtp.Placement{Parts: []zmtp.Part{{Dst: dst}}}
}

// Message answers as a server in pickle mode does where all goes well.
func (s *sink) Message(p *zmtp.Peer, m *zmtp.Message) {
	if len(m.Frames) < 2 {
		return
	}
	uid, opFrame, args := m.Frames[0], m.Frames[1], m.Frames[2:]
	op, err := wire.ParseOp(opFrame)
	if err != nil || len(args) != op.Arity() {
		return
	}
	v, err := s.answer(op, args)
	switch {
	case err != nil:
		_ = p.Queue(uid, wire.RefusalFrame(op))
	case v == nil:
		_ = p.Queue(uid, opFrame)
	default:
		_ = p.Queue(uid, opFrame, v)
	}
}

func (s *sink) answer(op wire.Op, args [][]byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch op {
	case wire.OpNoop:
		return wire.AppendString(nil, "OK"), nil
	case wire.OpGetChunkSize:
		return wire.AppendInt(nil, int64(s.chunkTokens)), nil
	case wire.OpRegisterEngineDriven:
		var c wire.EngineDrivenContext
		if err := wire.DecodeEngineDrivenContext(args[0], &c); err != nil {
			return nil, err
		}
		s.shape = []int64{2, int64(c.NumLayers), int64(s.chunkTokens), int64(c.HiddenDim)}
		clear(s.pickles)
		return wire.AppendEngineDrivenReply(nil, "", 0), nil
	case wire.OpPrepareStore:
		return wire.AppendPrepareStore(nil, nil, nil, false), nil
	case wire.OpCommitStore, wire.OpCommitRetrieve, wire.OpPing:
		return wire.AppendBool(nil, true), nil
	case wire.OpLookup:
		var k wire.Key
		if err := wire.DecodeKey(args[0], &k, nil); err != nil {
			return nil, err
		}
		s.lookups[k.RequestID] = k.End / s.chunkTokens
		return nil, nil
	case wire.OpQueryPrefetchStatus:
		id, err := wire.DecodeString(args[0])
		return wire.AppendInt(nil, int64(s.lookups[id])), err
	case wire.OpEndSession:
		id, err := wire.DecodeString(args[0])
		delete(s.lookups, id)
		return nil, err
	case wire.OpPrepareRetrieve:
		var k wire.Key
		if err := wire.DecodeKey(args[0], &k, nil); err != nil {
			return nil, err
		}
		return s.pickle((k.End - k.Start) / s.chunkTokens)
	default:
		return nil, nil
	}
}

// pickle is the reply with so many chunks of noise, made once. mu is held.
func (s *sink) pickle(chunks int) (wireReply, error) {
	if r := s.pickles[chunks]; r != nil {
		return r, nil
	}
	t, _ := torchdtype.Lookup(dtype)
	e, err := torchpickle.NewEncoder(t, s.shape)
	if err != nil {
		return nil, err
	}
	n := elementBytes
	for _, d := range s.shape {
		n *= int(d)
	}
	noise := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // it does not fail
	all := make([][]byte, chunks)
	for i := range all {
		all[i] = noise
	}
	r := wire.AppendPrepareRetrieveHead(nil, true, e.Size(chunks))
	r = wire.AppendPrepareRetrieveTail(e.Append(r, all))
	s.pickles[chunks] = r
	return r, nil
}
