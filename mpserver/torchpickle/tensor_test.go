package torchpickle

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// naive reads a view element by element.
func naive(t *Tensor) []byte {
	var out []byte
	size := int64(t.DType.Size)
	var walk func(dim int, at int64)
	walk = func(dim int, at int64) {
		if dim == len(t.Shape) {
			out = append(out, t.Data[at*size:(at+1)*size]...)
			return
		}
		for i := range t.Shape[dim] {
			walk(dim+1, at+i*t.Stride[dim])
		}
	}
	walk(0, t.Offset)
	return out
}

// TestCopyToAgainstNaive compares random views of random storages with the
// plain loop; views that leave their storage must be refused.
func TestCopyToAgainstNaive(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	names := []string{"uint8", "bfloat16", "float32", "float64", "complex128", "float8_e5m2"}
	inside, gathered := 0, 0
	for range 20000 {
		x := Tensor{DType: mustDType(t, names[rng.IntN(len(names))]), Offset: rng.Int64N(4)}
		x.Data = pattern(rng.IntN(200)*x.DType.Size+rng.IntN(2), 1)
		reach, empty := x.Offset, false
		for range rng.IntN(5) {
			n, s := rng.Int64N(5), rng.Int64N(9)
			if rng.IntN(3) == 0 && len(x.Shape) > 0 { // often evenly stepping, as real views are
				s = max(1, x.Stride[len(x.Stride)-1]/max(1, n))
			}
			x.Shape, x.Stride = append(x.Shape, n), append(x.Stride, s)
			reach += max(0, n-1) * s
			empty = empty || n == 0
		}
		fits := empty || (reach+1)*int64(x.DType.Size) <= int64(len(x.Data))
		dst := make([]byte, x.NumBytes())
		err := x.CopyTo(dst)
		if !fits {
			require.ErrorIs(t, err, ErrBounds, "%+v", x)
			continue
		}
		require.NoError(t, err, "%+v", x)
		if want := naive(&x); !bytes.Equal(dst, want) {
			t.Fatalf("%+v: got %x, want %x", x, dst, want)
		}
		inside++
		if b, ok := x.Contiguous(); !ok {
			gathered++
		} else if !bytes.Equal(b, dst) {
			t.Fatalf("%+v: Contiguous differs from CopyTo", x)
		}
	}
	if inside < 5000 || gathered < 1000 {
		t.Errorf("only %d views inside, %d of them gathered: the test lost its point", inside, gathered)
	}
}

func TestContiguousCannotGrowIntoNeighbours(t *testing.T) {
	x := Tensor{DType: mustDType(t, "uint8"), Shape: []int64{2}, Stride: []int64{1}, Offset: 1, Data: []byte{0, 1, 2, 3}}
	b, ok := x.Contiguous()
	require.True(t, ok)
	require.Equal(t, []byte{1, 2}, b)
	require.Equal(t, 2, cap(b))
}

func TestTensorsMadeByHand(t *testing.T) {
	u8, f64 := mustDType(t, "uint8"), mustDType(t, "float64")
	data := make([]byte, 64)
	f := func(want error, x Tensor, dstBytes int) {
		t.Helper()
		if err := x.CopyTo(make([]byte, dstBytes)); want == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, want)
		}
	}
	one := []int64{1}
	f(nil, Tensor{DType: u8, Shape: []int64{64}, Stride: one, Data: data}, 64)
	f(ErrSize, Tensor{DType: u8, Shape: []int64{64}, Stride: one, Data: data}, 63)
	f(ErrSize, Tensor{DType: u8, Shape: []int64{0}, Stride: one, Data: data}, 1)
	f(ErrBounds, Tensor{DType: u8, Shape: []int64{65}, Stride: one, Data: data}, 65)
	f(ErrBounds, Tensor{DType: u8, Shape: []int64{64}, Stride: one, Offset: 1, Data: data}, 64)
	f(ErrBounds, Tensor{DType: u8, Shape: one, Stride: one, Offset: -1, Data: data}, 1)
	f(ErrBounds, Tensor{DType: u8, Shape: one, Data: data}, 1)
	f(ErrBounds, Tensor{Shape: one, Stride: one, Data: data}, 1)
	f(ErrBounds, Tensor{DType: u8, Shape: []int64{2}, Stride: []int64{-1}, Offset: 1, Data: data}, 2)
	f(ErrBounds, Tensor{DType: u8, Shape: []int64{-2}, Stride: one, Data: data}, 2)
	f(ErrBounds, Tensor{DType: f64, Shape: []int64{math.MaxInt64}, Stride: []int64{0}, Data: data}, 8)
	f(ErrBounds, Tensor{DType: u8, Shape: []int64{2, 2}, Stride: []int64{math.MaxInt64, math.MaxInt64}, Data: data}, 4)
	f(ErrBounds, Tensor{DType: u8, Shape: []int64{2}, Stride: []int64{math.MaxInt64}, Offset: math.MaxInt64, Data: data}, 2)
	f(ErrBounds, Tensor{DType: f64, Shape: one, Stride: one, Offset: math.MaxInt64 / 8, Data: data}, 8)
	f(ErrLimit, Tensor{DType: u8, Shape: make([]int64, 17), Stride: make([]int64, 17), Data: data}, 0)
	f(nil, Tensor{DType: u8, Shape: []int64{0, 5}, Stride: []int64{math.MaxInt64, 1}, Offset: 1000, Data: data}, 0)
	f(nil, Tensor{DType: u8, Data: data}, 1)
	f(ErrBounds, Tensor{DType: u8}, 1)
	neg := Tensor{DType: u8, Shape: []int64{-1}, Stride: one}
	require.Equal(t, int64(-1), neg.NumBytes())
	_, ok := neg.Contiguous()
	require.False(t, ok)
}
