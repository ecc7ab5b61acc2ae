package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The pieces of a reply that is written in place are the whole reply.
func TestPrepareRetrieveInPieces(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 65535, 65536, 1 << 20} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * 7)
		}
		whole := AppendPrepareRetrieve(nil, true, data, nil, false)
		pieces := AppendPrepareRetrieveHead(nil, true, n)
		pieces = AppendPrepareRetrieveTail(append(pieces, data...))
		require.Equal(t, whole, pieces)
		back, err := DecodePrepareRetrieve(whole)
		require.NoError(t, err)
		require.True(t, back.Success)
		require.Equal(t, data, append([]byte{}, back.Data...))
		require.Nil(t, back.Slots)
	}
}

func TestPrepareStoreReplies(t *testing.T) {
	slots := []Slot{
		{Offset: 0, Length: 1 << 20, Shape: []int64{2, 4, 256, 512}, DType: "bfloat16"},
		{Offset: 1 << 33, Length: 12, Shape: []int64{12}, DType: "float8_e4m3fn"},
	}
	back, err := DecodePrepareStore(AppendPrepareStore(nil, slots, []int{0, 70}, true))
	require.NoError(t, err)
	require.Equal(t, &PrepareStoreReply{Present: true, Slots: slots, ChunkIndices: []int{0, 70}}, back)

	back, err = DecodePrepareStore(AppendPrepareStore(nil, nil, nil, true))
	require.NoError(t, err)
	require.True(t, back.Present)
	require.Empty(t, back.Slots)

	// What stands for a failure and for pickle mode.
	back, err = DecodePrepareStore(AppendPrepareStore(nil, slots, []int{1}, false))
	require.NoError(t, err)
	require.Equal(t, &PrepareStoreReply{}, back)

	_, err = DecodePrepareStore(AppendPrepareStore(nil, slots, []int{1}, true))
	require.ErrorContains(t, err, "2 slots and 1 chunk indices")
	_, err = DecodePrepareStore(AppendPrepareStore(nil, []Slot{{Offset: -1}}, []int{0}, true))
	require.ErrorContains(t, err, "slot.offset")
}

func TestInvalidAddresses(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 70000} {
		got, err := DecodeAddresses(AppendInvalidAddresses(nil, n))
		require.NoError(t, err)
		require.Len(t, got, n)
		for _, a := range got {
			if a.Valid() || a != InvalidAddress {
				t.Fatalf("%d keys: got %+v", n, a)
			}
		}
	}
	require.True(t, Address{Offset: 0, Size: 1}.Valid())
	require.False(t, Address{Offset: 0, Size: 0}.Valid())
}

func TestBlockIDsReuseTheirLists(t *testing.T) {
	frame := AppendBlockIDs(nil, [][]int64{{1, 2, 300}, {}, {-1}})
	var dst [][]int64
	var err error
	dst, err = DecodeBlockIDs(frame, dst)
	require.NoError(t, err)
	require.Equal(t, [][]int64{{1, 2, 300}, {}, {-1}}, [][]int64{dst[0], append([]int64{}, dst[1]...), dst[2]})
	require.Zero(t, testing.AllocsPerRun(100, func() { dst, err = DecodeBlockIDs(frame, dst) }))
	require.NoError(t, err)
	// Fewer groups, then more: nothing of the earlier ones shows.
	dst, err = DecodeBlockIDs(AppendBlockIDs(nil, [][]int64{{7}}), dst)
	require.NoError(t, err)
	require.Equal(t, [][]int64{{7}}, dst)
	dst, err = DecodeBlockIDs(frame, dst)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2, 300}, dst[0])
	require.Len(t, dst, 3)
}

func TestAppendLengthBorders(t *testing.T) {
	for _, n := range []int{0, 1, 2, 4, 8, 15, 16, 17, 31, 32, 255, 256, 65535, 65536} {
		b := make([]byte, n)
		got, err := DecodeBytes(AppendBytes(nil, b))
		require.NoError(t, err)
		require.Len(t, got, n)
		s, err := DecodeString(AppendString(nil, string(make([]byte, n))))
		require.NoError(t, err)
		require.Len(t, s, n)
		ids, err := DecodeBlockIDs(AppendBlockIDs(nil, [][]int64{make([]int64, n)}), nil)
		require.NoError(t, err)
		require.Len(t, ids[0], n)
		r := reader{b: append(appendExtHead(nil, -7, n), b...)}
		code, data := r.ext()
		require.NoError(t, r.done())
		require.Equal(t, int8(-7), code)
		require.Len(t, data, n)
		r = reader{b: append(appendMapHead(nil, n), make([]byte, 2*n)...)}
		require.Equal(t, n, r.fields())
	}
}

func TestIntegerBorders(t *testing.T) {
	for shift := range 64 {
		for _, v := range []int64{1 << shift, 1<<shift - 1, -1 << shift, -1<<shift - 1, 1<<shift + 1} {
			got, err := DecodeInt(AppendInt(nil, v))
			if err != nil || got != v {
				t.Errorf("%d: got %d (%v) from %x", v, got, err, AppendInt(nil, v))
			}
		}
	}
}
