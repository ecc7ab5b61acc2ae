package multi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/connector"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a child that answers what it is told and notes what it hears.
type fake struct {
	tokens   int
	unknown  bool
	finished Finished
	err      error
	progress connector.Progress

	log []string
}

func (f *fake) note(format string, args ...any) { f.log = append(f.log, fmt.Sprintf(format, args...)) }

func (f *fake) Enqueued(r *connector.Request) { f.note("enqueued %s", r.ID) }

func (f *fake) Match(r *connector.Request, computed int) (int, bool) {
	f.note("match %s %d", r.ID, computed)
	return f.tokens, !f.unknown
}

func (f *fake) Allocated(r *connector.Request, blocks [][]int64, external int) {
	f.note("allocated %s %v %d", r.ID, blocks, external)
}
func (f *fake) BuildMeta(*connector.Step) any { return f }

func (f *fake) Finish(r *connector.Request, e Ending) (Finished, error) {
	f.note("finish %s %d", r.ID, e.Reason)
	return f.finished, f.err
}
func (f *fake) Close() error { f.note("close"); return f.err }

// fakeWorker is the other side of a fake.
type fakeWorker struct{ *fake }

func (w fakeWorker) Prepare(_ context.Context, meta any) error {
	w.note("prepare %v", meta == any(w.fake))
	return w.err
}
func (w fakeWorker) Load(meta any) { w.note("load %v", meta == any(w.fake)) }
func (w fakeWorker) Save(meta any) { w.note("save %v", meta == any(w.fake)) }

func (w fakeWorker) Poll(finished []string) connector.Progress {
	w.note("poll %v", finished)
	p := w.progress
	w.progress = connector.Progress{}
	return p
}
func (w fakeWorker) Close(context.Context) error { w.note("close"); return w.err }

func compose(t *testing.T, children ...*fake) (*Schedulers, *Workers) {
	t.Helper()
	var s []Child[Scheduler]
	var w []Child[Worker]
	for i, c := range children {
		name := fmt.Sprintf("child%d", i)
		s = append(s, Child[Scheduler]{name, c})
		w = append(w, Child[Worker]{name, fakeWorker{c}})
	}
	ms, err := NewScheduler(s...)
	require.NoError(t, err)
	mw, err := NewWorker(w...)
	require.NoError(t, err)
	return ms, mw
}

func TestWhoLoads(t *testing.T) {
	f := func(a, b fake, want int, ready bool, externalA, externalB int) {
		t.Helper()
		m, _ := compose(t, &a, &b)
		r := &connector.Request{ID: "r"}
		n, ok := m.Match(r, 16)
		require.Equal(t, []any{want, ready}, []any{n, ok})
		m.Allocated(r, [][]int64{{1, 2}}, n)
		require.Contains(t, a.log, fmt.Sprintf("allocated r [[1 2]] %d", externalA))
		require.Contains(t, b.log, fmt.Sprintf("allocated r [[1 2]] %d", externalB))
	}
	f(fake{tokens: 100}, fake{tokens: 256}, 100, true, 100, 0)
	f(fake{}, fake{tokens: 256}, 256, true, 0, 256)
	f(fake{}, fake{}, 0, true, 0, 0)
	f(fake{tokens: 100}, fake{unknown: true}, 0, false, 0, 0)
	f(fake{unknown: true}, fake{tokens: 256}, 0, false, 0, 0)
}

// A child behind one that does not know is not asked; those before are asked
// again.
func TestAskingEndsAtTheFirstThatDoesNotKnow(t *testing.T) {
	a, b, c := &fake{tokens: 1}, &fake{unknown: true}, &fake{}
	m, _ := compose(t, a, b, c)
	r := &connector.Request{ID: "r"}
	_, ready := m.Match(r, 0)
	require.False(t, ready)
	require.Len(t, a.log, 1)
	require.Empty(t, c.log)
	b.unknown = false
	n, ready := m.Match(r, 0)
	require.True(t, ready)
	require.Equal(t, 1, n)
	require.Len(t, a.log, 2)
	require.Len(t, c.log, 1)
}

// An answer of a step in which the request got no blocks does not choose for
// the next one.
func TestTheLastAnswerCounts(t *testing.T) {
	a, b := &fake{tokens: 48}, &fake{tokens: 32}
	m, _ := compose(t, a, b)
	r := &connector.Request{ID: "r"}
	m.Match(r, 0)
	a.tokens = 0
	n, _ := m.Match(r, 0)
	m.Allocated(r, nil, n)
	require.Equal(t, "allocated r [] 32", b.log[len(b.log)-1])
	require.Equal(t, "allocated r [] 0", a.log[len(a.log)-1])
}

