package zmtp

import (
	"bytes"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// placing is a recorder that has large frames placed.
type placing struct {
	*recorder
	at        []Part
	asked     atomic.Int64
	abandoned atomic.Int64
}

func (h *placing) Place(_ *Peer, frames [][]byte, _ int) *Placement {
	h.asked.Add(1)
	if string(frames[0]) == "no" {
		return nil
	}
	return &Placement{Parts: h.at, Abandon: func() { h.abandoned.Add(1) }, Data: "mine"}
}

// Parts of a large frame are read to their place, however the bytes come.
func TestPlacement(t *testing.T) {
	const size = 3 << 20
	a, b := make([]byte, 1<<20), make([]byte, 4097)
	frame := bytes.Repeat([]byte("0123456789abcde"), size/15+1)[:size]
	raw := append(message([]byte("head"), frame, []byte("tail"), frame[:largeFrame]), message([]byte("next"))...)
	f := func(src *reader, aAt, bAt int) {
		t.Helper()
		clear(a)
		clear(b)
		src.place = func(frames [][]byte, n int) *Placement {
			require.Equal(t, [][]byte{[]byte("head")}, frames)
			require.Equal(t, size, n)
			return &Placement{Parts: []Part{{aAt, a}, {bAt, b}}}
		}
		defer src.close()
		m, err := src.next()
		require.NoError(t, err)
		pl := m.TakePlacement()
		require.Equal(t, 1, pl.Frame)
		got := bytes.Clone(m.Frames[1])
		copy(got[aAt:], a)
		copy(got[bAt:], b)
		require.True(t, bytes.Equal(frame, got))
		require.True(t, bytes.Equal(frame[aAt:aAt+len(a)], a))
		require.Equal(t, "tail", string(m.Frames[2]))
		require.True(t, bytes.Equal(frame[:largeFrame], m.Frames[3]), "one frame of a message is placed")
		m, err = src.next()
		require.NoError(t, err)
		require.Equal(t, "next", string(m.Frames[0]))
	}
	for _, at := range [][2]int{{0, 1 << 20}, {100, 2 << 20}, {1, size - len(b)}, {5000, 5000 + 1<<20}} {
		f(newTestReader(bytes.NewReader(raw), 1<<30), at[0], at[1])
		f(newTestReader(iotest.HalfReader(bytes.NewReader(raw)), 1<<30), at[0], at[1])
		f(newTestReader(&sometimes{b: raw, pattern: []byte{3, 250, 1}}, 1<<30), at[0], at[1])
	}
}

// A placement that nobody takes, or whose frame does not come whole, is abandoned once.
func TestPlacementIsAbandoned(t *testing.T) {
	h := &placing{recorder: newRecorder(), at: []Part{{1000, make([]byte, 1<<20)}}}
	taken := make(chan *Placement, 1)
	h.on = func(p *Peer, m *Message) {
		if string(m.Frames[0]) == "take" {
			own := m.Detach()
			taken <- own.TakePlacement()
			own.Release()
		}
		_ = p.Queue(m.Frames[0])
	}
	s := NewRouter(RouterOptions{Handler: h})
	url, err := s.Listen("tcp://127.0.0.1:*")
	require.NoError(t, err)
	run(t, s)
	d := dealer(t, url)
	ask := func(first string) {
		t.Helper()
		require.NoError(t, d.Write(message([]byte(first), make([]byte, 2<<20))))
		_, err := d.Read()
		require.NoError(t, err)
	}
	ask("no")
	require.EqualValues(t, 1, h.asked.Load())
	ask("take")
	require.Equal(t, "mine", wait(t, "the placement", taken).Data)
	ask("leave")
	ask("no")
	require.EqualValues(t, 1, h.abandoned.Load())
	half := message([]byte("half"), make([]byte, 2<<20))
	require.NoError(t, d.Write(half[:len(half)/3]))
	require.Eventually(t, func() bool { return h.asked.Load() == 5 }, limitTime, limitTime/10000)
	require.NoError(t, d.Close())
	_ = wait(t, "the end", h.gone)
	require.Eventually(t, func() bool { return h.abandoned.Load() == 2 }, limitTime, limitTime/10000)
}
