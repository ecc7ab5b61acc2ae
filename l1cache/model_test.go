package l1cache

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/invariants"
)

// The property test drives a cache with random operations beside a plain model
// of it: maps, slices and brute force. After each operation the two agree on
// what exists, who holds it and what its bytes are; no two live objects overlap,
// and memory in a writer's hands holds what that writer wrote.

// chooser is the source of the choices: a seeded generator, or a fuzzer's bytes.
type chooser interface {
	// n returns a number in [0, limit).
	n(limit int) int
	// more tells whether to go on.
	more() bool
}

type seeded struct {
	r    *rand.Rand
	left int
}

func (s *seeded) n(limit int) int { return s.r.IntN(limit) }
func (s *seeded) more() bool      { s.left--; return s.left >= 0 }

type scripted struct{ b []byte }

func (s *scripted) n(limit int) int {
	if len(s.b) == 0 {
		return 0
	}
	v := int(s.b[0])
	s.b = s.b[1:]
	return v % limit
}
func (s *scripted) more() bool { return len(s.b) > 0 }

type modelKey struct {
	scope, rank, hash int
}

type modelObject struct {
	key       modelKey
	off, n    int64
	state     state
	form      Form
	seed      byte // of the pattern; 0: nothing written yet
	stamp     int
	holds     map[*modelLease]int
	transfers int
}

type modelReservation struct {
	res      *Reservation
	objects  []*modelObject
	deadline time.Time
	stage    stage
	expired  bool
}

type modelLease struct {
	lease    *Lease
	req      LookupRequest
	scopes   []int
	hit      int
	entries  map[*modelObject]int // holds left of living and dead objects
	deadline time.Time
	yield    bool
}

type modelTransfer struct {
	tr      *Transfer
	objects []*modelObject
}

type model struct {
	t       testing.TB
	ch      chooser
	uniform bool // all objects of one step: the order of eviction is exact
	evict   bool
	clock   *clock
	arena   *Arena
	c       *Cache
	total   int64 // steps, when grown
	ready   int64 // steps

	index     map[modelKey]*modelObject
	dead      []*modelObject // out of the index, with memory
	res       []*modelReservation
	leases    []*modelLease
	transfers []*modelTransfer
	stamp     int
	seed      byte
	settled   int // callbacks heard
	waiting   int // callbacks promised
}

const (
	modelHashes = 12
	modelRanks  = 2
)

var modelScopes = []Scope{{Model: "m"}, {Model: "m", Group: 1}, {Model: "m", Salt: "s"}, {Model: "m", Salt: "s", Group: 1}}

func newModel(t testing.TB, ch chooser) *model {
	t.Helper()
	m := &model{t: t, ch: ch, clock: newClock(), index: map[modelKey]*modelObject{}, uniform: ch.n(2) == 0, evict: ch.n(8) != 0, total: 48}
	if !m.uniform {
		m.total = 96
	}
	m.arena = fakeArena(m.total*step + 17) // a tail smaller than a step stays unused
	m.ready = 16
	m.arena.growTo(m.ready * step)
	m.c = newCache(t, Options{
		Arena: m.arena, AlignBytes: step, Evict: m.evict, Now: m.clock.Now, WriteTTL: 100 * time.Second, ReadTTL: 100 * time.Second,
	})
	return m
}

func (m *model) run() {
	for m.ch.more() {
		m.operation()
		m.verify()
	}
	// Everything comes back when all let go.
	for _, l := range m.leases {
		l.lease.Release()
	}
	for _, tr := range m.transfers {
		tr.tr.Done()
	}
	for _, r := range m.res {
		r.res.Release()
	}
	m.c.Clear(false)
	require.Zero(m.t, m.c.Stats().UsedBytes)
	require.Zero(m.t, m.c.Stats().Scopes)
	require.Equal(m.t, m.waiting, m.settled, "every waiting lookup hears once")
	require.NoError(m.t, m.c.Check())
}

func (m *model) operation() {
	switch m.ch.n(24) {
	case 0, 1, 2, 3, 4, 5:
		m.reserve()
	case 6, 7, 8, 9:
		m.publish()
	case 10:
		m.endReservation()
	case 11:
		m.write()
	case 12, 13, 14:
		m.lookup()
	case 15, 16, 17:
		m.take()
	case 18:
		m.done()
	case 19:
		m.free()
	case 20:
		m.touch()
	case 21:
		m.clock.advance(time.Duration(m.ch.n(40)) * time.Second)
	case 22:
		m.grow()
	case 23:
		switch m.ch.n(8) {
		case 0:
			m.clear()
		default:
			m.turn()
		}
	}
}

func (m *model) growing() bool { return m.ready < m.total }

