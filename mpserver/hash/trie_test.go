package hash

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// check walks the whole cache and reports the first broken invariant.
func (h *Hasher) check() error {
	t := h.cache
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bytes > t.limit {
		return fmt.Errorf("%d bytes, limit %d", t.bytes, t.limit)
	}
	kids := map[*node]int{}
	seen := map[*node]bool{&t.root: true}
	ids := map[uint64]bool{t.root.id: true}
	var bytes int64
	for n := t.lru.next; n != &t.lru; n = n.next {
		switch {
		case n.gone:
			return fmt.Errorf("node %d is evicted and in the list", n.id)
		case n.next.prev != n || n.prev.next != n:
			return fmt.Errorf("node %d: broken links", n.id)
		case !seen[n.parent]:
			return fmt.Errorf("node %d is more recent than its parent", n.id)
		case ids[n.id]:
			return fmt.Errorf("node %d: id used twice", n.id)
		case t.children[n.key] != n || n.key.parent != n.parent.id:
			return fmt.Errorf("node %d: not found by its key", n.id)
		case n.key.first != maphash.Bytes(t.seed, n.edge.first()):
			return fmt.Errorf("node %d: key is not of its first chunk", n.id)
		case n.hint != nil && (n.hint.gone || n.hint.parent != n):
			return fmt.Errorf("node %d: hint is no child", n.id)
		case n.edge.depth != n.parent.edge.depth+len(n.parent.edge.ends):
			return fmt.Errorf("node %d: depth %d below %d", n.id, n.edge.depth, n.parent.edge.depth)
		case n.edge.backing < len(n.edge.raw) || n.edge.backing > 3*len(n.edge.raw)+4096:
			return fmt.Errorf("node %d: array of %d for %d bytes", n.id, n.edge.backing, len(n.edge.raw))
		}
		seen[n], ids[n.id] = true, true
		kids[n.parent]++
		bytes += nodeCost + n.edge.cost()
		if err := h.checkEdge(n); err != nil {
			return err
		}
	}
	for n := range seen {
		if n.kids != kids[n] {
			return fmt.Errorf("node %d: %d kids, %d counted", n.id, kids[n], n.kids)
		}
	}
	if bytes != t.bytes || len(seen)-1 != t.nodes || len(t.children) != t.nodes {
		return fmt.Errorf("%d bytes in %d nodes, counted %d in %d, %d keys", bytes, len(seen)-1, t.bytes, t.nodes, len(t.children))
	}
	return nil
}

// checkEdge hashes the bytes of an edge again.
func (h *Hasher) checkEdge(n *node) error {
	e := n.edge
	if len(e.chain) != e.depth+len(e.ends) || e.end(len(e.ends)) != len(e.raw) || len(e.ends) == 0 {
		return fmt.Errorf("node %d: %d hashes, %d chunks behind %d, %d bytes", n.id, len(e.chain), len(e.ends), e.depth, len(e.raw))
	}
	if d := e.depth; d > 0 && !slices.Equal(e.chain[:d], n.parent.edge.chain) {
		return fmt.Errorf("node %d: its chain is not that of its parent", n.id)
	}
	c := h.newChain()
	for i := range e.ends {
		if _, err := c.gather(e.raw[e.end(i):e.end(i+1)], h.chunkSize); err != nil {
			return err
		}
		var d Digest
		c.sum(e.last(i, &h.none), &d)
		if d != e.chain[e.depth+i] {
			return fmt.Errorf("node %d: wrong hash of chunk %d", n.id, e.depth+i)
		}
	}
	return nil
}

// pair asks a remembering hasher and a forgetful one and compares.
type pair struct{ cached, plain *Hasher }

func newPair(t testing.TB, o Options) pair {
	t.Helper()
	forget := o
	forget.CacheBytes = -1
	return pair{newHasher(t, o), newHasher(t, forget)}
}

func (p pair) ask(body []byte, count int) error {
	want, wantUsed, wantErr := p.plain.Prompt(body, count)
	got, used, err := p.cached.Prompt(body, count)
	if fmt.Sprint(err) != fmt.Sprint(wantErr) || used != wantUsed {
		return fmt.Errorf("%d tokens: consumed %d (%w), want %d (%w)", count, used, err, wantUsed, wantErr)
	}
	if got == nil {
		return nil // both refused
	}
	if got.Tokens() != count || (got.Err() == nil) != (want.Err() == nil) || !slices.Equal(got.Chunks(), want.Chunks()) {
		return fmt.Errorf("%d tokens: got %d chunks of %d tokens (%w), want %d (%w)",
			count, len(got.Chunks()), got.Tokens(), got.Err(), len(want.Chunks()), want.Err())
	}
	return nil
}

