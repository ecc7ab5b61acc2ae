package hash

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
)

// trie remembers prompts by their raw bytes, one chunk a step, so that prompts
// with a common beginning share its bytes, and finding the longest known
// beginning of a prompt takes no more than comparing it.
//
// A node's children differ in their first chunk and are found by it: by trying
// the child that was used last, or else through a map keyed by a seeded hash of
// the chunk's bytes. Thus nobody can make a lookup compare with more than one
// candidate that fails, whatever they put in. A lone path is one node, however
// long; a prompt that grows extends its node in place.
//
// Memory is bounded by bytes; what goes is the leaf used longest ago. Lookups
// compare outside of the lock, on edges that never change; under it there are
// only pointer moves, as many as nodes on the path.
type trie struct {
	seed  maphash.Seed
	limit int64 // bytes

	mu       sync.Mutex
	root     node               // guarded by mu, like all nodes
	children map[childKey]*node // guarded by mu
	nextID   uint64             // guarded by mu
	// lru is the sentinel of a ring of all nodes but the root, most recent
	// first. A node stands before its descendants: the last one is a leaf.
	lru     node   // guarded by mu
	bytes   int64  // guarded by mu; cost of all nodes but the root
	nodes   int    // guarded by mu
	evicted uint64 // guarded by mu
}

// childKey finds a child: by its parent and a hash of its first chunk.
type childKey struct {
	parent uint64
	first  uint64
}

// node is the end of a path from the root: a list of whole chunks, the last of
// which are its edge.
type node struct {
	edge    *edge
	id      uint64 // of the place where the edge ends; children are keyed by it
	key     childKey
	parent  *node
	kids    int
	hint    *node // the child used last
	claimed bool  // somebody extends edge into its spare capacity
	gone    bool  // evicted

	recent     [4]*Prompt // prompts that end on this edge, by turns
	recentNext int

	prev, next *node // in lru
}

// nodeCost is the memory of a node beside its edge: the node, the edge's head,
// a map entry, and its recent prompts.
const nodeCost = 640

func newTrie(limit int64) *trie {
	t := &trie{seed: maphash.MakeSeed(), limit: limit, children: make(map[childKey]*node)}
	t.root.edge = rootEdge
	t.lru.prev, t.lru.next = &t.lru, &t.lru
	return t
}

// place is a position in the trie: behind the first chunks of the edge that a
// node had when it was found there.
type place struct {
	node   *node
	edge   *edge
	chunks int // of edge
}

// depth returns the number of chunks before the place.
func (p place) depth() int { return p.edge.depth + p.chunks }

// atEnd reports whether the place is behind the whole edge.
func (p place) atEnd() bool { return p.chunks == len(p.edge.ends) }

// walk finds how far the first whole chunks of a prompt are known. It returns
// the place and how many bytes of body are before it.
func (t *trie) walk(body []byte, chunkSize, whole int) (at place, used int) {
	at = place{node: &t.root, edge: rootEdge}
	for at.depth() < whole && at.atEnd() {
		rest := body[used:]
		child, e, kids := t.hinted(at.node)
		if kids == 0 {
			break
		}
		if e == nil || !bytes.HasPrefix(rest, e.first()) {
			child, e = t.find(at.node, rest, chunkSize)
		}
		if e == nil {
			break
		}
		n := e.match(rest, whole-at.depth())
		if n == 0 { // another chunk with the same hash
			break
		}
		at = place{node: child, edge: e, chunks: n}
		used += e.end(n)
	}
	return at, used
}

// hinted returns the child of a node that was used last, if it is still there,
// and how many children there are.
func (t *trie) hinted(n *node) (child *node, e *edge, kids int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.hint == nil {
		return nil, nil, n.kids
	}
	return n.hint, n.hint.edge, n.kids
}

// find looks a child up by the chunk that body begins with.
func (t *trie) find(n *node, body []byte, chunkSize int) (*node, *edge) {
	width, err := skipInts(body, chunkSize)
	if err != nil {
		return nil, nil
	}
	first := maphash.Bytes(t.seed, body[:width])
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.children[childKey{n.id, first}]
	if c == nil {
		return nil, nil
	}
	n.hint = c
	return c, c.edge
}

// prompt returns the prompt of count tokens that ends at a place, and marks the
// path to it as used.
func (t *trie) prompt(at place, count int) *Prompt {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.touch(at.node)
	for _, p := range at.node.recent {
		if p != nil && p.tokens == count {
			return p
		}
	}
	p := &Prompt{chunks: slices.Clip(at.edge.chain[:at.depth()]), tokens: count}
	at.node.remember(p)
	return p
}

