package torchpickle

import "github.com/lmcache-go/lmcache-go/internal/torchdtype"

// Globals that a stream may name.
const (
	globalRebuildV2      int64 = iota + 1 // torch._utils._rebuild_tensor_v2
	globalRebuildV3                       // torch._utils._rebuild_tensor_v3
	globalLoadFromBytes                   // torch.storage._load_from_bytes
	globalOrderedDict                     // collections.OrderedDict
	globalEncode                          // _codecs.encode: how protocol 2 writes bytes
	globalDType                           // torch.<dtype>
	globalStorage                         // torch.<X>Storage
	globalUntypedStorage                  // torch.storage.UntypedStorage
)

var (
	dtypes     = torchdtype.All()
	dtypeIndex = func() map[torchdtype.DType]int64 {
		m := make(map[torchdtype.DType]int64, len(dtypes))
		for i, d := range dtypes {
			m[d] = int64(i)
		}
		return m
	}()
)

// outerGlobal resolves a name in the stream that pickle.dumps made.
func outerGlobal(module, name []byte) (value, bool) {
	switch string(module) {
	case "torch._utils":
		switch string(name) {
		case "_rebuild_tensor_v2":
			return value{kind: kindGlobal, a: globalRebuildV2}, true
		case "_rebuild_tensor_v3":
			return value{kind: kindGlobal, a: globalRebuildV3}, true
		}
	case "torch.storage":
		if string(name) == "_load_from_bytes" {
			return value{kind: kindGlobal, a: globalLoadFromBytes}, true
		}
	case "collections":
		if string(name) == "OrderedDict" {
			return value{kind: kindGlobal, a: globalOrderedDict}, true
		}
	case "_codecs":
		if string(name) == "encode" {
			return value{kind: kindGlobal, a: globalEncode}, true
		}
	case "torch":
		if d, ok := torchdtype.Lookup(string(name)); ok {
			return value{kind: kindGlobal, a: globalDType, b: dtypeIndex[d]}, true
		}
	}
	return value{}, false
}

// innerGlobal resolves a name in the streams that torch.save made.
func innerGlobal(module, name []byte) (value, bool) {
	switch string(module) {
	case "torch":
		if d, ok := torchdtype.ByStorage(string(name)); ok {
			return value{kind: kindGlobal, a: globalStorage, b: dtypeIndex[d]}, true
		}
	case "torch.storage":
		if string(name) == "UntypedStorage" {
			return value{kind: kindGlobal, a: globalUntypedStorage}, true
		}
	}
	return value{}, false
}
