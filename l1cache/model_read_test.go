package l1cache

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"
)

// This file has the operations of the model that read, and those on everything.

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
		require.Equal(m.t, Object{Chunk: o.key.hash, Offset: o.off, Length: o.n, Form: o.form}, tr.Objects()[i])
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
