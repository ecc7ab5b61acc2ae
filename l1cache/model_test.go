package l1cache

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The property test drives a cache with random operations beside a plain model
// of it: maps, slices and brute force. After each operation the two agree on
// what exists, who holds it and what its bytes are; no two live objects overlap,
// and memory in a writer's hands holds what that writer wrote.

// chooser is the source of the choices: a seeded generator, or a fuzzer's bytes.
type chooser interface {
	// n returns a number in [0, max).
	n(max int) int
	// more tells whether to go on.
	more() bool
}

type seeded struct {
	r    *rand.Rand
	left int
}

func (s *seeded) n(max int) int { return s.r.IntN(max) }
func (s *seeded) more() bool    { s.left--; return s.left >= 0 }

type scripted struct{ b []byte }

func (s *scripted) n(max int) int {
	if len(s.b) == 0 {
		return 0
	}
	v := int(s.b[0])
	s.b = s.b[1:]
	return v % max
}
func (s *scripted) more() bool { return len(s.b) > 0 }

type modelKey struct {
	scope, rank, hash int
}

type modelObject struct {
	key       modelKey
	off, n    int64
	state     state
	order     BlockOrder
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

func (m *model) reserve() {
	scope, rank := m.ch.n(len(modelScopes)), m.ch.n(modelRanks)
	from := m.ch.n(modelHashes)
	count := 1 + m.ch.n(min(6, modelHashes-from))
	size := int64(step)
	if !m.uniform {
		size = []int64{step, step - 5, 3 * step, 9*step - 1, 20 * step}[m.ch.n(5)]
	}
	steps := (size + step - 1) / step
	m.expireWrites()
	var fresh []int
	resident, busy := 0, 0
	for i := from; i < from+count; i++ {
		o := m.index[modelKey{scope, rank, i}]
		switch {
		case o == nil:
			fresh = append(fresh, i)
		case o.state == published:
			resident++
		default:
			busy++
		}
	}
	for i := from + count - 1; i >= from; i-- {
		if o := m.index[modelKey{scope, rank, i}]; o != nil && o.state == published {
			m.touchObject(o)
		}
	}
	n := int64(len(fresh))
	fits := func(mayGo func(*modelObject) bool) bool { return m.capacity(steps, mayGo) >= n }
	free := fits(func(*modelObject) bool { return false })
	byEviction, byRevocation := fits(evictableInModel), fits(yieldableInModel)
	var want error
	limit := m.total
	if !m.growing() {
		limit = m.ready
	}
	switch {
	case free:
	case n > limit/steps:
		want = ErrTooLarge
	case m.growing():
		want = ErrGrowing
	case !m.evict || !byRevocation:
		want = ErrNoSpace
	}

	order := BlockOrder(m.ch.n(2))
	res, err := m.c.Reserve(context.Background(), ReserveRequest{
		Scope: modelScopes[scope], Rank: uint32(rank), Hashes: hashes(from, count), SizeBytes: size, Order: order, NoWait: true,
	})
	if want != nil {
		require.ErrorIs(m.t, err, want)
		require.Nil(m.t, res)
		require.Empty(m.t, m.gone(), "a refusal evicts nothing")
		return
	}
	require.NoError(m.t, err)
	gotResident, gotBusy := res.Skipped()
	require.Equal(m.t, []int{resident, busy, len(fresh)}, []int{gotResident, gotBusy, len(res.Slots())})
	gone := m.gone()
	if free || !byEviction {
		require.True(m.t, free == (len(gone) == 0), "evicted %d, free %v", len(gone), free)
	}
	if byEviction {
		for _, o := range gone {
			require.Empty(m.t, o.holds, "nothing held may go while eviction is enough")
		}
	}
	m.drop(gone, m.uniform && byEviction)
	r := &modelReservation{res: res, deadline: m.clock.Now().Add(100 * time.Second), stage: open}
	for i, s := range res.Slots() {
		require.Equal(m.t, fresh[i], from+s.Chunk)
		require.Equal(m.t, size, s.Length)
		require.Zero(m.t, s.Offset%step)
		o := &modelObject{
			key: modelKey{scope, rank, fresh[i]}, off: s.Offset, n: size, state: reserved, order: order, holds: map[*modelLease]int{},
		}
		m.index[o.key] = o
		r.objects = append(r.objects, o)
	}
	if len(r.objects) == 0 {
		r.stage = ended
	}
	m.res = append(m.res, r)
	if m.ch.n(2) == 0 {
		res.BeginFill()
		for _, o := range r.objects {
			o.state = filling
		}
	}
}

// gone are the published objects that the cache has evicted.
func (m *model) gone() (gone []*modelObject) {
	m.c.mu.Lock()
	defer m.c.unlock()
	for k, o := range m.index {
		if o.state != published {
			continue
		}
		id, ok := m.c.scopes.lookup(modelScopes[k.scope])
		if ok {
			_, ok = m.c.index[key{hashOf(k.hash), id, uint32(k.rank)}]
		}
		if !ok {
			gone = append(gone, o)
		}
	}
	return gone
}

// drop takes evicted objects out of the model. When ordered, they have to be
// the least recently used ones.
func (m *model) drop(gone []*modelObject, ordered bool) {
	youngest := 0
	for _, o := range gone {
		require.Equal(m.t, published, o.state)
		require.Zero(m.t, o.transfers)
		youngest = max(youngest, o.stamp)
		for l := range o.holds {
			require.True(m.t, l.yield)
			require.Zero(m.t, l.lease.Outstanding(), "a lease whose object went has been revoked")
		}
		delete(m.index, o.key)
	}
	for _, l := range m.leases {
		if l.yield && len(l.entries) > 0 && l.lease.Outstanding() == 0 {
			m.endLease(l)
		}
	}
	if !ordered || len(gone) == 0 {
		return
	}
	for _, o := range m.index {
		if evictableInModel(o) {
			require.Greater(m.t, o.stamp, youngest, "an older object stays although younger ones went")
		}
	}
}

func (m *model) pick() *modelReservation {
	if len(m.res) == 0 {
		return nil
	}
	return m.res[m.ch.n(len(m.res))]
}

func (m *model) kill(o *modelObject, s state) {
	delete(m.index, o.key)
	o.state = s
	m.dead = append(m.dead, o)
}

func (m *model) forget(o *modelObject) {
	if m.index[o.key] == o {
		delete(m.index, o.key)
	}
	m.dead = slices.DeleteFunc(m.dead, func(d *modelObject) bool { return d == o })
}

func (m *model) expireWrites() {
	for _, r := range m.res {
		if r.stage == open && !m.clock.Now().Before(r.deadline) {
			r.expired = true
			m.detach(r)
		}
	}
}

func (m *model) detach(r *modelReservation) {
	if r.stage == open {
		for _, o := range r.objects {
			m.kill(o, quarantined)
		}
		r.stage = detached
	}
}

func (m *model) finish(r *modelReservation) {
	if r.stage != ended {
		for _, o := range r.objects {
			m.forget(o)
		}
	}
	r.stage, r.objects = ended, nil
}

// write fills slots, whatever the stage of the reservation: clients that were
// stopped wake up late.
func (m *model) write() {
	if r := m.pick(); r != nil && r.stage != ended {
		for _, o := range r.objects {
			m.writeObject(o)
		}
	}
}

func (m *model) writeObject(o *modelObject) {
	m.seed = m.seed%250 + 1
	o.seed = m.seed
	fillPattern(m.arena.Bytes()[o.off:o.off+o.n], o.seed)
}

func fillPattern(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i*7)
	}
}