func (m *model) grow() {
	if !m.growing() || m.ch.n(3) > 0 {
		return
	}
	m.ready = min(m.total, m.ready+8)
	if m.growing() {
		m.arena.growTo(m.ready * step)
	} else {
		m.arena.growTo(m.arena.SizeBytes())
	}
}

// capacity is how many objects of steps fit when what mayGo allows has gone.
func (m *model) capacity(steps int64, mayGo func(*modelObject) bool) int64 {
	taken := make([]bool, m.ready)
	for _, o := range m.living() {
		if !mayGo(o) {
			for i := o.off / step; i < (o.off+o.n+step-1)/step; i++ {
				taken[i] = true
			}
		}
	}
	var run, sum int64
	for _, t := range taken {
		if !t {
			run++
			continue
		}
		sum += run / steps
		run = 0
	}
	return sum + run/steps
}

// living are all objects with memory.
func (m *model) living() []*modelObject {
	out := slices.Clone(m.dead)
	for _, o := range m.index {
		out = append(out, o)
	}
	return out
}

func evictableInModel(o *modelObject) bool {
	return o.state == published && len(o.holds) == 0 && o.transfers == 0
}

func yieldableInModel(o *modelObject) bool {
	for l := range o.holds {
		if !l.yield {
			return false
		}
	}
	return o.state == published && o.transfers == 0
}

func (m *model) touchObject(o *modelObject) {
	m.stamp++
	o.stamp = m.stamp
}

// verify compares everything that can be seen.
func (m *model) verify() {
	require.NoError(m.t, m.c.Check())
	require.Empty(m.t, m.gone())
	var want Stats
	taken := map[int64]bool{}
	for _, o := range m.living() {
		bytes := (o.n + step - 1) / step * step
		want.UsedBytes += bytes
		for i := o.off; i < o.off+bytes; i += step {
			require.False(m.t, taken[i], "two live objects overlap at %d", i)
			taken[i] = true
		}
		switch o.state {
		case published:
			want.Resident++
			want.ResidentBytes += bytes
			if !evictableInModel(o) {
				want.Leased++
				want.LeasedBytes += bytes
			}
		case reserved:
			want.Reserved++
			want.ReservedBytes += bytes
		case filling:
			want.Filling++
			want.FillingBytes += bytes
		case quarantined:
			want.Quarantined++
			want.QuarantinedBytes += bytes
		case orphaned:
			want.Orphaned++
			want.OrphanedBytes += bytes
		}
		if o.seed != 0 && !isPattern(m.arena.Bytes()[o.off:o.off+o.n], o.seed) {
			m.t.Fatalf("object %+v in state %d does not hold what was written to it", o.key, o.state)
		}
	}
	for _, l := range m.leases {
		holds := 0
		for _, n := range l.entries {
			holds += n
		}
		if holds > 0 {
			want.Leases++
		}
		want.LeaseHolds += int64(holds)
	}
	for _, r := range m.res {
		if r.stage == open {
			want.Reservations++
		}
	}
	for _, tr := range m.transfers {
		want.TransferObjects += int64(len(tr.objects))
	}
	got := m.c.Stats()
	require.Equal(m.t, []int64{
		want.Resident, want.ResidentBytes, want.Leased, want.LeasedBytes, want.Reserved, want.ReservedBytes, want.Filling, want.FillingBytes,
		want.Quarantined, want.QuarantinedBytes, want.Orphaned, want.OrphanedBytes, want.UsedBytes,
		want.Leases, want.LeaseHolds, want.Reservations, want.TransferObjects,
	}, []int64{
		got.Resident, got.ResidentBytes, got.Leased, got.LeasedBytes, got.Reserved, got.ReservedBytes, got.Filling, got.FillingBytes,
		got.Quarantined, got.QuarantinedBytes, got.Orphaned, got.OrphanedBytes, got.UsedBytes,
		got.Leases, got.LeaseHolds, got.Reservations, got.TransferObjects,
	})
	// Keep the lists of the model short.
	m.res = slices.DeleteFunc(m.res, func(r *modelReservation) bool { return r.stage == ended && m.ch.n(2) == 0 })
	m.leases = slices.DeleteFunc(m.leases, func(l *modelLease) bool { return len(l.entries) == 0 && m.ch.n(2) == 0 })
}

func TestAgainstModel(t *testing.T) {
	seeds, operations := 24, 1500
	if testing.Short() || invariants.Enabled {
		seeds, operations = 8, 700 // such builds check more and are slower
	}
	for i := range seeds {
		seed := uint64(i)
		ok := t.Run("", func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			}()
			newModel(t, &seeded{r: rand.New(rand.NewPCG(seed, 1)), left: operations}).run()
		})
		if !ok {
			return
		}
	}
}

func FuzzAgainstModel(f *testing.F) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 2))
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(r.UintN(256))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4000 {
			t.Skip("long inputs only repeat themselves")
		}
		newModel(t, &scripted{b}).run()
	})
}
