package mpserver

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// maxPrefetches bounds the results that nobody has fetched; the oldest go.
const maxPrefetches = 1024

// prefetches keeps the results of POST /cache/prefetches until they are fetched.
type prefetches struct {
	mu   sync.Mutex
	done *simplelru.LRU[string, httpapi.PrefetchResult] // guarded by mu
}

func (p *prefetches) add(id string, r httpapi.PrefetchResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done, _ = simplelru.NewLRU[string, httpapi.PrefetchResult](maxPrefetches, nil)
	}
	p.done.Add(id, r)
}

func (p *prefetches) take(id string) (httpapi.PrefetchResult, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		return httpapi.PrefetchResult{}, false
	}
	r, ok := p.done.Get(id)
	p.done.Remove(id)
	return r, ok
}

// Prefetch implements [httpapi.Server]. Nothing is loaded, for want of an L2: the
// chunks of the prefix that L1 holds become recently used, and are the keys found.
func (f surface) Prefetch(r httpapi.PrefetchRequest) (id string, chunks int, err error) {
	s := f.s
	lay, _ := s.instances.model(r.Model, r.WorldSize)
	if lay == nil {
		return "", 0, httpapi.ErrNoLayout
	}
	if n := len(r.Tokens); n > httpapi.MaxPrefetchTokens {
		return "", 0, fmt.Errorf("too many token_ids in a single request (limit=%d, got=%d)", httpapi.MaxPrefetchTokens, n)
	}
	if len(r.Tokens) < s.opt.ChunkSize {
		return "", 0, nil
	}
	if bad := httpapi.CheckSalt(r.Salt); bad != "" {
		return "", 0, errors.New(bad)
	}
	tokens := make([]uint32, len(r.Tokens))
	for i, t := range r.Tokens {
		if t < 0 || t > math.MaxUint32 {
			return "", 0, fmt.Errorf("token_ids[%d] must be between 0 and 4294967295, got %d", i, t)
		}
		tokens[i] = uint32(t)
	}
	prompt, _, err := s.hasher.Prompt(wire.AppendTokens(nil, tokens), len(tokens))
	if err != nil {
		return "", 0, err
	}
	key := wire.Key{WorldSize: r.WorldSize}
	ranks, ok := key.KVRanks(nil)
	if !ok {
		return "", 0, httpapi.ErrNoLayout
	}
	hashes := prompt.Chunks()
	groups := lay.lookupGroups(r.Salt)
	objects := len(ranks) * len(groups) // of each chunk
	res := httpapi.PrefetchResult{TotalKeys: len(hashes) * objects}
	lease, _ := s.cache.Lookup(l1cache.LookupRequest{Groups: groups, Ranks: ranks, Hashes: hashes, Readers: 1}, nil)
	if lease != nil {
		res.FoundKeys = lease.Hit() * objects
		lease.Release()
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // it does not fail
	id = hex.EncodeToString(random[:])
	s.warm.add(id, res)
	return id, len(hashes), nil
}

// PrefetchResult implements [httpapi.Server].
func (f surface) PrefetchResult(id string) (httpapi.PrefetchResult, bool) { return f.s.warm.take(id) }
