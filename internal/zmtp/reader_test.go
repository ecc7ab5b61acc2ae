package zmtp

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/bufpool"
)

func newTestReader(src io.Reader, maxBytes int64) *reader {
	return &reader{src: src, maxBytes: maxBytes, maxParts: 64, buf: bufpool.Shared.Get(firstBuffer), command: func([]byte) error { return nil }}
}

// all reads every message, and returns copies and the error at the end.
func all(rd *reader) (out [][][]byte, err error) {
	defer rd.close()
	for {
		m, err := rd.next()
		if err != nil {
			return out, err
		}
		var frames [][]byte
		for _, f := range m.Frames {
			frames = append(frames, slices.Clone(f))
		}
		out = append(out, frames)
	}
}

// sometimes reads as many bytes at a time as its pattern says.
type sometimes struct {
	b       []byte
	pattern []byte
	i       int
}

func (s *sometimes) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := len(s.b)
	if len(s.pattern) > 0 {
		n = int(s.pattern[s.i%len(s.pattern)])*37 + 1
		s.i++
	}
	n = copy(p, s.b[:min(n, len(s.b))])
	s.b = s.b[n:]
	return n, nil
}

// However the bytes come in, the messages are the same.
func TestReaderInPieces(t *testing.T) {
	var raw []byte
	var want [][][]byte
	for i, n := range []int{0, 1, 2, 255, 256, 4000, 4096, 5000, 70000, largeFrame + 3, 9, 66000, 3} {
		f := bytes.Repeat([]byte{byte(i + 1), byte(n)}, n/2+1)[:n]
		m := [][]byte{{byte(i)}, f, {}, f[:n/3]}
		want = append(want, m)
		raw = append(raw, message(m...)...)
		raw = append(raw, appendCommand(nil, []byte("\x04PONG"))...)
	}
	f := func(src io.Reader) {
		t.Helper()
		got, err := all(newTestReader(src, 1<<30))
		require.ErrorIs(t, err, io.EOF)
		require.Len(t, got, len(want))
		for i := range want {
			require.Len(t, got[i], len(want[i]))
			for j := range want[i] {
				require.True(t, bytes.Equal(want[i][j], got[i][j]), "message %d, frame %d", i, j)
			}
		}
	}
	f(bytes.NewReader(raw))
	f(iotest.HalfReader(bytes.NewReader(raw)))
	f(iotest.DataErrReader(bytes.NewReader(raw)))
	f(iotest.OneByteReader(bytes.NewReader(raw)))
	for k := range byte(8) {
		f(&sometimes{b: raw, pattern: []byte{k, 3 * k, 200, 1}})
	}
}

// A size is only a promise: memory follows what has come.
func TestReaderDoesNotTrustSizes(t *testing.T) {
	hungUp := errors.New("hung up")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4 {
		rd := newTestReader(io.MultiReader(bytes.NewReader(AppendHead(nil, 3<<30, false)), bytes.NewReader(make([]byte, 100)), iotest.ErrReader(hungUp)), 4<<30)
		_, err := rd.next()
		require.ErrorIs(t, err, hungUp)
		rd.close()
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
}

// A connection that waits keeps no large buffer.
func TestReaderGivesLargeBuffersBack(t *testing.T) {
	rd := newTestReader(bytes.NewReader(append(message(make([]byte, 300<<10)), message([]byte("x"))...)), 1<<30)
	defer rd.close()
	_, err := rd.next()
	require.NoError(t, err)
	require.Greater(t, len(rd.buf.B), keptBuffer)
	_, err = rd.next()
	require.NoError(t, err)
	_, err = rd.next()
	require.ErrorIs(t, err, io.EOF)
	require.LessOrEqual(t, len(rd.buf.B), keptBuffer)
}

// FuzzReader: whatever comes, in whatever pieces, the messages and the error
// do not depend on the pieces, and stay within the limits.
func FuzzReader(f *testing.F) {
	f.Add(message([]byte("uid"), []byte{8}, []byte("value")), []byte{0})
	f.Add(appendCommand(message([]byte("a")), []byte("\x04PING\x00\x01")), []byte{1, 9})
	f.Add([]byte{flagLong | flagMore, 0, 0, 0, 0, 0, 0, 1, 0}, []byte{3})
	f.Add([]byte{flagLong, 0, 0, 0, 0, 0, 0x10, 0, 0, 1}, []byte{})
	f.Add(bytes.Repeat(AppendFrame(nil, []byte{1}, true), 70), []byte{2})
	f.Fuzz(func(t *testing.T, raw, pattern []byte) {
		const limit = 1<<20 + 1<<16
		whole, errWhole := all(newTestReader(&sometimes{b: raw}, limit))
		pieces, errPieces := all(newTestReader(&sometimes{b: raw, pattern: pattern}, limit))
		require.Equal(t, whole, pieces)
		require.Equal(t, errWhole.Error(), errPieces.Error())
		for _, m := range whole {
			require.LessOrEqual(t, len(m), 64)
		}
	})
}

// FuzzHandshake: a greeting and READY of anything.
func FuzzHandshake(f *testing.F) {
	f.Add(appendReady(newGreeting(), "DEALER", "me"))
	f.Add(appendCommand(newGreeting(), []byte("\x05READY\x0bSocket-Type\xff\xff\xff\xffDEALER")))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		rd := newTestReader(bytes.NewReader(raw), 1<<20)
		defer rd.close()
		if err := rd.greeting(); err != nil {
			require.ErrorIs(t, err, ErrHandshake)
			return
		}
		r, err := rd.ready()
		if err == nil {
			require.LessOrEqual(t, len(r.identity), maxIdentity)
		}
	})
}
