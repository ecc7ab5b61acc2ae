package httpapi

import (
	"encoding/hex"
	"errors"
	"io"
	"time"
)

// fake is a server in any state.
type fake struct {
	sick   string
	clears []bool
	panics bool

	objects map[string]bool // by hash, those of test/model; true while held
	quotas  []Quota
	ids     []string // of prefetches that come
	done    map[string]PrefetchResult
	threads []PeriodicThread
	pages   [][]Object
}

// recordedServer is in the state of the reference when its answers were recorded.
func recordedServer() *fake {
	return &fake{
		objects: map[string]bool{
			"e9984c4139f91d406d95c164a9b928be9d044644c102b759ad9111867d442909": true,
			"55110123254d0e377b1d7be2e915c8f163b49c32028260824201e657e2d527e1": false,
			"4aed55f89c834250ae5342e621bc9940e7611d46fc9ad40fdac0c846d5d88f17": false,
			"2e6a1c26acfbca4e8fa0267878be7a4dc4f614979631ce6876cd912891df7deb": false,
		},
		ids:     []string{"c691da37c1ed47fa8bf9f6436897b0b7"},
		threads: []PeriodicThread{{Name: "loop", Level: LevelHigh, Interval: time.Second, Running: true, LastRun: time.Now(), Runs: 1}},
	}
}

func (f *fake) Health() (bool, string) { return f.sick == "", f.sick }
func (f *fake) ClearL1(force bool)     { f.clears = append(f.clears, force) }

func (f *fake) WriteMetrics(w io.Writer) {
	_, _ = io.WriteString(w, "lmcache_go_healthy 1\n")
}

func (f *fake) Status() any {
	if f.panics {
		panic("broken invariant")
	}
	return ours("auto", 0, 0, 1<<30)
}

func (f *fake) Config() any { return map[string]map[string]Float{"mp": {"x": 30}} }

func (f *fake) DeleteL1(keys []ObjectKey, force bool) (deleted, skipped int) {
	for _, k := range keys {
		h := hex.EncodeToString(k.ChunkHash)
		held, ok := f.objects[h]
		switch {
		case !ok || k.Model != "test/model" || k.KVRank != 16777472:
		case held && !force:
			skipped++
		default:
			delete(f.objects, h)
			deleted++
		}
	}
	return deleted, skipped
}

func (f *fake) ListL1(_ string, after uint32, _ int) ([]Object, uint32) {
	if int(after) >= len(f.pages) {
		return nil, 0
	}
	next := after + 1
	if int(next) == len(f.pages) {
		next = 0
	}
	return f.pages[after], next
}

func (f *fake) Prefetch(r PrefetchRequest) (string, int, error) {
	chunks := len(r.Tokens) / 256
	switch {
	case r.Model != "test/model":
		return "", 0, ErrNoLayout
	case chunks == 0:
		return "", 0, nil
	}
	if bad := CheckSalt(r.Salt); bad != "" {
		return "", 0, errors.New(bad)
	}
	id := f.ids[0]
	f.ids = f.ids[1:]
	f.done = map[string]PrefetchResult{id: {chunks, chunks}}
	return id, chunks, nil
}

func (f *fake) PrefetchResult(id string) (PrefetchResult, bool) {
	r, ok := f.done[id]
	delete(f.done, id)
	return r, ok
}

func (f *fake) SetQuota(salt string, n int64) error {
	if salt == "full" {
		return errors.New("too many quotas")
	}
	f.DeleteQuota(salt)
	f.quotas = append(f.quotas, Quota{Salt: salt, LimitBytes: n, Exists: true})
	return nil
}

func (f *fake) Quota(salt string) Quota {
	for _, q := range f.quotas {
		if q.Salt == salt {
			return q
		}
	}
	return Quota{Salt: salt}
}

func (f *fake) DeleteQuota(salt string) bool {
	for i, q := range f.quotas {
		if q.Salt == salt {
			f.quotas = append(f.quotas[:i], f.quotas[i+1:]...)
			return true
		}
	}
	return false
}

func (f *fake) Quotas() []Quota                   { return f.quotas }
func (f *fake) PeriodicThreads() []PeriodicThread { return f.threads }
