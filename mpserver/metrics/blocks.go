package metrics

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"strconv"
	"sync"
	"time"

	vm "github.com/VictoriaMetrics/metrics"
)

// Limits of what is remembered of engines' blocks.
const (
	maxBlocks = 1 << 16
	// maxOwners bounds the pairs of a block and a request that uses it.
	maxOwners = 1 << 18
	// maxUses is how many uses of a block its gaps are told of (lmcache 0.5.6,
	// v1/mp_observability/subscribers/metrics/l0_lifecycle.py).
	maxUses = 4
)

// BlockAllocation is blocks of an engine's own cache that it gave to a request,
// and the tokens that go into them.
type BlockAllocation struct {
	RequestID      string
	Blocks, Tokens []int64
}

// blocks follows a sample of the blocks in engines' own caches, from what their
// schedulers report: a block that comes back with other tokens was evicted, one
// that comes back with the same after all its requests had ended was a hit.
type blocks struct {
	set    *vm.Set
	by     *table[blockLabels, *blockTimes]
	seed   maphash.Seed
	sample uint64 // a block is followed when its hash is below

	mu       sync.Mutex
	at       map[blockKey]*block              // guarded by mu
	requests map[string]map[blockKey]struct{} // guarded by mu: what a request uses
	owners   int                              // guarded by mu: pairs in requests
}

type blockLabels struct {
	instance int64
	model    string
}

type blockTimes struct{ lifetime, idle, reuse *vm.PrometheusHistogram }

type blockKey struct{ instance, id int64 }

type block struct {
	model      string
	tokens     uint64 // their hash
	owners     map[string]struct{}
	born, used time.Time
	uses       []time.Time // since born, the latest
}

func newBlocks(s *vm.Set, rate float64, limit int) *blocks {
	b := &blocks{set: s, by: newTable[blockLabels, *blockTimes](limit), seed: maphash.MakeSeed(), at: map[blockKey]*block{}, requests: map[string]map[blockKey]struct{}{}}
	if rate > 0 {
		b.sample = math.MaxUint64
		if rate < 1 {
			b.sample = uint64(rate * (1 << 63) * 2)
		}
	}
	return b
}

// BlocksAllocated notes what the scheduler of an engine reports.
func (m *Metrics) BlocksAllocated(instance int64, model string, list []BlockAllocation, now time.Time) {
	b := m.blocks
	if b.sample == 0 {
		return
	}
	model = m.model(model)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range list {
		a := &list[i]
		if len(a.Blocks) == 0 {
			continue
		}
		size := (len(a.Tokens) + len(a.Blocks) - 1) / len(a.Blocks)
		for j, id := range a.Blocks {
			start := min(j*size, len(a.Tokens))
			if tokens := a.Tokens[start:min(start+size, len(a.Tokens))]; len(tokens) > 0 {
				b.allocated(blockKey{instance, id}, model, a.RequestID, tokens, now)
			}
		}
	}
}

// allocated notes one block. mu is held.
func (b *blocks) allocated(k blockKey, model, request string, tokens []int64, now time.Time) {
	if b.hash(k.instance, k.id) > b.sample {
		return
	}
	content := b.hash(tokens...)
	x := b.at[k]
	if x != nil && x.tokens != content {
		b.evicted(x, k.instance, now)
		b.forget(k, x)
		x = nil
	}
	if x == nil {
		if len(b.at) >= maxBlocks { // somebody makes room: most are of engines that have ended
			for other, y := range b.at {
				b.forget(other, y)
				break
			}
		}
		b.at[k] = &block{model: model, tokens: content, owners: map[string]struct{}{}, born: now, used: now}
		b.own(k, request)
		return
	}
	if _, ok := x.owners[request]; ok {
		return // told again
	}
	if len(x.owners) == 0 {
		x.used = now
		if len(x.uses) == maxUses {
			x.uses = append(x.uses[:0], x.uses[1:]...)
		}
		x.uses = append(x.uses, now)
	}
	b.own(k, request)
}

// own notes that a request uses a block. mu is held.
func (b *blocks) own(k blockKey, request string) {
	if b.owners >= maxOwners {
		return
	}
	of := b.requests[request]
	if of == nil {
		request = cloneString(request)
		of = map[blockKey]struct{}{}
		b.requests[request] = of
	}
	of[k] = struct{}{}
	b.at[k].owners[request] = struct{}{}
	b.owners++
}

// disown ends that. mu is held.
func (b *blocks) disown(k blockKey, request string) {
	of := b.requests[request]
	delete(of, k)
	if len(of) == 0 {
		delete(b.requests, request)
	}
	delete(b.at[k].owners, request)
	b.owners--
}

// forget ends all that is known of a block. mu is held.
func (b *blocks) forget(k blockKey, x *block) {
	for request := range x.owners {
		b.disown(k, request)
	}
	delete(b.at, k)
}

// evicted tells of a block whose content was replaced.
func (b *blocks) evicted(x *block, instance int64, now time.Time) {
	t := b.times(blockLabels{instance, x.model})
	t.lifetime.Update(now.Sub(x.born).Seconds())
	t.idle.Update(now.Sub(x.used).Seconds())
	for i := 1; i < len(x.uses); i++ {
		t.reuse.Update(x.uses[i].Sub(x.uses[i-1]).Seconds())
	}
}

// RequestEnded notes that a request uses no block any more.
func (m *Metrics) RequestEnded(id string) {
	b := m.blocks
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range b.requests[id] {
		b.disown(k, id)
	}
}

func (b *blocks) times(l blockLabels) *blockTimes {
	build := func(instance, model string) *blockTimes {
		h := func(name string) *vm.PrometheusHistogram {
			return b.set.GetOrCreatePrometheusHistogramExt(series(name, "instance_id", instance, "model_name", model), gapBounds)
		}
		return &blockTimes{lifetime: h(nameBlockLifetime), idle: h(nameBlockIdle), reuse: h(nameBlockReuse)}
	}
	t, ok := b.by.get(l, func() (blockLabels, *blockTimes) { return l, build(strconv.FormatInt(l.instance, 10), l.model) })
	if !ok {
		t = build(Other, Other)
	}
	return t
}

func (b *blocks) hash(list ...int64) uint64 {
	var h maphash.Hash
	h.SetSeed(b.seed)
	var word [8]byte
	for _, v := range list {
		binary.LittleEndian.PutUint64(word[:], uint64(v))
		_, _ = h.Write(word[:]) // does not fail
	}
	return h.Sum64()
}
