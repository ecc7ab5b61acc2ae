package mpserver

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// subscription is a stream as a client sees it.
type subscription struct {
	*peer
	uid, op []byte
}

func subscribe(t *testing.T, s *Server, instance int64, model string, cursor, limit int64) *subscription {
	t.Helper()
	p := connect(t, s)
	op := strFrame("subscribe_kv_events")
	return &subscription{p, p.send(op, intFrame(instance), strFrame(model), intFrame(cursor), intFrame(limit)), op}
}

// batch receives the next batch.
func (s *subscription) batch() *wire.KVEventBatch {
	s.t.Helper()
	frames := s.recv()
	require.Len(s.t, frames, 3, "a batch")
	require.Equal(s.t, [][]byte{s.uid, s.op}, frames[:2])
	b, err := wire.DecodeKVEventBatch(frames[2])
	require.NoError(s.t, err)
	return b
}

func (s *subscription) control(what string) {
	s.t.Helper()
	_, err := s.sock.SendMessage(s.uid, []byte{}, what)
	require.NoError(s.t, err)
}

// next acknowledges a batch and receives the next one.
func (s *subscription) next() *wire.KVEventBatch {
	s.t.Helper()
	s.control("ack")
	return s.batch()
}

// events receives until n records are there.
func (s *subscription) events(n int) (out []wire.KVEventRecord) {
	s.t.Helper()
	for len(out) < n {
		b := s.next()
		require.False(s.t, b.Lost)
		out = append(out, b.Events...)
	}
	return out
}

func (s *subscription) requireEnd() {
	s.t.Helper()
	require.Equal(s.t, [][]byte{s.uid, s.op}, s.recv(), "the end of the stream")
}

func TestKVEventsOfAStore(t *testing.T) {
	s := startServer(t, func(o *Options) { o.L1.ShmName = shmName(t) })
	w := connect(t, s)
	w.register(1)
	sub := subscribe(t, s, 1, testModel, 0, 1024)
	first := sub.batch()
	require.Equal(t, &wire.KVEventBatch{Enabled: true, Incarnation: s.start.UnixNano()}, first)

	tokens := prompt(1, 3*testChunk+5)
	tokens[1], tokens[2], tokens[3] = 0, 127, 1<<32-1 // every width
	k := keyOf("a", tokens)
	w.store(s, k, 1, tokens)
	p, _, err := s.hasher.Prompt(k.Tokens, len(tokens))
	require.NoError(t, err)
	hashes := p.Chunks()
	got := sub.events(3)
	for i, r := range got {
		want := wire.KVEventRecord{
			Seq: int64(i) + 1, Kind: "stored", Medium: "CPU", Model: testModel, BlockHashes: [][]byte{hashes[i][:]},
			TokenIDs: tokens[i*testChunk : (i+1)*testChunk],
		}
		if i > 0 {
			want.ParentHash = hashes[i-1][:]
		}
		require.Equal(t, want, r)
	}

	// Only what is stored is told, with the parent that was there before.
	k2 := keyOf("b", append(tokens[:3*testChunk:3*testChunk], prompt(2, testChunk)...))
	w.store(s, k2, 1, tokens)
	got = sub.events(1)
	require.Equal(t, hashes[2][:], got[0].ParentHash)
	require.Equal(t, prompt(2, testChunk), got[0].TokenIDs)

	w.none(wire.OpClear, boolFrame(true))
	got = sub.events(1)
	require.Equal(t, "removed", got[0].Kind)
	require.Len(t, got[0].BlockHashes, 4)
	require.Subset(t, got[0].BlockHashes, [][]byte{hashes[0][:], hashes[1][:], hashes[2][:]})
	require.Empty(t, got[0].TokenIDs)
	require.Nil(t, got[0].ParentHash)

	st := s.events.status()
	require.Equal(t, 5, st.LogDepth)
	require.Equal(t, int64(6), st.NextSeq)
	require.Equal(t, 1, st.Subscribers)
	require.Zero(t, st.UnboundStores)

	// Another model hears nothing, and a late one everything.
	other := subscribe(t, s, 2, "another", 0, 1024)
	require.Equal(t, int64(5), other.batch().NextCursor)
	late := subscribe(t, s, 3, testModel, 3, 1024)
	b := late.batch()
	require.Len(t, b.Events, 2)
	require.Equal(t, int64(4), b.Events[0].Seq)
	limited := subscribe(t, s, 4, testModel, 0, 2)
	require.Len(t, limited.batch().Events, 2)
	require.Len(t, limited.next().Events, 2)
	require.Equal(t, "removed", limited.next().Events[0].Kind)
	require.Equal(t, 4, s.events.status().Subscribers)
}