// family is token lists that share beginnings, as conversations do.
func family(r *rand.Rand, known [][]uint64, vocabulary uint64) []uint64 {
	var tokens []uint64
	if len(known) > 0 && r.IntN(8) > 0 {
		old := known[r.IntN(len(known))]
		tokens = slices.Clone(old[:r.IntN(len(old)+1)])
		if r.IntN(3) == 0 {
			tokens = slices.Clone(old)
		}
	}
	for range r.IntN(40) * r.IntN(5) {
		tokens = append(tokens, r.Uint64N(vocabulary))
	}
	return tokens
}

func TestCacheAgreesWithNoCache(t *testing.T) {
	for _, o := range []Options{
		{ChunkSize: 4, CacheBytes: 16 << 10},
		{ChunkSize: 16, CacheBytes: 64 << 10},
		{ChunkSize: 16, CacheBytes: 1 << 20, Algorithm: SHA256CBOR},
		{ChunkSize: 1, CacheBytes: 256 << 10},
	} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			p := newPair(t, o)
			r := rand.New(rand.NewPCG(1, uint64(o.ChunkSize)))
			var known [][]uint64
			for i := range 600 {
				tokens := family(r, known, 1<<uint(1+r.IntN(34)))
				if len(known) < 32 {
					known = append(known, tokens)
				} else {
					known[r.IntN(32)] = tokens
				}
				body := append(encode(tokens), "tail of the frame"...)
				require.NoError(t, p.ask(body, len(tokens)))
				if i%25 == 0 {
					require.NoError(t, p.cached.check())
				}
			}
			require.NoError(t, p.cached.check())
			s := p.cached.CacheStats()
			if s.KnownChunks == 0 || s.Nodes == 0 || s.LimitBytes != o.CacheBytes {
				t.Errorf("nothing was remembered: %+v", s)
			}
		})
	}
}

func TestSamePrefixContinuesDifferently(t *testing.T) {
	const chunk = 16
	p := newPair(t, Options{ChunkSize: chunk})
	base := randomTokens(1, 8*chunk)
	require.NoError(t, p.ask(encode(base), len(base)))
	for cut := range len(base) {
		other := append(slices.Clone(base[:cut]), randomTokens(uint64(cut+2), 3*chunk)...)
		require.NoError(t, p.ask(encode(other), len(other)))
		require.NoError(t, p.cached.check())
	}
	// Shorter ones, and the count says so although the frame goes on.
	for n := range base {
		require.NoError(t, p.ask(encode(base), n))
	}
	require.NoError(t, p.ask(encode(base), len(base)))
}

func TestWidthsDoNotMatterToHashes(t *testing.T) {
	h := newHasher(t, Options{ChunkSize: 4})
	want, _, err := h.Prompt([]byte{1, 2, 3, 4}, 4)
	require.NoError(t, err)
	for _, body := range [][]byte{
		{0xcc, 1, 2, 3, 4},
		{1, 0xcd, 0, 2, 0xd0, 3, 4},
		{0xce, 0, 0, 0, 1, 0xcf, 0, 0, 0, 0, 0, 0, 0, 2, 0xd1, 0, 3, 0xd2, 0, 0, 0, 4},
		{1, 2, 3, 0xd3, 0, 0, 0, 0, 0, 0, 0, 4},
	} {
		for range 2 {
			p, n, err := h.Prompt(append(body, 9), 4)
			require.NoError(t, err)
			if n != len(body) || p.Chunks()[0] != want.Chunks()[0] {
				t.Errorf("%x: consumed %d, want %d, hash %x, want %x", body, n, len(body), p.Chunks(), want.Chunks())
			}
		}
	}
}

