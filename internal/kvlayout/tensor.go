package kvlayout

import (
	"fmt"
	"math/bits"
	"slices"
)

// Limits on what a registration may contain. A model has a few hundred layers
// at most; a tensor of an engine has at most six axes.
const (
	maxTensors = 8192
	maxRank    = 8
	// maxBytes keeps all sums of sizes inside int64.
	maxBytes = 1 << 56
)

// Tensor is one registered KV tensor as the wire describes it.
type Tensor struct {
	// DType is the canonical torch name without "torch."; ElemBytes its size.
	DType     string
	ElemBytes int
	// Shape and Stride have one entry per axis; strides count elements.
	Shape, Stride []int64
	// Offset of the first element from the start of the storage, in elements.
	Offset int64
	// Storage names the memory that holds the tensor; tensors with the same
	// name and size share it. StorageBytes is its whole length.
	Storage      string
	StorageBytes int64
}

// view is a tensor with its axes in physical order.
type view struct {
	dtype         string
	elem          int64
	shape, stride []int64 // strides in elements, falling
	base          int64   // bytes from the start of the storage
}

func (v *view) rank() int { return len(v.shape) }

// inner is the number of elements of axes i and further in.
func (v *view) inner(i int) int64 {
	n := int64(1)
	for _, d := range v.shape[i:] {
		n *= d
	}
	return n
}

// padded says whether there is a gap between the entries of axis 0.
func (v *view) padded() bool { return v.shape[0] > 1 && v.stride[0] != v.inner(1) }

// mul multiplies sizes and reports whether the product stays below maxBytes.
func mul(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= maxBytes
}

// span is the number of bytes from the start of the storage to the end of the
// view, 0 for an empty one. Shape and stride are known to be of one length and
// not negative.
func (t *Tensor) span() (int64, bool) {
	last := t.Offset
	for i, d := range t.Shape {
		if d == 0 {
			return 0, true
		}
		step, ok := mul(d-1, t.Stride[i])
		if !ok || last+step > maxBytes {
			return 0, false
		}
		last += step
	}
	return mul(last+1, int64(t.ElemBytes))
}

// check refuses what cannot be a view of its storage.
func (t *Tensor) check() error {
	switch {
	case t.ElemBytes < 1 || t.ElemBytes > 64:
		return fmt.Errorf("%w: element size %d of dtype %q", ErrTensor, t.ElemBytes, t.DType)
	case len(t.Shape) != len(t.Stride):
		return fmt.Errorf("%w: %d axes but %d strides", ErrTensor, len(t.Shape), len(t.Stride))
	case len(t.Shape) == 0 || len(t.Shape) > maxRank:
		return fmt.Errorf("%w: rank %d, expected 1 to %d", ErrTensor, len(t.Shape), maxRank)
	case t.Offset < 0 || t.Offset > maxBytes:
		return fmt.Errorf("%w: storage offset %d", ErrTensor, t.Offset)
	case t.StorageBytes < 0 || t.StorageBytes > maxBytes:
		return fmt.Errorf("%w: storage of %d bytes", ErrTensor, t.StorageBytes)
	}
	for i := range t.Shape {
		if t.Shape[i] < 0 || t.Shape[i] > maxBytes || t.Stride[i] < 0 || t.Stride[i] > maxBytes {
			return fmt.Errorf("%w: shape %v with strides %v", ErrTensor, t.Shape, t.Stride)
		}
	}
	n, ok := t.span()
	if !ok || n > t.StorageBytes {
		return fmt.Errorf("%w: view of shape %v, strides %v and offset %d in elements of %d bytes ends beyond its storage of %d bytes",
			ErrTensor, t.Shape, t.Stride, t.Offset, t.ElemBytes, t.StorageBytes)
	}
	return nil
}

// normalise sorts the axes by falling stride, which recovers the order in
// memory of a permuted view. Where strides are equal an axis of one goes
// inside. The result is dense, but for a gap between the entries of axis 0.
// Whether that gap is fine depends on the format. The tensor was checked.
//
// Axes of one keep their place by stride and nothing is derived from it: their
// stride is never used. The reference recomputes the shape from the strides,
// which is the same wherever those are consistent.
func (t *Tensor) normalise() (view, error) {
	if slices.Contains(t.Shape, 0) {
		return view{}, fmt.Errorf("%w: shape %v is empty", ErrTensor, t.Shape)
	}
	axes := make([]int, len(t.Shape))
	for i := range axes {
		axes[i] = i
	}
	slices.SortStableFunc(axes, func(a, b int) int {
		if t.Stride[a] != t.Stride[b] {
			if t.Stride[a] > t.Stride[b] {
				return -1
			}
			return 1
		}
		return unit(t.Shape[a]) - unit(t.Shape[b])
	})
	v := view{
		dtype: t.DType, elem: int64(t.ElemBytes), base: t.Offset * int64(t.ElemBytes),
		shape: make([]int64, len(axes)), stride: make([]int64, len(axes)),
	}
	for i, a := range axes {
		v.shape[i], v.stride[i] = t.Shape[a], t.Stride[a]
	}
	tight := int64(1)
	for i := len(axes) - 1; i >= 0; i-- {
		if v.shape[i] > 1 && v.stride[i] != tight && (i > 0 || v.stride[i] < tight) {
			return view{}, fmt.Errorf("%w: shape %v with strides %v: axis %d in memory order has stride %d where %d is dense; only the outermost axis may have a gap",
				ErrTensor, t.Shape, t.Stride, i, v.stride[i], tight)
		}
		tight *= v.shape[i] // the span was checked, so this cannot overflow
	}
	return v, nil
}

func unit(d int64) int {
	if d == 1 {
		return 1
	}
	return 0
}