func isPattern(b []byte, seed byte) bool {
	want := make([]byte, len(b))
	fillPattern(want, seed)
	return bytes.Equal(b, want)
}

func (m *model) publish() {
	r := m.pick()
	if r == nil {
		return
	}
	if r.stage != ended {
		for _, o := range r.objects {
			m.writeObject(o)
		}
	}
	m.expireWrites()
	var keep []bool
	if m.ch.n(4) == 0 {
		for range r.objects {
			keep = append(keep, m.ch.n(3) > 0)
		}
		if len(keep) > 0 && m.ch.n(2) == 0 {
			keep = keep[:len(keep)-1] // what is not named is not kept
		} else {
			keep = append(keep, true)
		}
	}
	want := 0
	if r.stage == open {
		for i := len(r.objects) - 1; i >= 0; i-- {
			o := r.objects[i]
			if keep != nil && (i >= len(keep) || !keep[i]) {
				m.forget(o)
				continue
			}
			o.state = published
			m.touchObject(o)
			want++
		}
		r.stage, r.objects = ended, nil
	} else {
		m.finish(r)
	}
	require.Equal(m.t, want, r.res.Publish(keep))
}

func (m *model) endReservation() {
	r := m.pick()
	if r == nil {
		return
	}
	passed := r.stage == open && !m.clock.Now().Before(r.deadline)
	require.Equal(m.t, r.expired || passed, r.res.Expired())
	switch m.ch.n(4) {
	case 0:
		r.res.Abort()
		m.finish(r)
	case 1:
		r.res.Release()
		m.finish(r)
	case 2:
		r.res.Quarantine()
		m.detach(r)
	case 3:
		r.res.BeginFill()
		if r.stage == open {
			for _, o := range r.objects {
				o.state = filling
			}
		}
	}
}

