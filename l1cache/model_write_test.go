package l1cache

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
)

// This file has the operations of the model that write and evict.

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

	form := Form(m.ch.n(2))
	res, err := m.c.Reserve(context.Background(), ReserveRequest{
		Scope: modelScopes[scope], Rank: uint32(rank), Hashes: hashes(from, count), SizeBytes: size, Form: form, NoWait: true,
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
			key: modelKey{scope, rank, fresh[i]}, off: s.Offset, n: size, state: reserved, form: form, holds: map[*modelLease]int{},
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
