package torchdtype

// DType describes one torch element type. It is a small value; two of them
// are the same type when they compare equal.
type DType struct {
	// Name is the canonical name, without "torch.".
	Name string
	// Size of one element in bytes. The sub-byte types (int4, quint4x2,
	// float4_e2m1fn_x2 and the like) take one byte each, as torch's itemsize
	// says.
	Size int
	// Storage is the class in module torch that a pickled tensor of this type
	// names ("HalfStorage"), or "" when the type has none.
	Storage string
}

// V3 says whether tensors of this type are pickled through
// torch._utils._rebuild_tensor_v3, which names the dtype beside an untyped
// storage, and not through _rebuild_tensor_v2, where the storage class
// implies it.
func (d DType) V3() bool { return d.Storage == "" }

// Lookup finds a dtype by its canonical name or one of torch's aliases. It is
// case sensitive, as attribute access in Python is, and does not allocate.
func Lookup(name string) (DType, bool) {
	d, ok := byName[name]
	return d, ok
}

// ByStorage finds the dtype that a legacy storage class of module torch
// implies ("BFloat16Storage" → bfloat16). torch.storage.UntypedStorage is not
// one of them.
func ByStorage(class string) (DType, bool) {
	d, ok := byStorage[class]
	return d, ok
}

// All returns every dtype once, in a stable order. The caller owns the slice.
func All() []DType { return append([]DType(nil), dtypes...) }

// Aliases returns torch's second names for canonical ones. The caller owns
// the map.
func Aliases() map[string]string {
	m := make(map[string]string, len(aliases))
	for _, a := range aliases {
		m[a.name] = a.canonical
	}
	return m
}

// dtypes is every torch.dtype of torch 2.15, listed by inspecting the module.
// The storage class is what torch.save's legacy form writes for it
// (torch.storage, _dtype_to_storage_type_map); quantized classes
// (QInt8Storage and so on) are left out on purpose: torch rebuilds those
// tensors through _rebuild_qtensor, with scales, and KV caches are never
// that.
var dtypes = []DType{
	{"float16", 2, "HalfStorage"},
	{"bfloat16", 2, "BFloat16Storage"},
	{"float32", 4, "FloatStorage"},
	{"float64", 8, "DoubleStorage"},
	{"uint8", 1, "ByteStorage"},
	{"int8", 1, "CharStorage"},
	{"int16", 2, "ShortStorage"},
	{"int32", 4, "IntStorage"},
	{"int64", 8, "LongStorage"},
	{"bool", 1, "BoolStorage"},
	{"complex64", 8, "ComplexFloatStorage"},
	{"complex128", 16, "ComplexDoubleStorage"},

	{"float8_e4m3fn", 1, ""},
	{"float8_e4m3fnuz", 1, ""},
	{"float8_e5m2", 1, ""},
	{"float8_e5m2fnuz", 1, ""},
	{"float8_e8m0fnu", 1, ""},
	{"float4_e2m1fn_x2", 1, ""},
	{"uint16", 2, ""},
	{"uint32", 4, ""},
	{"uint64", 8, ""},
	{"complex32", 4, ""},
	{"bcomplex32", 4, ""},

	{"bits8", 1, ""},
	{"bits16", 2, ""},
	{"bits1x8", 1, ""},
	{"bits2x4", 1, ""},
	{"bits4x2", 1, ""},
	{"int1", 1, ""},
	{"int2", 1, ""},
	{"int3", 1, ""},
	{"int4", 1, ""},
	{"int5", 1, ""},
	{"int6", 1, ""},
	{"int7", 1, ""},
	{"uint1", 1, ""},
	{"uint2", 1, ""},
	{"uint3", 1, ""},
	{"uint4", 1, ""},
	{"uint5", 1, ""},
	{"uint6", 1, ""},
	{"uint7", 1, ""},
	{"qint8", 1, ""},
	{"quint8", 1, ""},
	{"qint32", 4, ""},
	{"quint4x2", 1, ""},
	{"quint2x4", 1, ""},
}

// aliases are the second names in module torch.
var aliases = []struct{ name, canonical string }{
	{"half", "float16"},
	{"float", "float32"},
	{"double", "float64"},
	{"short", "int16"},
	{"int", "int32"},
	{"long", "int64"},
	{"cfloat", "complex64"},
	{"cdouble", "complex128"},
	{"chalf", "complex32"},
	{"bit", "uint1"},
}

var (
	byName    = map[string]DType{}
	byStorage = map[string]DType{}
)

func init() {
	for _, d := range dtypes {
		byName[d.Name] = d
		if d.Storage != "" {
			byStorage[d.Storage] = d
		}
	}
	for _, a := range aliases {
		byName[a.name] = byName[a.canonical]
	}
}