func (m *model) lookup() {
	l := &modelLease{entries: map[*modelObject]int{}}
	salt := m.ch.n(2) * 2
	for g := range 1 + m.ch.n(2) {
		l.scopes = append(l.scopes, salt+g)
		l.req.Groups = append(l.req.Groups, Group{Scope: modelScopes[salt+g], WindowChunks: max(0, m.ch.n(5)-1)})
	}
	for r := range 1 + m.ch.n(modelRanks) {
		l.req.Ranks = append(l.req.Ranks, uint32(r))
	}
	n := 1 + m.ch.n(modelHashes)
	l.req.Hashes = hashes(0, n)
	l.req.Readers = m.ch.n(4) // 0 counts as 1
	var onSettled func()
	if m.ch.n(2) == 0 {
		onSettled = func() { m.settled++ }
	}
	hit := m.longest(l, func(s state) bool { return s == published })
	hopeful := m.longest(l, func(s state) bool { return s == published || s == filling })
	lease, pending := m.c.Lookup(l.req, onSettled)
	if onSettled != nil && hopeful > hit {
		require.True(m.t, pending)
		require.Nil(m.t, lease)
		m.waiting++
		return
	}
	require.False(m.t, pending)
	if hit == 0 {
		require.Nil(m.t, lease)
		return
	}
	require.NotNil(m.t, lease)
	require.Equal(m.t, hit, lease.Hit())
	l.lease, l.hit, l.deadline = lease, hit, m.clock.Now().Add(100*time.Second)
	readers := max(1, l.req.Readers)
	for i := hit - 1; i >= 0; i-- {
		for g := range l.scopes {
			for rank := range l.req.Ranks {
				if o := m.held(l, g, rank, i); o != nil {
					o.holds[l] = readers
					l.entries[o] = readers
					m.touchObject(o)
				}
			}
		}
	}
	require.Equal(m.t, readers*len(l.entries), lease.Outstanding())
	m.leases = append(m.leases, l)
}

// longest is the definition of a hit, by trying every length.
func (m *model) longest(l *modelLease, ok func(state) bool) int {
	for n := len(l.req.Hashes); n > 0; n-- {
		all := true
		for g, scope := range l.scopes {
			first := 0
			if w := l.req.Groups[g].WindowChunks; w > 0 {
				first = max(0, n-w)
			}
			for i := first; i < n; i++ {
				for rank := range l.req.Ranks {
					o := m.index[modelKey{scope, rank, i}]
					all = all && o != nil && ok(o.state)
				}
			}
		}
		if all {
			return n
		}
	}
	return 0
}

// held is the object at a place of the lease, if it is in the window and alive.
func (m *model) held(l *modelLease, g, rank, chunk int) *modelObject {
	if w := l.req.Groups[g].WindowChunks; w > 0 && chunk < l.hit-w {
		return nil
	}
	o := m.index[modelKey{l.scopes[g], rank, chunk}]
	if o == nil || o.state != published {
		return nil
	}
	return o
}

func (m *model) unhold(l *modelLease, o *modelObject, n int) int {
	n = min(n, l.entries[o])
	if n == 0 {
		return 0
	}
	if l.entries[o] -= n; l.entries[o] == 0 {
		delete(l.entries, o)
	}
	if o.holds[l] -= n; o.holds[l] <= 0 {
		delete(o.holds, l)
	}
	if m.index[o.key] != o {
		return 0
	}
	return n
}

func (m *model) endLease(l *modelLease) {
	for o := range l.entries {
		delete(o.holds, l)
	}
	clear(l.entries)
}

func (m *model) expireReads() {
	for _, l := range m.leases {
		if !m.clock.Now().Before(l.deadline) {
			m.endLease(l)
		}
	}
}

func (m *model) pickLease() *modelLease {
	if len(m.leases) == 0 {
		return nil
	}
	return m.leases[m.ch.n(len(m.leases))]
}

// at finds the object that the lease held at a place, dead or alive.
func (l *modelLease) at(g, rank, chunk int) *modelObject {
	for o := range l.entries {
		if o.key == (modelKey{l.scopes[g], rank, chunk}) {
			return o
		}
	}
	return nil
}

