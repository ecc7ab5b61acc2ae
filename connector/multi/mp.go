package multi

import (
	"context"
	"encoding/json"

	"github.com/lmcache-go/lmcache-go/connector"
)

// MP makes the scheduler of the LMCache connector a child.
func MP(s *connector.Scheduler) Scheduler { return mpScheduler{s} }

type mpScheduler struct{ *connector.Scheduler }

// BuildMeta returns a connector.Meta.
func (m mpScheduler) BuildMeta(step *connector.Step) any { return m.Scheduler.BuildMeta(step) }

// Finish translates: LMCache stores alike for all reasons, and returns its
// statistics where the request asked for them.
func (m mpScheduler) Finish(r *connector.Request, _ Ending) (Finished, error) {
	f := m.Scheduler.Finish(r)
	out := Finished{KeepBlocks: f.KeepBlocks}
	if f.Cached != nil {
		raw, err := json.Marshal(f.Cached)
		if err != nil {
			return out, err
		}
		out.Params = map[string]json.RawMessage{"cached_token_stats": raw}
	}
	return out, nil
}

// MPWorker makes the worker of the LMCache connector a child. It must have its
// caches registered.
func MPWorker(w *connector.Worker) Worker { return mpWorker{w} }

type mpWorker struct{ *connector.Worker }

func (m mpWorker) Prepare(ctx context.Context, meta any) error {
	if t, ok := meta.(connector.Meta); ok && t.Flush {
		return m.Flush(ctx)
	}
	return nil
}

func (m mpWorker) Load(meta any) {
	if t, ok := meta.(connector.Meta); ok {
		m.Worker.Load(t.Loads)
	}
}

func (m mpWorker) Save(meta any) {
	if t, ok := meta.(connector.Meta); ok {
		m.Worker.Save(t.Stores)
	}
}
