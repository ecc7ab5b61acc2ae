package torchpickle

import "sync"

// parser is everything one Parse works with. Parsers are pooled: a parse
// allocates only its result.
type parser struct {
	outer, inner machine
	left         budget

	pending  pendingStorage
	storages []storage
	decoded  [][]byte
	tensors  []tensorRecord
	ints     []int64 // shapes and strides
}

var parsers = sync.Pool{New: func() any {
	p := new(parser)
	p.outer.p, p.inner.p = p, p
	p.inner.inner = true
	return p
}}

// Parse reads a pickled list of CPU tensors of any pickle protocol from 2 to
// 5. The tensors' Data alias data (a copy only where protocol 2 wrote the
// bytes as text), so data must stay unchanged while they are used.
//
// It executes nothing, never panics, and costs memory and time in proportion
// to len(data) at most. Errors wrap [ErrMalformed], [ErrForbidden],
// [ErrLimit] or [ErrBounds].
func Parse(data []byte) ([]Tensor, error) {
	p := parsers.Get().(*parser)
	out, err := p.parse(data)
	p.release()
	return out, err
}

func (p *parser) parse(data []byte) ([]Tensor, error) {
	p.left = newBudget(len(data))
	p.outer.begin(data, 0)
	v, err := p.outer.run()
	if err != nil {
		return nil, err
	}
	if p.outer.pos != len(data) {
		return nil, errAt(ErrMalformed, p.outer.pos, "%d bytes behind the end", len(data)-p.outer.pos)
	}
	if v.kind != kindList {
		return nil, errAt(ErrMalformed, 0, "holds a %v, want a list of tensors", v.kind)
	}
	return p.result(p.outer.lists[v.a])
}

// result copies what the caller gets out of the pooled memory.
func (p *parser) result(items []value) ([]Tensor, error) {
	out := make([]Tensor, len(items))
	ints := make([]int64, len(p.ints))
	copy(ints, p.ints)
	for i, v := range items {
		if v.kind != kindTensor {
			return nil, errAt(ErrMalformed, 0, "item %d is a %v, want a tensor", i, v.kind)
		}
		r := &p.tensors[v.a]
		mid, end := r.first+r.dims, r.first+2*r.dims
		out[i] = Tensor{
			DType: r.dtype, Offset: r.offset, Data: r.data,
			Shape: ints[r.first:mid:mid], Stride: ints[mid:end:end],
		}
	}
	return out, nil
}

// release forgets the input and returns the memory to the pool, unless an
// unusual input made it large.
func (p *parser) release() {
	clear(p.storages)
	clear(p.decoded)
	clear(p.tensors)
	p.storages, p.decoded, p.tensors, p.ints = p.storages[:0], p.decoded[:0], p.tensors[:0], p.ints[:0]
	big := cap(p.tensors) + cap(p.storages) + cap(p.ints)
	for _, m := range []*machine{&p.outer, &p.inner} {
		m.src = nil
		big += cap(m.memo) + cap(m.cells)
		for _, l := range m.lists[:cap(m.lists)] {
			big += cap(l)
		}
	}
	if big <= keptValues {
		parsers.Put(p)
	}
}

// reduce calls one of the known functions.
func (m *machine) reduce() error {
	at := m.pos - 1
	v, err := m.popN(2)
	if err != nil {
		return err
	}
	fn, args := v[0], v[1]
	if fn.kind != kindGlobal || args.kind != kindTuple {
		return errAt(ErrForbidden, at, "call of a %v with a %v", fn.kind, args.kind)
	}
	result, err := m.p.call(m, fn, m.items(args), at)
	if err != nil {
		return err
	}
	return m.push(result)
}

func (p *parser) call(m *machine, fn value, args []value, at int) (value, error) {
	switch fn.a {
	case globalRebuildV2, globalRebuildV3:
		return p.rebuild(m, fn.a == globalRebuildV3, args, at)
	case globalLoadFromBytes:
		if len(args) == 1 && args[0].kind == kindBytes {
			return p.load(m.text(args[0]), at)
		}
		if len(args) == 1 && args[0].kind == kindDecoded {
			return p.load(p.decoded[args[0].a], at)
		}
		return value{}, errAt(ErrMalformed, at, "_load_from_bytes without bytes")
	case globalOrderedDict:
		if len(args) != 0 {
			return value{}, errAt(ErrForbidden, at, "an OrderedDict with contents")
		}
		return value{kind: kindOrderedDict}, nil
	case globalEncode:
		return p.encodeLatin1(m, args, at)
	}
	return value{}, errAt(ErrForbidden, at, "call of something that is not a function of a plain tensor")
}