func (m *model) take() {
	l := m.pickLease()
	if l == nil {
		return
	}
	g, rank := m.ch.n(len(l.scopes)), m.ch.n(len(l.req.Ranks))
	from, to := m.ch.n(l.hit+1), m.ch.n(l.hit+2)
	if from >= to {
		_, err := l.lease.Take(g, uint32(rank), from, to)
		require.ErrorIs(m.t, err, ErrRange)
		return
	}
	m.expireReads()
	first := 0
	if w := l.req.Groups[g].WindowChunks; w > 0 {
		first = max(0, l.hit-w)
	}
	lacking := to > l.hit
	var found []*modelObject
	for i := max(from, first); i < min(to, l.hit); i++ {
		o := l.at(g, rank, i)
		if o == nil || m.index[o.key] != o {
			lacking = true
		}
		if o != nil {
			found = append(found, o)
		}
	}
	for _, o := range found {
		m.unhold(l, o, 1)
	}
	tr, err := l.lease.Take(g, uint32(rank), from, to)
	if lacking {
		require.ErrorIs(m.t, err, ErrNotHeld)
		return
	}
	require.NoError(m.t, err)
	require.Len(m.t, tr.Objects(), len(found))
	for i, o := range found {
		o.transfers++
		require.Equal(m.t, Object{Chunk: o.key.hash, Offset: o.off, Length: o.n, Order: o.order}, tr.Objects()[i])
	}
	m.transfers = append(m.transfers, &modelTransfer{tr, found})
}

func (m *model) done() {
	if len(m.transfers) == 0 {
		return
	}
	i := m.ch.n(len(m.transfers))
	tr := m.transfers[i]
	m.transfers = slices.Delete(m.transfers, i, i+1)
	tr.tr.Done()
	tr.tr.Done()
	for _, o := range tr.objects {
		if o.transfers--; o.transfers == 0 && o.state == orphaned {
			m.forget(o)
		}
	}
}

func (m *model) free() {
	l := m.pickLease()
	if l == nil {
		return
	}
	switch m.ch.n(3) {
	case 0:
		l.lease.Release()
		m.endLease(l)
	case 1:
		l.yield = m.ch.n(2) == 0
		l.lease.SetYield(l.yield)
	case 2:
		from, to, n := m.ch.n(l.hit+2)-1, m.ch.n(l.hit+3)-1, m.ch.n(4)-1
		ranks := l.req.Ranks[:1+m.ch.n(len(l.req.Ranks))]
		want := 0
		for o := range l.entries {
			if o.key.rank < len(ranks) && o.key.hash >= from && o.key.hash < to && n > 0 {
				want += m.unhold(l, o, n)
			}
		}
		require.Equal(m.t, want, l.lease.Free(ranks, from, to, n))
	}
}

func (m *model) touch() {
	scope, from := m.ch.n(len(modelScopes)), m.ch.n(modelHashes)
	n := m.ch.n(modelHashes - from)
	for i := from + n - 1; i >= from; i-- {
		for rank := range modelRanks {
			if o := m.index[modelKey{scope, rank, i}]; o != nil && o.state == published {
				m.touchObject(o)
			}
		}
	}
	m.c.Touch(modelScopes[scope], []uint32{0, 1}, hashes(from, n))
}

func (m *model) clear() {
	force := m.ch.n(2) == 0
	m.expireWrites()
	want := 0
	for _, o := range m.living() {
		if o.state != published || m.index[o.key] != o || !force && !evictableInModel(o) {
			continue
		}
		want++
		clear(o.holds)
		if o.transfers > 0 {
			m.kill(o, orphaned)
		} else {
			m.forget(o)
		}
	}
	if force {
		for _, r := range m.res {
			m.detach(r)
		}
	}
	require.Equal(m.t, want, m.c.Clear(force))
}

func (m *model) turn() {
	m.expireWrites()
	m.expireReads()
	used, tracked, evictable := int64(0), 0, 0
	for _, o := range m.living() {
		used += (o.n + step - 1) / step
		if m.index[o.key] == o {
			tracked++
		}
		if evictableInModel(o) {
			evictable++
		}
	}
	m.c.turn()
	gone := m.gone()
	if m.evict && !m.growing() && float64(used*step)/float64(m.arena.SizeBytes()) >= 0.8 {
		require.Len(m.t, gone, min(evictable, max(1, int(float64(tracked)*0.2))))
	} else {
		require.Empty(m.t, gone)
	}
	m.drop(gone, true)
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
	if testing.Short() {
		seeds = 4
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
