package mpserver

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
)

// maxQuotas bounds the salts that have a limit.
const maxQuotas = 1 << 16

// quotas keeps a limit per salt, in bytes. They live as long as the process, as
// in the reference.
type quotas struct {
	mu     sync.Mutex
	limits map[string]int64 // guarded by mu
}

func (q *quotas) set(salt string, limit int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.limits[salt]; !ok && len(q.limits) >= maxQuotas {
		return fmt.Errorf("%d salts have a quota already: delete some", maxQuotas)
	}
	if q.limits == nil {
		q.limits = map[string]int64{}
	}
	q.limits[strings.Clone(salt)] = limit
	return nil
}

func (q *quotas) get(salt string) (limit int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	limit, ok = q.limits[salt]
	return limit, ok
}

func (q *quotas) remove(salt string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.limits[salt]
	delete(q.limits, salt)
	return ok
}

// list returns them by salt, with what L1 holds of each.
func (q *quotas) list(used map[string]int64) []httpapi.Quota {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]httpapi.Quota, 0, len(q.limits))
	for salt, limit := range q.limits {
		out = append(out, httpapi.Quota{Salt: salt, LimitBytes: limit, UsedBytes: used[salt], Exists: true})
	}
	slices.SortFunc(out, func(a, b httpapi.Quota) int { return strings.Compare(a.Salt, b.Salt) })
	return out
}

// policies are the store's names.
var policies = map[EvictionPolicy]l1cache.Policy{EvictLRU: l1cache.PolicyLRU, EvictARC: l1cache.PolicyARC, EvictIsolated: l1cache.PolicyIsolated}

// SetQuota, Quota, DeleteQuota and Quotas implement [httpapi.Server]. Limits and
// what is used are of L1, where the reference has 0 for want of an L2; they are
// kept with every policy, and heeded by IsolatedLRU.
func (f surface) SetQuota(salt string, limitBytes int64) error {
	if err := f.s.quotas.set(salt, limitBytes); err != nil {
		return err
	}
	f.s.cache.SetQuota(salt, limitBytes)
	return nil
}

// Quota implements [httpapi.Server].
func (f surface) Quota(salt string) httpapi.Quota {
	limit, ok := f.s.quotas.get(salt)
	return httpapi.Quota{Salt: salt, LimitBytes: limit, UsedBytes: f.s.cache.BytesBySalt()[salt], Exists: ok}
}

// DeleteQuota implements [httpapi.Server].
func (f surface) DeleteQuota(salt string) bool {
	f.s.cache.DeleteQuota(salt)
	return f.s.quotas.remove(salt)
}

// Quotas implements [httpapi.Server].
func (f surface) Quotas() []httpapi.Quota { return f.s.quotas.list(f.s.cache.BytesBySalt()) }
