package nixlpull

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/connector/multi"
	"github.com/lmcache-go/lmcache-go/connector/pd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePeer notes what it is asked and answers what it is told.
type fakePeer struct {
	mu      sync.Mutex
	log     []string      // guarded by mu
	err     error         // of Pull and Offer
	settled chan struct{} // of Pull
	pulled  chan string
}

func (f *fakePeer) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fakePeer) lines() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.log...)
}

func (f *fakePeer) Offer(o pd.Offer) (*pd.Params, error) {
	f.note("offer %s %v %d", o.RequestID, o.Blocks, o.Tokens)
	return &pd.Params{DoRemotePrefill: true, RemoteEngineID: "e", RemoteRequestID: o.RequestID, RemoteHost: "h", RemotePort: 1, RemoteBlockIDs: o.Blocks, TPSize: 1}, f.err
}
func (f *fakePeer) Track(id string, _ *pd.Params) { f.note("track %s", id) }
func (f *fakePeer) Untrack(id string)             { f.note("untrack %s", id) }

func (f *fakePeer) Pull(_ context.Context, id string, p *pd.Params, local [][]int64) (pd.Result, error) {
	f.note("pull %s from %s: %v", id, p.RemoteRequestID, local)
	f.pulled <- id
	return pd.Result{Settled: f.settled}, f.err
}
func (f *fakePeer) Close() error { f.note("close"); return nil }

func start(t *testing.T) (*Connector, *fakePeer) {
	t.Helper()
	f := &fakePeer{pulled: make(chan string, 8), settled: make(chan struct{})}
	c := newConnector(16, nil)
	c.peer = f
	t.Cleanup(func() { require.NoError(t, c.Worker().Close(context.Background())) })
	return c, f
}

// request of 40 tokens with kv_transfer_params.
func request(t *testing.T, params string) *connector.Request {
	t.Helper()
	r := &connector.Request{ID: "d", Tokens: make([]uint32, 40), PromptTokens: 40}
	if params != "" {
		require.NoError(t, json.Unmarshal([]byte(params), &r.Params))
	}
	return r
}