func TestBlocksAreFreeWhenAllWhoKeepThemSaySo(t *testing.T) {
	for _, metaFirst := range []bool{true, false} {
		a, b, c := &fake{finished: Finished{KeepBlocks: true}}, &fake{finished: Finished{KeepBlocks: true}}, &fake{}
		m, w := compose(t, a, b, c)
		r := &connector.Request{ID: "r"}
		got, err := m.Finish(r, Ending{Reason: LengthCapped})
		require.NoError(t, err)
		require.True(t, got.KeepBlocks)
		meta := m.BuildMeta(&connector.Step{})
		if metaFirst {
			require.NoError(t, w.Prepare(t.Context(), meta))
			require.Empty(t, w.Poll([]string{"r"}).Sent)
		} else {
			require.Empty(t, w.Poll([]string{"r"}).Sent)
			require.NoError(t, w.Prepare(t.Context(), meta))
			require.Empty(t, w.Poll(nil).Sent)
		}
		require.Contains(t, a.log, "poll [r]")
		require.Contains(t, b.log, "poll [r]")
		require.NotContains(t, c.log, "poll [r]", "it keeps nothing")
		c.progress.Sent = []string{"r"} // means nothing
		require.Empty(t, w.Poll(nil).Sent)
		b.progress.Sent = []string{"r"}
		require.Empty(t, w.Poll(nil).Sent)
		b.progress.Sent = []string{"r"} // twice
		require.Empty(t, w.Poll(nil).Sent)
		a.progress.Sent = []string{"r"}
		require.Equal(t, []string{"r"}, w.Poll(nil).Sent)
		require.Empty(t, w.holds)
		require.Empty(t, w.early)
		require.Empty(t, w.finished)
	}
}

// A decoder may read the blocks before the step that tells the worker who keeps
// them.
func TestLettingGoBeforeTheMeta(t *testing.T) {
	a, b := &fake{finished: Finished{KeepBlocks: true}}, &fake{finished: Finished{KeepBlocks: true}}
	m, w := compose(t, a, b)
	_, err := m.Finish(&connector.Request{ID: "r"}, Ending{})
	require.NoError(t, err)
	a.progress.Sent = []string{"r"}
	require.Empty(t, w.Poll([]string{"r"}).Sent)
	require.NoError(t, w.Prepare(t.Context(), m.BuildMeta(&connector.Step{})))
	require.Empty(t, w.Poll(nil).Sent)
	b.progress.Sent = []string{"r"}
	require.Equal(t, []string{"r"}, w.Poll(nil).Sent)
	require.Empty(t, w.early)
}

func TestFinishMergesParams(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	a := &fake{finished: Finished{Params: map[string]json.RawMessage{"x": raw("1")}}}
	b := &fake{finished: Finished{Params: map[string]json.RawMessage{"y": raw("2")}}}
	m, _ := compose(t, a, &fake{}, b)
	got, err := m.Finish(&connector.Request{ID: "r"}, Ending{})
	require.NoError(t, err)
	require.Equal(t, map[string]json.RawMessage{"x": raw("1"), "y": raw("2")}, got.Params)
	require.False(t, got.KeepBlocks)
	require.Len(t, a.finished.Params, 1, "a child's own map is left alone")

	b.finished.Params["x"] = raw("3")
	_, err = m.Finish(&connector.Request{ID: "r"}, Ending{})
	require.ErrorIs(t, err, ErrParams)
	require.ErrorContains(t, err, "child2")
}

func TestFanOut(t *testing.T) {
	a, b := &fake{}, &fake{err: errors.New("broken")}
	a.progress = connector.Progress{Received: []string{"p"}, BadBlocks: []int64{3}}
	b.progress = connector.Progress{Received: []string{"q"}, BadBlocks: []int64{4}, Failed: []string{"q"}}
	m, w := compose(t, a, b)
	meta := m.BuildMeta(&connector.Step{})
	require.ErrorContains(t, w.Prepare(t.Context(), meta), "child1: broken")
	w.Load(meta)
	w.Save(meta)
	w.Load(nil)
	require.Equal(t, []string{"prepare true", "load true", "save true"}, a.log)
	require.Equal(t, a.log, b.log)
	require.Equal(t, connector.Progress{Received: []string{"p", "q"}, BadBlocks: []int64{3, 4}, Failed: []string{"q"}}, w.Poll(nil))
	require.ErrorContains(t, w.Close(t.Context()), "broken")
	require.ErrorContains(t, m.Close(), "broken")
	_, err := NewScheduler()
	require.ErrorIs(t, err, ErrChildren)
	_, err = NewWorker(make([]Child[Worker], 65)...)
	require.ErrorIs(t, err, ErrChildren)
}

func TestLine(t *testing.T) {
	in := []ChildStats{
		{"NixlConnector", []Stat{Int("Num successful transfers", 2), Float("Avg xfer time (ms)", 1.5, 3), Float("x", 3, 3)}},
		{"Silent", nil},
		{"LMCacheMPConnector", []Stat{Int("LMCache MP lookup count", 1)}},
	}
	require.Equal(t, "KV Transfer metrics: NixlConnector={'Num successful transfers': 2, 'Avg xfer time (ms)': 1.5, 'x': 3.0}, LMCacheMPConnector={'LMCache MP lookup count': 1}", Line(true, in))
	require.Equal(t, "KV Transfer metrics: LMCache MP lookup count=1", Line(false, in[2:]))
	require.Empty(t, Line(true, in[1:2]))
}