func TestTokenOutOfRange(t *testing.T) {
	const chunk = 4
	good := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
	for at := range good {
		tokens := slices.Clone(good)
		tokens[at] = 1 << 32
		body := encode(tokens)
		p := newPair(t, Options{ChunkSize: chunk})
		require.NoError(t, p.ask(encode(good), len(good)))
		for range 3 {
			require.NoError(t, p.ask(body, len(tokens)))
			got, n, err := p.cached.Prompt(body, len(tokens))
			require.NoError(t, err)
			require.Equal(t, len(body), n)
			if at < 12 {
				require.ErrorIs(t, got.Err(), ErrTokenRange)
				require.Len(t, got.Chunks(), at/chunk)
			} else { // the tail is not hashed
				require.NoError(t, got.Err())
				require.Len(t, got.Chunks(), 3)
			}
		}
		require.NoError(t, p.cached.check())
	}
	// sha256_cbor has a form for every integer.
	h := newHasher(t, Options{ChunkSize: 2, Algorithm: SHA256CBOR})
	p, _, err := h.Prompt([]byte{0xff, 0xcf, 255, 255, 255, 255, 255, 255, 255, 255}, 2)
	require.NoError(t, err)
	require.NoError(t, p.Err())
	require.Len(t, p.Chunks(), 1)
}

