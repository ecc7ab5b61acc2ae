package torchpickle

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
)

// Tensor is a strided view of a storage. The element at index (i, j, …) lies
// at byte DType.Size × (Offset + i×Stride[0] + j×Stride[1] + …) of Data.
type Tensor struct {
	// DType of the elements.
	DType torchdtype.DType
	// Shape holds the size of each dimension; empty for a scalar.
	Shape []int64
	// Stride holds the step of each dimension, in elements. It may be 0 (one
	// element seen many times), so a tensor can be larger than its Data:
	// compare Shape with what is expected before reserving memory for it.
	Stride []int64
	// Offset of the first element in Data, in elements.
	Offset int64
	// Data is the storage. From [Parse] it aliases the pickle.
	Data []byte
}

// NumBytes is the size of the tensor's elements laid out without gaps, in
// bytes, or -1 when the shape is negative or the size does not fit.
func (t *Tensor) NumBytes() int64 {
	n, ok := numBytes(t.Shape, t.DType.Size)
	if !ok {
		return -1
	}
	return n
}

// Contiguous returns the tensor's bytes without copying when they already lie
// row-major and without gaps in Data.
func (t *Tensor) Contiguous() ([]byte, bool) {
	if t.check() != nil {
		return nil, false
	}
	size := int64(t.DType.Size)
	v := t.coalesce()
	switch {
	case v.empty:
		return t.Data[:0:0], true
	case v.dims == 0:
		return t.Data[t.Offset*size:][:size:size], true
	case v.dims == 1 && v.stride[0] == 1:
		n := v.shape[0] * size
		return t.Data[t.Offset*size:][:n:n], true
	}
	return nil, false
}

// CopyTo writes the elements row-major and without gaps to dst, whose length
// must be [Tensor.NumBytes]. A tensor that already lies so takes one copy;
// other views are gathered run by run. Nothing is written when it fails:
// errors wrap [ErrSize], [ErrBounds] or [ErrLimit].
func (t *Tensor) CopyTo(dst []byte) error {
	if err := t.check(); err != nil {
		return fmt.Errorf("copy tensor: %w", err)
	}
	if n := t.NumBytes(); int64(len(dst)) != n {
		return fmt.Errorf("copy tensor: %w: %d bytes for %d", ErrSize, len(dst), n)
	}
	if src, ok := t.Contiguous(); ok {
		copy(dst, src)
		return nil
	}
	t.gather(dst)
	return nil
}

func (t *Tensor) check() error {
	if len(t.Shape) != len(t.Stride) || t.DType.Size <= 0 {
		return ErrBounds
	}
	if len(t.Shape) > maxDims {
		return ErrLimit
	}
	return checkView(t.Shape, t.Stride, t.Offset, t.DType.Size, len(t.Data))
}

// checkView tells whether every element of a view lies in a storage of
// dataBytes, and whether its size in bytes can be said at all.
func checkView(shape, stride []int64, offset int64, size, dataBytes int) error {
	if _, ok := numBytes(shape, size); !ok || offset < 0 {
		return ErrBounds
	}
	last, empty := uint64(offset), false
	for i, n := range shape {
		if stride[i] < 0 {
			return ErrBounds
		}
		if n == 0 {
			empty = true
			continue
		}
		hi, span := bits.Mul64(uint64(n-1), uint64(stride[i]))
		if last += span; hi != 0 || span > math.MaxInt64 || last > math.MaxInt64 {
			return ErrBounds
		}
	}
	if !empty && last >= uint64(dataBytes)/uint64(size) {
		return ErrBounds
	}
	return nil
}

// numBytes multiplies a shape out; false when a dimension is negative or the
// product of the non-zero ones and size exceeds int64.
func numBytes(shape []int64, size int) (int64, bool) {
	product, empty := uint64(size), false
	for _, n := range shape {
		if n < 0 {
			return 0, false
		}
		if n == 0 {
			empty = true
			continue
		}
		hi, lo := bits.Mul64(product, uint64(n))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false
		}
		product = lo
	}
	if empty {
		return 0, true
	}
	return int64(product), true
}

// view is a tensor's geometry with as few dimensions as describe it.
type view struct {
	shape, stride [maxDims]int64
	dims          int
	empty         bool
}

// coalesce drops dimensions of one element and merges neighbours that step
// evenly. The tensor has been checked.
func (t *Tensor) coalesce() view {
	var v view
	for i, n := range t.Shape {
		if n == 0 {
			return view{empty: true}
		}
		if n == 1 {
			continue
		}
		s := t.Stride[i]
		if k := v.dims - 1; k >= 0 && s != 0 && v.stride[k] == n*s {
			v.shape[k] *= n
			v.stride[k] = s
			continue
		}
		v.shape[v.dims], v.stride[v.dims] = n, s
		v.dims++
	}
	return v
}

// gather copies a checked, not contiguous view.
func (t *Tensor) gather(dst []byte) {
	v := t.coalesce()
	size := int64(t.DType.Size)
	inner := v.dims - 1
	n, step := v.shape[inner], v.stride[inner]*size
	var index [maxDims]int64
	at, out := t.Offset*size, int64(0)
	for {
		if step == size {
			out += int64(copy(dst[out:out+n*size], t.Data[at:]))
		} else {
			from := at
			for range n {
				copy(dst[out:out+size], t.Data[from:from+size])
				out += size
				from += step
			}
		}
		d := inner - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < v.shape[d] {
				at += v.stride[d] * size
				break
			}
			index[d] = 0
			at -= (v.shape[d] - 1) * v.stride[d] * size
		}
		if d < 0 {
			return
		}
	}
}
