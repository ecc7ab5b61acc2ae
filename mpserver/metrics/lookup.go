package metrics

import (
	"sync/atomic"

	vm "github.com/VictoriaMetrics/metrics"
)

// EarlyExit says why a lookup was answered without a search.
type EarlyExit string

const (
	// ExitNoContext: no worker of the model has registered.
	ExitNoContext EarlyExit = "no_gpu_context"
	// ExitNoChunks: the prompt has no complete chunk.
	ExitNoChunks EarlyExit = "empty_chunk_hashes"
	// ExitNoLayout: the registered layout has no object group.
	ExitNoLayout EarlyExit = "no_group_layout_descs"
)

var earlyExits = [...]EarlyExit{ExitNoContext, ExitNoChunks, ExitNoLayout}

// pair is the label set of the lookup families.
type pair struct{ model, salt string }

// lookupCounters is every lookup family for one pair.
type lookupCounters struct {
	requested, hit, hitL1, hitL2 *vm.Counter // tokens
	keysL1, keysL2               *vm.Counter
	lookups                      *vm.Counter
	exits                        [len(earlyExits)]atomic.Pointer[vm.Counter] // made on first use
	labels                       pair
}

func (m *Metrics) newLookupCounters(p pair) *lookupCounters {
	c := func(name string) *vm.Counter {
		return m.set.GetOrCreateCounter(series(name, "cache_salt", p.salt, "model_name", p.model))
	}
	return &lookupCounters{
		requested: c(nameRequestedTokens),
		hit:       c(nameHitTokens),
		hitL1:     c(nameHitL1Tokens),
		hitL2:     c(nameHitL2Tokens),
		keysL1:    c(nameHitL1Keys),
		keysL2:    c(nameHitL2Keys),
		lookups:   c(nameLookups),
		labels:    p,
	}
}

// lookup returns the counters of a pair. When all places are taken a known
// model keeps a series with the salt [Other].
func (m *Metrics) lookup(model, salt string) *lookupCounters {
	p := pair{model, salt}
	if c, ok := m.pairs.lookup(p); ok {
		return c
	}
	if usable(model) && usable(salt) {
		c, ok := m.pairs.get(p, func() (pair, *lookupCounters) {
			p := pair{cloneString(model), cloneString(salt)}
			return p, m.newLookupCounters(p)
		})
		if ok {
			return c
		}
	}
	model = m.model(model)
	c, ok := m.pairsOver.get(model, func() (string, *lookupCounters) {
		return model, m.newLookupCounters(pair{model, Other})
	})
	if !ok {
		c = m.newLookupCounters(pair{Other, Other})
	}
	return c
}

// LookupDone counts a lookup whose answer is known: tokens are those of the
// whole chunks asked for and found, hitKeys the objects held for the hit (all
// ranks and groups).
func (m *Metrics) LookupDone(model, salt string, requestedTokens, hitTokens, hitKeys int) {
	c := m.lookup(model, salt)
	c.lookups.Inc()
	c.requested.Add(requestedTokens)
	c.hit.Add(hitTokens)
	c.hitL1.Add(hitTokens)
	c.keysL1.Add(hitKeys)
}

// LookupEarlyExit counts a lookup that needed no search; it is counted as an
// answered lookup of 0 tokens, too, as the reference does.
func (m *Metrics) LookupEarlyExit(model, salt string, reason EarlyExit) {
	c := m.lookup(model, salt)
	c.lookups.Inc()
	for i, e := range earlyExits {
		if e != reason {
			continue
		}
		v := c.exits[i].Load()
		if v == nil {
			v = m.set.GetOrCreateCounter(series(nameEarlyExit,
				"cache_salt", c.labels.salt, "model_name", c.labels.model, "reason", string(e)))
			c.exits[i].Store(v)
		}
		v.Inc()
	}
}
