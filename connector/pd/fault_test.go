package pd

import (
	"context"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/nixl"
)

func blockIDs(n int) [][]int64 {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(i)
	}
	return [][]int64{ids}
}

// same says whether the cache holds what a child of a seed has.
func (c *cache) same(seed int) bool {
	for i, b := range c.buf.Bytes() {
		if b != byte(i*31+i>>8*7+i>>16*13+seed) {
			return false
		}
	}
	return true
}

// The prefill engine dies between its answer and the read: the pull fails with a
// reason, whether the engine was known or not, and its next start at the same
// address serves.
func TestProducerIsKilledBeforeTheRead(t *testing.T) {
	const blocks, size = 8, 4096
	first := startChild(t, childConfig{Blocks: blocks, Bytes: size, Seed: 1})
	c := newCache(t, 1, blocks, size)
	o := c.options(testModel(2))
	o.HandshakeTimeout = 2 * time.Second
	consumer := newPeer(t, o)
	_, err := consumer.Pull(t.Context(), "a", first.Params, blockIDs(blocks))
	require.NoError(t, err)
	require.True(t, c.same(1))
	require.Equal(t, string(ReleaseRead), first.says(t))
	first.kill()

	res, err := consumer.Pull(t.Context(), "b", first.Params, blockIDs(blocks))
	require.ErrorIs(t, err, ErrTransfer, "known: the transfer fails")
	<-res.Settled
	_, err = consumer.Pull(t.Context(), "c", first.Params, blockIDs(blocks))
	require.ErrorIs(t, err, ErrHandshake, "not known any more: nobody answers")

	second := startChild(t, childConfig{Port: first.Port, Blocks: blocks, Bytes: size, Seed: 2})
	require.Equal(t, first.Port, second.Port)
	_, err = consumer.Pull(t.Context(), "d", first.Params, blockIDs(blocks))
	require.ErrorIs(t, err, ErrWrongEngine)
	require.ErrorContains(t, err, first.EngineID)
	require.ErrorContains(t, err, second.EngineID)
	_, err = consumer.Pull(t.Context(), "e", second.Params, blockIDs(blocks))
	require.NoError(t, err)
	require.True(t, c.same(2))
	second.end(t)
	s := consumer.TakeStats()
	require.Equal(t, []int{2, 1, 2}, []int{len(s.Transfers), s.FailedTransfers, s.FailedHandshakes})
}

// A producer that is stopped in the middle of a transfer: the pull ends in
// bounded time, and its blocks are not free before the data has stopped.
func TestStoppedProducer(t *testing.T) {
	const blocks, size = 64, 1 << 20
	far := startChild(t, childConfig{Blocks: blocks, Bytes: size, TLS: "tcp", Seed: 5})
	c := newCache(t, 1, blocks, size)
	o := c.options(testModel(2))
	o.UCX.Engine = map[string]string{"TLS": "tcp"}
	o.TransferTimeout = time.Second
	consumer := newPeer(t, o)
	consumer.Track("x", far.Params)
	testutil.Eventually(t, "the handshake", func() bool {
		e := consumer.engines.get(far.Params)
		defer consumer.engines.release(e)
		select {
		case <-e.ready:
			return e.err == nil
		default:
			return false
		}
	})
	far.signal(t, syscall.SIGSTOP)
	res, err := consumer.Pull(t.Context(), "x", far.Params, blockIDs(blocks))
	require.ErrorIs(t, err, ErrTransfer)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	select {
	case <-res.Settled:
		t.Fatal("settled while the producer may still send")
	default:
	}
	far.signal(t, syscall.SIGCONT)
	select {
	case <-res.Settled:
	case <-time.After(30 * time.Second):
		t.Fatal("not settled 30 s after the producer went on")
	}
	require.True(t, c.same(5), "what was asked for has arrived, as nobody can stop it")
	require.Equal(t, 1, consumer.TakeStats().FailedTransfers)
	require.Equal(t, 1, consumer.engines.known())
}

