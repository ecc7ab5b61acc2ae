package mpserver

import (
	"context"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// maxP2PTasks bounds the lookups of peers whose result was not fetched.
const maxP2PTasks = 1024

// p2pTasks remembers how many addresses each lookup of a peer is owed. This
// server shares nothing with peers yet, so every address is invalid: the peer
// counts a miss at once. A list of another length would raise in the peer.
type p2pTasks struct {
	mu   sync.Mutex
	next int64                      // guarded by mu
	lru  *simplelru.LRU[int64, int] // guarded by mu
}

func (t *p2pTasks) add(keys int) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lru == nil {
		t.lru, _ = simplelru.NewLRU[int64, int](maxP2PTasks, nil)
	}
	id := t.next
	t.next++
	if keys >= 0 {
		t.lru.Add(id, keys)
	}
	return id
}

func (t *p2pTasks) take(id int64) (keys int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lru == nil {
		return 0, false
	}
	if keys, ok = t.lru.Get(id); ok {
		t.lru.Remove(id)
	}
	return keys, ok
}

func (t *p2pTasks) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lru == nil {
		return 0
	}
	return t.lru.Len()
}

func handleP2PLookup(s *Server, _ context.Context, r *request) reply {
	keys, err := wire.DecodeObjectKeys(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	return value(wire.AppendInt(nil, s.peers.add(len(keys))))
}

// failP2PLookup answers a task whose query stays empty.
func failP2PLookup(s *Server, _ *request) reply {
	return value(wire.AppendInt(nil, s.peers.add(-1)))
}

func handleP2PQuery(s *Server, _ context.Context, r *request) reply {
	id, err := wire.DecodeInt(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	n, ok := s.peers.take(id)
	if !ok {
		return empty
	}
	return value(wire.AppendInvalidAddresses(nil, n))
}

func handleP2PUnlock(s *Server, _ context.Context, r *request) reply {
	if _, err := wire.DecodeObjectKeys(r.payloads[0]); err != nil {
		return s.failed(r, "payload")
	}
	return empty
}