// A batch is sent for each acknowledgement only, so a reader that does not read
// costs one batch, and hears what it missed.
func TestKVEventsLost(t *testing.T) {
	s := startServer(t, func(o *Options) { o.KVEventLogSize, o.L1.ShmName = 2, shmName(t) })
	w := connect(t, s)
	w.register(1)
	sub := subscribe(t, s, 1, testModel, 0, 1024)
	require.Empty(t, sub.batch().Events)
	for i := range 5 {
		tokens := prompt(uint64(i), testChunk)
		w.store(s, keyOf(fmt.Sprint(i), tokens), 1, tokens)
	}
	sub.silent(50 * time.Millisecond)
	b := sub.next()
	require.True(t, b.Lost)
	require.Len(t, b.Events, 2)
	require.Equal(t, int64(5), b.NextCursor)
	require.Equal(t, int64(1), s.events.status().LostMarkers)

	future := subscribe(t, s, 2, testModel, 9, 1)
	b = future.batch()
	require.True(t, b.Lost)
	require.Empty(t, b.Events)
	require.Equal(t, int64(5), b.NextCursor)
}

// Until somebody subscribes records are only counted; who comes first hears that
// there were some, and misses nothing from then on.
func TestKVEventsBeforeTheFirstReader(t *testing.T) {
	s := startServer(t, func(o *Options) { o.L1.ShmName = shmName(t) })
	w := connect(t, s)
	w.register(1)
	before := prompt(1, 3*testChunk)
	w.store(s, keyOf("a", before), 1, before)
	st := s.events.status()
	require.Equal(t, int64(4), st.NextSeq)
	require.Zero(t, st.LogDepth)
	s.events.mu.Lock()
	require.Zero(t, s.events.bound.Len(), "nothing is kept for nobody")
	s.events.mu.Unlock()

	sub := subscribe(t, s, 1, testModel, 0, 1024)
	b := sub.batch()
	require.True(t, b.Lost)
	require.Empty(t, b.Events)
	require.Equal(t, int64(3), b.NextCursor)

	after := prompt(2, testChunk)
	w.store(s, keyOf("b", after), 1, after)
	got := sub.events(1)
	require.Equal(t, int64(4), got[0].Seq)
	require.Equal(t, after, got[0].TokenIDs)
}

// A chunk that several ranks or models publish is told each time, with the tokens
// that the log holds by then.
func TestKVEventsOfRanks(t *testing.T) {
	e := newKVEvents(100, testChunk, 1, nil)
	e.heard.Store(true)
	h, err := hash.New(hash.Options{ChunkSize: testChunk})
	require.NoError(t, err)
	tokens := prompt(1, 2*testChunk)
	k := keyOf("x", tokens)
	p, _, err := h.Prompt(k.Tokens, len(tokens))
	require.NoError(t, err)
	store := &transfer{requestKey: &requestKey{Key: k, prompt: p}, to: 2}
	publish := func(model string) {
		e.record([]l1cache.ObjectEvent{{Kind: l1cache.ObjectStored, Scope: l1cache.Scope{Model: model}, Hash: p.Chunks()[1]}})
	}
	for range 2 {
		e.bind(store, p.Chunks(), []l1cache.Slot{{Chunk: 0}, {Chunk: 1}})
		publish(testModel)
		publish(testModel)
		publish("another")
	}
	require.Len(t, e.log, 6)
	for i, r := range e.log {
		require.Equal(t, []string{testModel, testModel, "another"}[i%3], r.Model)
		require.Equal(t, p.Chunks()[0][:], r.ParentHash)
		got, ok := decodeTokens(r.tokens, testChunk)
		require.True(t, ok)
		require.Equal(t, tokens[testChunk:], got)
	}
	require.Zero(t, e.unbound)

	// What the log has lost nobody can tell.
	for range 100 {
		e.append(kvRecord{})
	}
	publish(testModel)
	require.Equal(t, int64(1), e.unbound)
}