// A request is aborted during its transfer; others of the same producer go on.
func TestAbortDuringTheTransfer(t *testing.T) {
	const blocks, size = 64, 1 << 20
	far := startChild(t, childConfig{Blocks: blocks, Bytes: size, TLS: "tcp", Seed: 6})
	c := newCache(t, 1, blocks, size)
	o := c.options(testModel(2))
	o.UCX.Engine = map[string]string{"TLS": "tcp"}
	consumer := newPeer(t, o)
	_, err := consumer.Pull(t.Context(), "warm", &Params{
		RemoteEngineID: far.EngineID, RemoteHost: "127.0.0.1", RemotePort: far.Port, RemoteRequestID: "unknown", RemoteBlockIDs: [][]int64{{0}}, TPSize: 1, RemoteGeneration: 1,
	}, [][]int64{{0}})
	require.NoError(t, err)
	far.signal(t, syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	res, err := consumer.Pull(ctx, "x", far.Params, blockIDs(blocks))
	cancel()
	require.ErrorIs(t, err, ErrTransfer)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	far.signal(t, syscall.SIGCONT)
	<-res.Settled
	_, err = consumer.Pull(t.Context(), "y", far.Params, blockIDs(blocks))
	require.NoError(t, err)
	require.True(t, c.same(6))
}

// Nobody listens, or somebody who never answers.
func TestNoSideChannel(t *testing.T) {
	c := newCache(t, 1, 4, 256)
	o := c.options(testModel(2))
	o.HandshakeTimeout = 300 * time.Millisecond
	consumer := newPeer(t, o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	params := &Params{RemoteEngineID: "e", RemoteRequestID: "r", RemoteHost: "127.0.0.1", RemotePort: l.Addr().(*net.TCPAddr).Port, RemoteBlockIDs: [][]int64{{0}}, TPSize: 1}
	_, err = consumer.Pull(t.Context(), "silent", params, [][]int64{{0}})
	require.ErrorIs(t, err, ErrHandshake)
	require.NoError(t, l.Close())
	res, err := consumer.Pull(t.Context(), "closed", params, [][]int64{{0}})
	require.ErrorIs(t, err, ErrHandshake)
	<-res.Settled
	require.Equal(t, 2, consumer.TakeStats().FailedHandshakes)
	require.Zero(t, consumer.engines.known())
}

// fakeProducer answers every handshake with the same bytes.
func fakeProducer(t testing.TB, payload func() []byte) *Params {
	t.Helper()
	s, err := NewSideChannel("127.0.0.1", 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	s.publish(0, payload())
	return &Params{RemoteEngineID: "e", RemoteRequestID: "r", RemoteHost: "127.0.0.1", RemotePort: s.Port(), RemoteBlockIDs: [][]int64{{0}}, TPSize: 1}
}

// Metadata that is cut never reaches the library, where it would spoil the
// name: the whole blob of the same agent is loaded afterwards.
func TestTruncatedMetadataIsNotLoaded(t *testing.T) {
	needLib(t)
	from, to := newCache(t, 1, 4, 256), newCache(t, 1, 4, 256)
	from.fill(8)
	producer, consumer := newPeer(t, from.options(testModel(2))), newPeer(t, to.options(testModel(2)))
	h, err := Query(t.Context(), "127.0.0.1", producer.Port(), 0)
	require.NoError(t, err)
	m, err := ParseAgentMetadata(h.Metadata)
	require.NoError(t, err)
	raw := m.AgentMetadata
	for _, n := range []int{0, 10, len(raw) / 2, len(raw) - 1} {
		m.AgentMetadata, m.EngineID = raw[:n], "e"
		params := fakeProducer(t, func() []byte {
			return (&Handshake{Compatibility: h.Compatibility, Metadata: m.Append(nil)}).Append(nil)
		})
		_, err = consumer.Pull(t.Context(), "x", params, [][]int64{{0}})
		require.ErrorIs(t, err, ErrHandshake, n)
		require.ErrorIs(t, err, nixl.ErrBadMetadata, n)
	}
	params, err := producer.Offer(Offer{RequestID: "r", Blocks: [][]int64{{1}}, Tokens: 16})
	require.NoError(t, err)
	_, err = consumer.Pull(t.Context(), "y", params, [][]int64{{2}})
	require.NoError(t, err)
	require.Equal(t, from.page(0, 1), to.page(0, 2))
}

func TestMismatchesNameBothSides(t *testing.T) {
	needLib(t)
	from, to := newCache(t, 1, 4, 256), newCache(t, 1, 4, 512)
	producer := newPeer(t, from.options(testModel(2)))
	params, err := producer.Offer(Offer{RequestID: "r", Blocks: [][]int64{{1}}, Tokens: 16})
	require.NoError(t, err)

	other := testModel(2)
	other.Name = "other-model"
	o := to.options(other)
	consumer := newPeer(t, o)
	_, err = consumer.Pull(t.Context(), "x", params, [][]int64{{0}})
	require.ErrorIs(t, err, ErrIncompatible)
	mine := testModel(2)
	require.ErrorContains(t, err, mine.Hash())
	require.ErrorContains(t, err, other.Hash())

	o.AnyModel = true
	consumer = newPeer(t, o)
	_, err = consumer.Pull(t.Context(), "x", params, [][]int64{{0}})
	require.ErrorIs(t, err, ErrIncompatible)
	require.ErrorContains(t, err, "512 here, 256 there")

	// A rank that the producer does not have: told at once, not by silence.
	o = from.options(testModel(2))
	o.AnyModel, o.HandshakeTimeout = true, time.Minute
	params.TPSize = 2
	params.RemoteEngineID = "another entry of the cache"
	o.TPRank, o.TPSize = 1, 2
	consumer = newPeer(t, o)
	_, err = consumer.Pull(t.Context(), "x", params, [][]int64{{0}})
	require.ErrorIs(t, err, ErrIncompatible)
	require.ErrorContains(t, err, "tensor rank 1")
}

// What no REQ of vLLM sends does not end the side channel, as it would vLLM's.
func TestSideChannelSurvivesGarbage(t *testing.T) {
	s, err := NewSideChannel("localhost", 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	s.publish(0, []byte("payload"))
	for _, m := range [][]byte{nil, {0xc1}, {0x93, 0xa1, 'x', 0, 0}, appendRequest(nil, 5, 5)} {
		c, err := dialSide(t.Context(), "localhost", s.Port())
		require.NoError(t, err)
		require.NoError(t, c.conn.Write(zmtp.AppendFrame(zmtp.AppendFrame(nil, nil, true), m, false)))
		frames, err := c.conn.Read()
		require.NoError(t, err)
		h, err := ParseHandshake(frames[1])
		require.NoError(t, err)
		require.NotEmpty(t, h.Err)
		c.close()
	}
	nc, err := net.Dial("tcp", net.JoinHostPort("localhost", strconv.Itoa(s.Port())))
	require.NoError(t, err)
	_, err = nc.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	require.NoError(t, nc.Close())
	answered, refused := s.Answered()
	require.Equal(t, []int64{0, 4}, []int64{answered, refused})
}

// Close while a pull runs, and before or after its producer.
func TestCloseInAnyOrder(t *testing.T) {
	needLib(t)
	from, to := newCache(t, 1, 4, 256), newCache(t, 1, 4, 256)
	got := make(releases, 4)
	o := from.options(testModel(2))
	o.Released = got.add
	producer, err := New(o)
	require.NoError(t, err)
	consumer, err := New(to.options(testModel(2)))
	require.NoError(t, err)
	params, err := producer.Offer(Offer{RequestID: "r", Blocks: [][]int64{{1}}, Tokens: 16})
	require.NoError(t, err)
	_, err = consumer.Pull(t.Context(), "x", params, [][]int64{{0}})
	require.NoError(t, err)
	require.Equal(t, ReleaseRead, got.next(t).Reason)
	_, err = producer.Offer(Offer{RequestID: "left", Blocks: [][]int64{{1}}, Tokens: 16})
	require.NoError(t, err)
	require.NoError(t, producer.Close())
	require.Equal(t, ReleaseClosed, got.next(t).Reason)
	<-producer.Done()
	_, err = producer.Offer(Offer{RequestID: "late", Blocks: [][]int64{{1}}, Tokens: 16})
	require.ErrorIs(t, err, ErrClosed)

	// A consumer that waits for a producer that does not answer.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	silent := *params
	silent.RemoteEngineID, silent.RemotePort = "silent", l.Addr().(*net.TCPAddr).Port
	failed := make(chan error, 1)
	go func() {
		_, err := consumer.Pull(context.Background(), "y", &silent, [][]int64{{0}})
		failed <- err
	}()
	testutil.Eventually(t, "the pull waits", func() bool {
		consumer.engines.mu.Lock()
		defer consumer.engines.mu.Unlock()
		return consumer.engines.byID["silent"] != nil
	})
	require.NoError(t, consumer.Close())
	require.ErrorIs(t, <-failed, ErrClosed)
	require.NoError(t, consumer.Close())
	_, err = consumer.Pull(t.Context(), "z", params, [][]int64{{0}})
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, l.Close())
}

func TestOptionsAreChecked(t *testing.T) {
	needLib(t)
	c := newCache(t, 2, 4, 256)
	f := func(want string, change func(*Options)) {
		t.Helper()
		o := c.options(testModel(2))
		o.Regions = append([]Region(nil), o.Regions...)
		change(&o)
		p, err := New(o)
		if err == nil {
			_ = p.Close()
		}
		require.ErrorIs(t, err, ErrOptions)
		require.ErrorContains(t, err, want)
	}
	f("rank 2 of 2", func(o *Options) { o.TPRank, o.TPSize = 2, 2 })
	f("no Regions", func(o *Options) { o.Regions = nil })
	f("no Memory", func(o *Options) { o.Memory = nil })
	f("not within Memory", func(o *Options) { o.Regions[1].Blocks++ })
	f("not unique", func(o *Options) { o.Regions[1].Name = o.Regions[0].Name })
	f("stride 100", func(o *Options) { o.Regions[1].Stride = 100 })
	f("no SHA-256", func(o *Options) { o.Compatibility = "x" })
	f("BlockTokens 0", func(o *Options) { o.BlockTokens = 0 })

	var o Options
	require.NoError(t, o.FromEnv(func(string) string { return "" }))
	require.Equal(t, []any{"localhost", 5600}, []any{o.Host, o.Port})
	env := map[string]string{EnvHost: "10.0.0.1", EnvPort: "5558"}
	require.NoError(t, o.FromEnv(func(k string) string { return env[k] }))
	require.Equal(t, []any{"10.0.0.1", 5558}, []any{o.Host, o.Port})
	env[EnvPort] = "http"
	require.ErrorContains(t, o.FromEnv(func(k string) string { return env[k] }), "http")

	// A port that is taken: told in New, not later.
	p := newPeer(t, c.options(testModel(2)))
	d := newCache(t, 2, 4, 256)
	taken := d.options(testModel(2))
	taken.Port = p.Port()
	_, err := New(taken)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, EnvPort)
}

// Blocks that are not there, and requests that are offered twice.
func TestOffersAreChecked(t *testing.T) {
	needLib(t)
	c := newCache(t, 1, 4, 256)
	p := newPeer(t, c.options(testModel(2)))
	f := func(o Offer, want error) {
		t.Helper()
		_, err := p.Offer(o)
		require.ErrorIs(t, err, want)
	}
	f(Offer{RequestID: "a", Blocks: [][]int64{{4}}}, ErrParams)
	f(Offer{RequestID: "a", Blocks: [][]int64{{-1}}}, ErrParams)
	f(Offer{RequestID: "a", Blocks: [][]int64{{}}}, ErrParams)
	f(Offer{RequestID: "a", Blocks: [][]int64{{1}, {1}}}, ErrParams)
	f(Offer{RequestID: "a,b", Blocks: [][]int64{{1}}}, ErrParams)
	f(Offer{RequestID: "a", Blocks: [][]int64{{1}}}, nil)
	f(Offer{RequestID: "a", Blocks: [][]int64{{1}}}, ErrOffered)
	require.True(t, p.Withdraw("a"))
	f(Offer{RequestID: "a", Blocks: [][]int64{{1}}}, nil)
}
