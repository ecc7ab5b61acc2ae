package torchpickle

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
)

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed + 7*i + i>>8)
	}
	return b
}

// TestRoundTrip: what the encoder writes, Parse reads, for all dtypes.
func TestRoundTrip(t *testing.T) {
	for _, d := range torchdtype.All() {
		for _, shape := range [][]int64{{}, {3}, {2, 3}, {2, 1, 4, 300}, {0}, {2, 0, 3}, {1, 1, 1, 1, 1, 1, 1, 2}} {
			for _, count := range []int{0, 1, 3} {
				e, err := NewEncoder(d, shape)
				require.NoError(t, err)
				var chunks [][]byte
				for i := range count {
					chunks = append(chunks, pattern(e.ChunkBytes(), i))
				}
				data := e.Append(nil, chunks)
				if len(data) != e.Size(count) {
					t.Errorf("%s %v: %d bytes, Size said %d", d.Name, shape, len(data), e.Size(count))
				}
				require.True(t, bytes.Equal(data, bytes.Join(e.Pieces(nil, chunks), nil)), "%s %v", d.Name, shape)
				got, err := Parse(data)
				require.NoError(t, err, "%s %v", d.Name, shape)
				require.Len(t, got, count)
				for i := range got {
					require.Equal(t, d, got[i].DType)
					require.Len(t, got[i].Shape, len(shape))
					if !bytes.Equal(contents(t, &got[i]), chunks[i]) {
						t.Errorf("%s %v: tensor %d differs", d.Name, shape, i)
					}
				}
			}
		}
	}
}

func TestEncodeManyInBatches(t *testing.T) {
	e, err := NewEncoder(mustDType(t, "int16"), []int64{1})
	require.NoError(t, err)
	for _, n := range []int{999, 1000, 1001, 2000, 5000} {
		chunks := make([][]byte, n)
		for i := range chunks {
			chunks[i] = []byte{byte(i), byte(i >> 8)}
		}
		data := e.Append(nil, chunks)
		require.Len(t, data, e.Size(n))
		got, err := Parse(data)
		require.NoError(t, err)
		require.Len(t, got, n)
		last := contents(t, &got[n-1])
		require.Equal(t, chunks[n-1], last)
	}
}

func TestNewEncoderRefuses(t *testing.T) {
	f16 := mustDType(t, "float16")
	for _, shape := range [][]int64{
		{-1}, {2, -3}, {math.MaxInt64}, {1 << 32, 1 << 32}, {1 << 41}, make([]int64, maxDims+1),
	} {
		if _, err := NewEncoder(f16, shape); err == nil {
			t.Errorf("shape %v: accepted", shape)
		} else {
			require.ErrorIs(t, err, ErrShape)
		}
	}
	_, err := NewEncoder(torchdtype.DType{}, []int64{1})
	require.ErrorIs(t, err, ErrShape)
}

func TestPiecesInBatches(t *testing.T) {
	e, err := NewEncoder(torchdtype.All()[0], []int64{1})
	require.NoError(t, err)
	chunks := make([][]byte, 2*batchItems+1)
	for i := range chunks {
		chunks[i] = pattern(e.ChunkBytes(), i)
	}
	require.Equal(t, e.Append(nil, chunks), bytes.Join(e.Pieces(nil, chunks), nil))
}

func TestAppendPanicsOnWrongSize(t *testing.T) {
	e, err := NewEncoder(mustDType(t, "float16"), []int64{2})
	require.NoError(t, err)
	require.Panics(t, func() { e.Append(nil, [][]byte{make([]byte, 3)}) })
}

// TestSizesWithoutBytes: sizes beyond 2 and 4 GiB pick wider fields; only the
// heads are made here.
func TestSizesWithoutBytes(t *testing.T) {
	u8, bf := mustDType(t, "uint8"), mustDType(t, "bfloat16")
	f := func(d torchdtype.DType, n int64, want ...byte) {
		t.Helper()
		e, err := NewEncoder(d, []int64{n})
		require.NoError(t, err)
		require.True(t, bytes.Contains(e.head, want), "%d: %x lacks %x", n, e.head, want)
	}
	f(u8, 200, opBinInt1, 200, opNone)
	f(u8, 40000, opBinInt2, 0x40, 0x9c, opNone)
	f(u8, 1<<20, opBinInt, 0, 0, 0x10, 0, opNone)
	f(u8, 1<<31, opLong1, 5, 0, 0, 0, 0x80, 0, opNone)
	f(u8, 1<<33, opLong1, 5, 0, 0, 0, 0, 2, opNone)
	f(bf, 1<<20, opBinInt, 0, 0, 0x10, 0, opNone)
	f(u8, 1<<31, opStackGlobal, opBinBytes)
	f(u8, 1<<32, opStackGlobal, opBinBytes8)
	f(u8, 1<<39, opStackGlobal, opBinBytes8)
}