// encodeLatin1 is _codecs.encode(text, "latin1"): protocol 2 has no bytes and
// writes them so. The result is new memory; what all calls of one input may
// make together is the input's size, which honest inputs do not reach.
func (p *parser) encodeLatin1(m *machine, args []value, at int) (value, error) {
	if len(args) != 2 || args[0].kind != kindText || args[1].kind != kindText || string(m.text(args[1])) != "latin1" {
		return value{}, errAt(ErrForbidden, at, "_codecs.encode of anything but text to latin1")
	}
	src := m.text(args[0])
	if p.left.decoded -= len(src); p.left.decoded < 0 {
		return value{}, errAt(ErrLimit, at, "decoded bytes exceed the pickle")
	}
	if err := m.charge(1); err != nil {
		return value{}, err
	}
	n := len(src)
	for _, c := range src {
		if c&0xc0 == 0x80 {
			n--
		}
	}
	dst := make([]byte, 0, n)
	for i := 0; i < len(src); i++ {
		c := src[i]
		if c >= 0x80 {
			if c&^1 != 0xc2 || i+1 >= len(src) || src[i+1]&0xc0 != 0x80 {
				return value{}, errAt(ErrMalformed, at, "text does not fit latin1")
			}
			i++
			c = c<<6 | src[i]&0x3f
		}
		dst = append(dst, c)
	}
	p.decoded = append(p.decoded, dst)
	return value{kind: kindDecoded, a: int64(len(p.decoded) - 1)}, nil
}

// rebuild is torch._utils._rebuild_tensor_v2 and _v3:
// (storage, offset, size, stride, requires_grad, hooks[, dtype][, metadata]).
func (p *parser) rebuild(m *machine, v3 bool, args []value, at int) (value, error) {
	want := 6
	if v3 {
		want = 7
	}
	if len(args) != want && len(args) != want+1 {
		return value{}, errAt(ErrMalformed, at, "tensor rebuilt from %d arguments", len(args))
	}
	for i, k := range []kind{kindStorage, kindInt, kindTuple, kindTuple, kindBool} {
		if args[i].kind != k {
			return value{}, errAt(ErrMalformed, at, "tensor argument %d is a %v, want a %v", i, args[i].kind, k)
		}
	}
	if k := args[5].kind; k != kindOrderedDict && k != kindNone {
		return value{}, errAt(ErrForbidden, at, "tensor with hooks (%v)", k)
	}
	if len(args) > want { // flags such as conj and neg: the bytes are then not the tensor's values
		meta := args[want]
		if meta.kind != kindNone && (meta.kind != kindDict || m.dicts[meta.a].entries != 0) {
			return value{}, errAt(ErrForbidden, at, "tensor with metadata: send it resolved (resolve_conj, resolve_neg)")
		}
	}
	s := p.storages[args[0].a]
	dtype := s.dtype
	if v3 {
		if args[6].kind != kindGlobal || args[6].a != globalDType {
			return value{}, errAt(ErrMalformed, at, "tensor argument 6 is a %v, want a dtype", args[6].kind)
		}
		dtype = dtypes[args[6].b]
	} else if dtype.Size == 0 {
		return value{}, errAt(ErrMalformed, at, "an untyped storage in a tensor without dtype")
	}
	size, stride := m.items(args[2]), m.items(args[3])
	dims := len(size)
	if len(stride) != dims {
		return value{}, errAt(ErrMalformed, at, "%d sizes and %d strides", dims, len(stride))
	}
	if dims > maxDims {
		return value{}, errAt(ErrLimit, at, "more than %d dimensions", maxDims)
	}
	if err := m.charge(1 + 2*dims); err != nil {
		return value{}, err
	}
	first := len(p.ints)
	for _, list := range [][]value{size, stride} {
		for _, v := range list {
			if v.kind != kindInt {
				return value{}, errAt(ErrMalformed, at, "a dimension is a %v, want an int", v.kind)
			}
			p.ints = append(p.ints, v.a)
		}
	}
	mid, end := first+dims, first+2*dims
	if err := checkView(p.ints[first:mid], p.ints[mid:end], args[1].a, dtype.Size, len(s.data)); err != nil {
		return value{}, errAt(err, at, "offset %d, shape %v, stride %v of %s in %d bytes",
			args[1].a, p.ints[first:mid], p.ints[mid:end], dtype.Name, len(s.data))
	}
	p.tensors = append(p.tensors, tensorRecord{dtype: dtype, data: s.data, offset: args[1].a, dims: dims, first: first})
	return value{kind: kindTensor, a: int64(len(p.tensors) - 1)}, nil
}