const (
	fromPrefill = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[7,8,9]],"remote_engine_id":"e","remote_request_id":"p","remote_host":"h","remote_port":5600,"tp_size":1}`
	forDecode   = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
)

// poll polls until something ended.
func poll(t *testing.T, c *Connector) connector.Progress {
	t.Helper()
	c.wg.Wait()
	return c.Worker().Poll(nil)
}

func TestADecoderLoadsOnce(t *testing.T) {
	c, f := start(t)
	s := c.Scheduler()
	r := request(t, fromPrefill)
	s.Enqueued(r)
	n, ready := s.Match(r, 16)
	require.Equal(t, []any{24, true}, []any{n, ready})
	n, _ = s.Match(r, 16)
	require.Equal(t, 24, n, "it had no blocks: it is asked again")
	s.Allocated(r, [][]int64{{1, 2, 3}}, 24)
	c.Worker().Load(s.BuildMeta(&connector.Step{}))
	p := poll(t, c)
	require.Equal(t, connector.Progress{Received: []string{"d"}}, p)
	require.Equal(t, []string{"track d", "pull d from p: [[2 3]]"}, f.lines())
	n, ready = s.Match(r, 0)
	require.Equal(t, []any{0, true}, []any{n, ready}, "once only: a preempted request is computed")
	fin, err := s.Finish(r, multi.Ending{})
	require.NoError(t, err)
	require.Equal(t, multi.Finished{}, fin)
	require.Empty(t, s.BuildMeta(&connector.Step{}))
	require.Empty(t, c.requests)
}

// Whoever does not load tells the producer all the same, so that it frees its
// blocks at once.
func TestTheProducerHearsOfEveryEnd(t *testing.T) {
	f := func(end func(s multi.Scheduler, r *connector.Request)) {
		t.Helper()
		c, peer := start(t)
		s := c.Scheduler()
		r := request(t, fromPrefill)
		s.Enqueued(r)
		end(s, r)
		c.Worker().Load(s.BuildMeta(&connector.Step{}))
		require.Equal(t, connector.Progress{}, poll(t, c))
		require.Equal(t, []string{"track d", "pull d from p: []"}, peer.lines())
	}
	f(func(s multi.Scheduler, r *connector.Request) { // aborted while it waited
		_, err := s.Finish(r, multi.Ending{Reason: multi.Aborted})
		require.NoError(t, err)
	})
	f(func(s multi.Scheduler, r *connector.Request) { // another child loads
		s.Match(r, 16)
		s.Allocated(r, [][]int64{{1, 2, 3}}, 0)
	})
}

func TestAFailedPullNamesItsBlocksOnceTheyAreSafe(t *testing.T) {
	c, f := start(t)
	f.err = fmt.Errorf("%w: gone", pd.ErrTransfer)
	s := c.Scheduler()
	r := request(t, fromPrefill)
	s.Match(r, 0)
	s.Allocated(r, [][]int64{{1, 2, 3}}, 40)
	c.Worker().Load(s.BuildMeta(&connector.Step{}))
	<-f.pulled
	require.Equal(t, connector.Progress{}, c.Worker().Poll(nil), "NIXL may still write there")
	close(f.settled)
	require.Equal(t, connector.Progress{Received: []string{"d"}, BadBlocks: []int64{1, 2, 3}}, poll(t, c))
}

// The data is here: that the producer could not be told is its problem.
func TestALostNotificationIsNoFailure(t *testing.T) {
	c, f := start(t)
	f.err = pd.ErrNotify
	s := c.Scheduler()
	r := request(t, fromPrefill)
	s.Match(r, 0)
	s.Allocated(r, [][]int64{{1, 2, 3}}, 40)
	c.Worker().Load(s.BuildMeta(&connector.Step{}))
	require.Equal(t, connector.Progress{Received: []string{"d"}}, poll(t, c))
}

func TestAProducerKeepsBlocks(t *testing.T) {
	c, f := start(t)
	s := c.Scheduler()
	r := request(t, forDecode)
	r.ComputedTokens = 40
	n, ready := s.Match(r, 0)
	require.Equal(t, []any{0, true}, []any{n, ready})
	fin, err := s.Finish(r, multi.Ending{Reason: multi.LengthCapped, Blocks: [][]int64{{4, 5, 6}}})
	require.NoError(t, err)
	require.True(t, fin.KeepBlocks)
	require.JSONEq(t, `[[4,5,6]]`, string(fin.Params["remote_block_ids"]))
	require.JSONEq(t, `true`, string(fin.Params["do_remote_prefill"]))
	require.Equal(t, []string{"offer d [[4 5 6]] 40"}, f.lines())
	require.Empty(t, c.Worker().Poll([]string{"d"}).Sent)
	c.released(pd.Release{RequestID: "d"})
	require.Equal(t, []string{"d"}, c.Worker().Poll(nil).Sent)
}

// What is nobody's business costs nothing: aborted prefills, plain requests,
// params that cannot be used.
func TestNothingToDo(t *testing.T) {
	f := func(params string, why multi.Reason) {
		t.Helper()
		c, peer := start(t)
		s := c.Scheduler()
		r := request(t, params)
		s.Enqueued(r)
		n, ready := s.Match(r, 0)
		require.Equal(t, []any{0, true}, []any{n, ready})
		s.Allocated(r, [][]int64{{1, 2, 3}}, 0)
		fin, err := s.Finish(r, multi.Ending{Reason: why, Blocks: [][]int64{{1, 2, 3}}})
		require.NoError(t, err)
		require.Equal(t, multi.Finished{}, fin)
		require.Empty(t, s.BuildMeta(&connector.Step{}))
		require.Empty(t, peer.lines())
	}
	f("", multi.LengthCapped)
	f(forDecode, multi.Aborted)
	f(forDecode, multi.Failed)
	f(`{"do_remote_prefill":true,"remote_block_ids":[[1]]}`, multi.LengthCapped)
	f(`{"do_remote_prefill":"yes"}`, multi.LengthCapped)
	f(`{"cached_token_stats":true}`, multi.LengthCapped)
}