func TestMalformedArrays(t *testing.T) {
	h := newHasher(t, Options{ChunkSize: 4})
	_, _, err := h.Prompt([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, 9)
	require.NoError(t, err)
	f := func(body []byte, count int, want error) {
		t.Helper()
		for range 2 {
			if p, n, err := h.Prompt(body, count); err == nil {
				t.Errorf("%x: accepted, %d chunks, %d bytes", body, len(p.Chunks()), n)
			} else {
				require.ErrorIs(t, err, want)
			}
		}
	}
	f(nil, 1, ErrTruncated)
	f([]byte{1, 2, 3}, 4, ErrTruncated)
	f([]byte{1, 2, 3}, -1, ErrTruncated)
	f([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, 1<<40, ErrTruncated)
	f([]byte{1, 2, 3, 0xcd, 0}, 4, ErrTruncated)
	f([]byte{1, 2, 3, 4, 0xcd, 0}, 5, ErrTruncated)
	f([]byte{1, 2, 3, 4, 5, 6, 7, 0xce, 1, 2, 3}, 8, ErrTruncated)
	f([]byte{1, 2, 3, 4, 5, 6, 7, 0xc3}, 8, ErrNotInteger)
	f([]byte{1, 2, 3, 4, 0xc3}, 5, ErrNotInteger)
	f([]byte{1, 2, 3, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0}, 4, ErrNotInteger)
	f([]byte{0xa1, 'x'}, 1, ErrNotInteger)
	require.NoError(t, h.check())
}

func TestGrowingPromptStaysOneNode(t *testing.T) {
	const chunk = 16
	p := newPair(t, Options{ChunkSize: chunk})
	tokens := randomTokens(1, 150*chunk)
	body := encode(tokens)
	for n := 0; n <= len(tokens); n += 7 {
		require.NoError(t, p.ask(body, n))
	}
	require.NoError(t, p.cached.check())
	s := p.cached.CacheStats()
	if s.Nodes != 1 {
		t.Errorf("nodes: got %d, want 1", s.Nodes)
	}
	if s.HashedChunks > 150 {
		t.Errorf("hashed %d chunks of a prompt of 150", s.HashedChunks)
	}
}

func TestSharedPrefixIsStoredOnce(t *testing.T) {
	const chunk = 256
	p := newPair(t, Options{ChunkSize: chunk, CacheBytes: 8 << 20})
	system := randomTokens(1, 60*chunk)
	shared := int64(len(encode(system)))
	const users = 40
	for round := range 2 {
		for u := range users {
			tokens := append(slices.Clone(system), randomTokens(uint64(100+u), 4*chunk)...)
			require.NoError(t, p.ask(encode(tokens), len(tokens)))
		}
		s := p.cached.CacheStats()
		if want := uint64(60 + 4*users); s.HashedChunks != want {
			t.Errorf("round %d: hashed %d chunks, want %d", round, s.HashedChunks, want)
		}
		if s.Evicted > 0 || s.Bytes > 4*shared+users*(4*chunk*5+64*40+2*nodeCost) {
			t.Errorf("round %d: %+v for a prefix of %d bytes", round, s, shared)
		}
	}
	require.NoError(t, p.cached.check())
}

func TestEvictionKeepsWhatIsUsed(t *testing.T) {
	const chunk = 16
	p := newPair(t, Options{ChunkSize: chunk, CacheBytes: 256 << 10})
	hot := randomTokens(1, 64*chunk)
	body := encode(hot)
	require.NoError(t, p.ask(body, len(hot)))
	for i := range 500 {
		cold := randomTokens(uint64(i+10), 8*chunk)
		require.NoError(t, p.ask(encode(cold), len(cold)))
		before := p.cached.CacheStats()
		require.NoError(t, p.ask(body, len(hot)))
		if s := p.cached.CacheStats(); s.HashedChunks != before.HashedChunks {
			t.Fatalf("after %d others the hot prompt was hashed again: %+v", i, s)
		}
	}
	if s := p.cached.CacheStats(); s.Evicted == 0 {
		t.Errorf("nothing was evicted: %+v", s)
	}
	require.NoError(t, p.cached.check())
}

func TestPromptTooLargeIsNotRemembered(t *testing.T) {
	p := newPair(t, Options{ChunkSize: 4, CacheBytes: 8 << 10})
	tokens := randomTokens(1, 2000)
	for range 2 {
		require.NoError(t, p.ask(encode(tokens), len(tokens)))
	}
	if s := p.cached.CacheStats(); s.Bytes != 0 || s.Nodes != 0 {
		t.Errorf("remembered: %+v", s)
	}
	// Nor does a remembered one grow beyond that.
	for n := 0; n < len(tokens); n += 20 {
		require.NoError(t, p.ask(encode(tokens), n))
	}
	require.NoError(t, p.cached.check())
}

func TestConcurrentUse(t *testing.T) {
	const chunk, workers, rounds = 8, 4, 400
	p := newPair(t, Options{ChunkSize: chunk, CacheBytes: 64 << 10})
	base := randomTokens(1, 60*chunk)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 7))
			for range rounds {
				// The same growth in all of them, and forks of it.
				tokens := slices.Clone(base[:r.IntN(len(base)+1)])
				if r.IntN(2) == 0 {
					tokens = append(tokens, randomTokens(r.Uint64N(4), r.IntN(10*chunk))...)
				}
				if err := p.ask(encode(tokens), len(tokens)); err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.NoError(t, p.cached.check())
}

func TestConcurrentGrowth(t *testing.T) {
	const chunk = 4
	for round := range 10 {
		p := newPair(t, Options{ChunkSize: chunk})
		tokens := randomTokens(uint64(round), 100*chunk)
		body := encode(tokens)
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for w := range errs {
			wg.Go(func() {
				for n := 0; n <= len(tokens) && errs[w] == nil; n += chunk {
					errs[w] = p.ask(body, n)
				}
			})
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.NoError(t, p.cached.check())
	}
}

func TestAllocations(t *testing.T) {
	const n = 8192
	o := Options{ChunkSize: 256, CacheBytes: -1}
	body := encode(randomTokens(1, n))
	h := newHasher(t, o)
	f := func(name string, h *Hasher, want float64) {
		t.Helper()
		got := testing.AllocsPerRun(100, func() {
			if _, _, err := h.Prompt(body, n); err != nil {
				t.Error(err)
			}
		})
		if got > want {
			t.Errorf("%s: got %g allocations, want at most %g", name, got, want)
		}
	}
	// The race detector empties sync.Pool at random; the scratch is not counted.
	if !raceEnabled {
		f("uncached", h, 3)
	}
	f("seen", newHasher(t, Options{ChunkSize: 256}), 0)
}

// A call that claimed an edge keeps writing behind it while another one splits
// it: what the rest of the edge grows into then must be other memory.
func TestSplitOfClaimedEdge(t *testing.T) {
	const chunk = 4
	p := newPair(t, Options{ChunkSize: chunk})
	tokens := randomTokens(1, 40*chunk)
	body := encode(tokens)
	for n := 20; n <= 30; n += 5 { // growing leaves spare capacity
		require.NoError(t, p.ask(body, n*chunk))
	}
	cache := p.cached.cache
	at, _ := cache.walk(body, chunk, 30)
	require.Equal(t, 30, at.depth())
	claimed, busy := cache.claim(at)
	require.True(t, claimed && !busy)
	require.Greater(t, cap(at.edge.raw), len(at.edge.raw)+chunk*5)

	fork := append(slices.Clone(tokens[:2*chunk]), randomTokens(2, 2*chunk)...)
	require.NoError(t, p.ask(encode(fork), len(fork)))
	require.NoError(t, p.ask(body, 31*chunk)) // busy: not remembered
	cache.release(at.node)
	require.NoError(t, p.ask(body, 31*chunk))
	spare := at.edge.raw[len(at.edge.raw):cap(at.edge.raw)]
	for i := range spare { // the first caller goes on writing
		spare[i] = 0xc1
	}
	require.NoError(t, p.cached.check())
	require.NoError(t, p.ask(body, 31*chunk))
}