func TestEndsOfSubscriptions(t *testing.T) {
	s := startServer(t, nil)
	a := subscribe(t, s, 1, testModel, 0, 10)
	a.batch()
	b := subscribe(t, s, 1, testModel, 0, 10) // the same instance, another connection
	b.batch()
	a.requireEnd()
	a.control("ack") // of a stream that has ended: nothing
	a.silent(20 * time.Millisecond)
	b.control("cancel")
	b.requireEnd()
	require.Zero(t, s.events.status().Subscribers)

	c := subscribe(t, s, 1, testModel, 0, 10)
	c.batch()
	c.close()
	testutil.Eventually(t, "the end of a stream whose connection has ended", func() bool { return s.events.status().Subscribers == 0 })

	// What cannot be served is switched off for good by the client.
	for _, bad := range [][2]int64{{-1, 10}, {0, 0}, {0, 1025}} {
		d := subscribe(t, s, 2, testModel, bad[0], bad[1])
		require.False(t, d.batch().Enabled)
		d.control("ack")
		d.requireEnd()
	}
	require.Zero(t, s.events.status().Subscribers)

	// One client cannot hold any number.
	p := connect(t, s)
	op := strFrame("subscribe_kv_events")
	for i := range maxStreams + 1 {
		p.send(op, intFrame(int64(i)), strFrame("m"), intFrame(0), intFrame(1))
		if i == 0 {
			require.Len(t, p.recv(), 3, "the first batch of the one that has to go")
		}
	}
	ends := 0
	for range maxStreams + 1 {
		if len(p.recv()) == 2 {
			ends++
		}
	}
	require.Equal(t, 1, ends)
	require.Equal(t, maxStreams, s.events.status().Subscribers)
}

func TestGetExperimental(t *testing.T) {
	for size, want := range map[int][]string{0: {"kv_event_stream"}, 5: {"kv_event_stream"}, -1: {}} {
		p := connect(t, startServer(t, func(o *Options) { o.KVEventLogSize = size }))
		v, refused := p.call(wire.OpGetExperimental)
		require.False(t, refused)
		require.Equal(t, wire.AppendStrings(nil, want), v)
	}
}

// The metrics follow their share of the objects, whatever the log needs.
func TestSampleBesideKVEvents(t *testing.T) {
	s := startServer(t, func(o *Options) { o.MetricsSampleRate = 0.25 })
	s.events.heard.Store(true)
	o, rate := s.observer()
	require.InDelta(t, 1, rate, 0)
	var events []l1cache.ObjectEvent
	for i := range 4 {
		e := l1cache.ObjectEvent{Kind: l1cache.ObjectStored, Scope: l1cache.Scope{Model: testModel}}
		e.Hash[3] = byte(i) << 6 // the highest of the bits that decide
		events = append(events, e)
	}
	o.(l1cache.Sampler).Sampled(events)
	require.Equal(t, int64(4), s.events.status().UnboundStores)
	s2 := startServer(t, func(o *Options) { o.KVEventLogSize, o.MetricsSampleRate = -1, 0.25 })
	_, rate = s2.observer()
	require.InDelta(t, 0.25, rate, 0)
}

func TestDecodeTokens(t *testing.T) {
	f := func(body []byte, n int, want []uint32) {
		t.Helper()
		got, ok := decodeTokens(body, n)
		require.Equal(t, want != nil, ok)
		require.Equal(t, want, got)
	}
	f([]byte{1, 0xcc, 200, 0xcd, 1, 2, 0xce, 0, 1, 0, 0, 0xcf, 0, 0, 0, 0, 0, 0, 0, 9}, 5, []uint32{1, 200, 258, 65536, 9})
	f([]byte{0xd0, 5, 0xd1, 1, 0, 0xd2, 0, 0, 0, 7, 0xd3, 0, 0, 0, 0, 0, 0, 0, 8}, 4, []uint32{5, 256, 7, 8})
	f([]byte{0xd0, 0xff}, 1, nil)
	f([]byte{0xff}, 1, nil) // a negative fixint
	f([]byte{0xcf, 0, 0, 0, 1, 0, 0, 0, 0}, 1, nil)
	f([]byte{0xcd, 1}, 1, nil)
	f([]byte{1}, 2, nil)
	f([]byte{0xa1, 'x'}, 1, nil)
}

// What the log costs a store of 32 chunks of 256 tokens: the tokens are read
// when it begins, the records written when it ends.
func BenchmarkKVEvents(b *testing.B) {
	const chunk, chunks = 256, 32
	h, err := hash.New(hash.Options{ChunkSize: chunk})
	require.NoError(b, err)
	tokens := prompt(1, chunk*chunks)
	k := keyOf("x", tokens)
	p, _, err := h.Prompt(k.Tokens, len(tokens))
	require.NoError(b, err)
	t := &transfer{requestKey: &requestKey{Key: k, prompt: p}, to: chunks}
	slots := make([]l1cache.Slot, chunks)
	events := make([]l1cache.ObjectEvent, chunks)
	for i := range slots {
		slots[i].Chunk = i
		events[chunks-1-i] = l1cache.ObjectEvent{Kind: l1cache.ObjectStored, Scope: l1cache.Scope{Model: testModel}, Hash: p.Chunks()[i]}
	}
	e := newKVEvents(DefaultKVEventLogSize, chunk, 1, nil)
	e.heard.Store(true)
	b.ReportAllocs()
	for b.Loop() {
		e.bound.Purge()
		e.bind(t, p.Chunks(), slots)
		e.record(events)
	}
	require.Zero(b, e.unbound)
}