// remember keeps a prompt, unless it is one with an error, for the next lookup.
func (n *node) remember(p *Prompt) {
	if p.err != nil {
		return
	}
	n.recent[n.recentNext%len(n.recent)] = p
	n.recentNext++
}

// forget drops the prompts, whose chunks may be slices of another edge's chain.
func (n *node) forget() { n.recent = [len(n.recent)]*Prompt{} }

// claim gives the caller the spare capacity of the edge at a place, to extend
// it in place: then it must call grow or release. Only the end of a leaf can be
// claimed, by one caller at a time. busy means that another one is at it.
func (t *trie) claim(at place) (ok, busy bool) {
	if at.node == &t.root || !at.atEnd() {
		return false, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := at.node
	if n.gone || n.edge != at.edge || n.kids > 0 {
		return false, false
	}
	if n.claimed {
		return false, true
	}
	n.claimed = true
	return true, false
}

// release gives a claim back without growing.
func (t *trie) release(n *node) {
	t.mu.Lock()
	n.claimed = false
	t.mu.Unlock()
}

// grow ends a claim: e, which extends the edge at a place, takes over. Where the
// node has changed meanwhile, e is not remembered.
func (t *trie) grow(at place, e *edge, p *Prompt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := at.node
	n.claimed = false
	if n.gone || n.edge != at.edge || n.kids > 0 {
		return
	}
	t.setEdge(n, e)
	n.remember(p)
	t.touch(n)
	t.evict()
}

// insert adds e, the chunks that follow a place. Where the place has changed
// meanwhile or e is there already, e is not remembered.
func (t *trie) insert(at place, e *edge, p *Prompt) {
	first := maphash.Bytes(t.seed, e.first())
	var head, tail *edge
	if !at.atEnd() {
		head, tail = at.edge.head(at.chunks), at.edge.tail(at.chunks)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	parent := at.node
	if parent.gone || parent.edge != at.edge {
		return
	}
	if head != nil {
		parent = t.split(parent, head, tail)
	}
	key := childKey{parent.id, first}
	if t.children[key] != nil { // somebody was faster, or a hash collision
		t.touch(parent)
		return
	}
	n := &node{key: key}
	t.nextID++
	n.id = t.nextID
	t.attach(n, parent, e)
	n.remember(p)
	t.touch(n)
	t.evict()
}

// split puts a new node with the first part of n's edge between n and its
// parent, and leaves the rest to n. It returns the new node.
func (t *trie) split(n *node, head, tail *edge) *node {
	if n.claimed { // the claim is on the old edge; nobody may write there twice
		tail.raw, tail.ends, tail.chain = slices.Clip(tail.raw), slices.Clip(tail.ends), slices.Clip(tail.chain)
	}
	h := &node{key: n.key}
	t.nextID++
	h.id = t.nextID
	parent := n.parent
	t.detach(n)
	n.key = childKey{h.id, maphash.Bytes(t.seed, tail.first())}
	t.attach(h, parent, head)
	t.attach(n, h, tail)
	return h
}

// attach hangs a node with its edge below a parent, as the most recent one.
func (t *trie) attach(n, parent *node, e *edge) {
	n.parent = parent
	parent.kids++
	parent.hint = n
	t.children[n.key] = n
	n.edge = rootEdge
	t.setEdge(n, e)
	t.bytes += nodeCost
	t.nodes++
	t.toFront(n)
}

// detach takes a node, with all that hangs below it, off its parent.
func (t *trie) detach(n *node) {
	n.parent.kids--
	if n.parent.hint == n {
		n.parent.hint = nil
	}
	delete(t.children, n.key)
	t.bytes -= nodeCost + n.edge.cost()
	t.nodes--
	t.unlink(n)
}

// setEdge replaces the edge of a node.
func (t *trie) setEdge(n *node, e *edge) {
	t.bytes += e.cost() - n.edge.cost()
	n.edge = e
	n.forget()
}

// touch makes the nodes of a path the most recently used ones, a node before
// its child.
func (t *trie) touch(n *node) {
	if n.gone {
		return
	}
	for n != &t.root {
		t.unlink(n)
		t.toFront(n)
		n.parent.hint = n
		n = n.parent
	}
}

func (t *trie) toFront(n *node) {
	n.next, n.prev = t.lru.next, &t.lru
	n.next.prev, n.prev.next = n, n
}

func (t *trie) unlink(n *node) { n.prev.next, n.next.prev = n.next, n.prev }

// evict drops leaves until the bytes are within the limit.
func (t *trie) evict() {
	for t.bytes > t.limit {
		n := t.lru.prev
		if n == &t.lru || n.kids > 0 {
			panic("hash: the least recently used node is not a leaf")
		}
		t.detach(n)
		n.gone = true
		n.forget()
		t.evicted++
	}
}
