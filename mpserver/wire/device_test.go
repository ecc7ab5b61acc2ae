package wire

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ipcFile is testdata/ipc_wrapper_samples.json: wrappers made by lmcache 0.5.6,
// and memory handles made by torch on a GPU.
type ipcFile struct {
	Samples map[string]json.RawMessage `json:"samples"`
	Handles map[string]struct {
		Handle string `json:"handle"`
	} `json:"memory_handles"`
}

type ipcSample struct {
	Body    string          `json:"ext_body_hex"`
	Wire    string          `json:"wire_hex"`
	Decoded json.RawMessage `json:"decoded"`
	Parts   []struct {
		Name string `json:"name"`
		Hex  string `json:"hex"`
	} `json:"parts"`
}

func loadIPC(t testing.TB) *ipcFile {
	t.Helper()
	data, err := os.ReadFile("testdata/ipc_wrapper_samples.json")
	require.NoError(t, err)
	f := new(ipcFile)
	require.NoError(t, json.Unmarshal(data, f))
	return f
}

func (f *ipcFile) sample(t testing.TB, name string) ipcSample {
	t.Helper()
	var s ipcSample
	require.NoError(t, json.Unmarshal(f.Samples[name], &s), name)
	return s
}

// oneWrapper makes a list of one extension from the body of a wrapper.
func oneWrapper(body []byte) []byte {
	return append(appendExtHead([]byte{mpFixArray | 1}, deviceExt, len(body)), body...)
}

func TestGoldenWrappers(t *testing.T) {
	f := loadIPC(t)
	names := []string{
		"cuda_layer0", "cuda_layer31", "cuda_old_prefix", "cuda_raw", "cuda_vmm_fabric", "cuda_vmm_posix_fd", "cpu_shm",
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			s := f.sample(t, name)
			frame := oneWrapper(unhex(t, s.Body))
			if s.Wire != "" {
				require.Equal(t, s.Wire, hex.EncodeToString(frame[1:]))
			}
			ws, err := DecodeDeviceWrappers(frame)
			require.NoError(t, err)
			require.Len(t, ws, 1)
			if got := AppendDeviceWrappers(nil, ws); string(got) != string(frame) {
				t.Errorf("got %x, want %x", got, frame)
			}
			require.JSONEq(t, string(s.Decoded), wrapperJSON(t, &ws[0]))
		})
	}
}

// wrapperJSON writes a wrapper as the samples show it.
func wrapperJSON(t *testing.T, w *DeviceWrapper) string {
	t.Helper()
	bin := func(b []byte) any {
		if b == nil {
			return nil
		}
		return map[string]string{"bytes_hex": hex.EncodeToString(b)}
	}
	m := map[string]any{
		"type": w.Source.Tag(), "version": 1, "metadata": map[string]any{
			"dtype": w.Metadata.DType.Name, "shape": w.Metadata.Shape, "stride": w.Metadata.Stride,
			"storage_offset": w.Metadata.StorageOffset, "device_uuid": w.Metadata.DeviceUUID,
		},
	}
	switch s := w.Source.(type) {
	case *CUDAStorage:
		m["handle"] = []any{
			s.Ordinal, bin(s.Handle), s.SizeBytes, s.OffsetBytes, bin(s.RefCounterHandle), s.RefCounterOffset,
			bin(s.EventHandle), s.EventSync,
		}
	case *CUDARaw:
		m["ipc_handle"], m["alloc_offset"], m["nbytes"] = bin(s.Handle[:]), s.OffsetBytes, s.SizeBytes
	case *CUDAVMM:
		m["export_id"], m["kind"], m["fabric_blob"] = bin(s.ExportID[:]), "posix_fd", bin(s.FabricBlob)
		if s.FabricBlob != nil {
			m["kind"] = "fabric"
		}
		m["alloc_size"], m["alloc_offset"], m["nbytes"] = s.AllocSizeBytes, s.OffsetBytes, s.SizeBytes
	case *CPUShm:
		m["shm_name"], m["nbytes"] = s.Name, s.SizeBytes
	}
	out, err := json.Marshal(m)
	require.NoError(t, err)
	return string(out)
}

func TestGoldenArguments(t *testing.T) {
	f := loadIPC(t)
	for name, codecs := range map[string][]recode{
		"register_kv_cache_args": arguments["register_kv_cache"],
		"store_args":             arguments["store"],
	} {
		parts := f.sample(t, name).Parts
		require.Len(t, parts, len(codecs))
		for i, c := range codecs {
			got, err := c(unhex(t, parts[i].Hex))
			if err != nil || hex.EncodeToString(got) != parts[i].Hex {
				t.Errorf("%s, %s: got %x (%v), want %s", name, parts[i].Name, got, err, parts[i].Hex)
			}
		}
	}
}

// TestRejectedWrappers makes the alterations that the samples list as refused by
// the reference; each must be refused with a reason that names the field.
func TestRejectedWrappers(t *testing.T) {
	f := loadIPC(t)
	body := tree(t, unhex(t, f.sample(t, "cuda_layer0").Body)).([]entry)
	meta := get(t, body, "metadata").([]entry)
	handle := get(t, body, "handle").([]any)
	alter := map[string]struct {
		frame  []byte
		reason string
	}{
		"version 2":             {doc(with(body, "version", 2)), "device wrapper.version: value not allowed: version 2"},
		"unknown tag":           {doc(with(body, "type", "hip")), "device wrapper.type: value not allowed: hip"},
		"unknown field":         {doc(with(body, "extra", 1)), "device wrapper.extra: unknown key"},
		"dtype torch.-prefixed": {doc(with(body, "metadata", with(meta, "dtype", "torch.bfloat16"))), "dtype: value not allowed"},
		"rank mismatch":         {doc(with(body, "metadata", with(meta, "stride", []any{1}))), "4 dimensions and 1 strides"},
		"view beyond storage":   {doc(with(body, "metadata", with(meta, "storage_offset", 1<<60))), "of memory of 2097152000 bytes"},
		"negative stride":       {doc(with(body, "metadata", with(meta, "stride", []any{-1, 2048, 256, 1}))), "stride: integer out of range: -1"},
		"7-item handle":         {doc(with(body, "handle", handle[:7])), "handle: value not allowed: array of 7, want 8"},
		"pickle bytes (clients before the data-only wire)": {unhex(t, "80049508000000000000007d948c016194"), "device wrapper.type: required key is missing"},
	}
	var listed []struct {
		Case string `json:"case"`
	}
	require.NoError(t, json.Unmarshal(f.Samples["rejected"], &listed))
	require.Len(t, listed, len(alter))
	for _, l := range listed {
		a, ok := alter[l.Case]
		require.True(t, ok, "no such alteration: %s", l.Case)
		_, err := DecodeDeviceWrappers(oneWrapper(a.frame))
		if err == nil || !strings.Contains(err.Error(), a.reason) {
			t.Errorf("%s: got %v, want %q", l.Case, err, a.reason)
		}
	}
	for _, tag := range []string{"musa", "npu"} {
		_, err := DecodeDeviceWrappers(oneWrapper(doc(with(body, "type", tag))))
		require.ErrorIs(t, err, ErrUnsupportedDevice)
	}
}

func TestWrapperOwnsItsMemory(t *testing.T) {
	f := loadIPC(t)
	for _, name := range []string{"cuda_layer0", "cuda_vmm_fabric"} {
		frame := oneWrapper(unhex(t, f.sample(t, name).Body))
		ws, err := DecodeDeviceWrappers(frame)
		require.NoError(t, err)
		before := AppendDeviceWrappers(nil, ws)
		clear(frame)
		require.Equal(t, before, AppendDeviceWrappers(nil, ws))
	}
}

func TestByteSpan(t *testing.T) {
	f := func(shape, stride []int64, offset, want int64, fits bool) {
		t.Helper()
		m := TensorMetadata{Shape: shape, Stride: stride, StorageOffset: offset}
		m.DType.Size = 2
		if got, ok := m.ByteSpan(); got != want || ok != fits {
			t.Errorf("%v strides %v at %d: got %d %v, want %d %v", shape, stride, offset, got, ok, want, fits)
		}
	}
	f([]int64{2, 3}, []int64{3, 1}, 0, 12, true)
	f([]int64{2, 3}, []int64{10, 2}, 5, 40, true)
	f([]int64{2, 0}, []int64{1 << 62, 1}, 1<<62, 0, true)
	f(nil, nil, 7, 16, true) // a scalar
	f([]int64{2}, []int64{0}, 0, 2, true)
	f(nil, nil, 1<<62-1, 0, false)
	f(nil, nil, 1<<61, 1<<62+2, true)
	f([]int64{1 << 32, 1 << 32}, []int64{1 << 32, 1 << 32}, 0, 0, false)
	f([]int64{1 << 62, 1 << 62}, []int64{3, 3}, 0, 0, false)
}

func TestMemoryHandles(t *testing.T) {
	g := loadIPC(t).Handles
	for _, name := range []string{"big", "small"} {
		raw := unhex(t, g[name].Handle)
		h, err := ParseMemoryHandle(raw)
		require.NoError(t, err)
		require.Equal(t, MemoryHandle{Kind: HandleIPC, IPC: [64]byte(raw[2:])}, h)
	}
	h, err := ParseMemoryHandle(unhex(t, g["expandable"].Handle))
	require.NoError(t, err)
	require.Equal(t, MemoryHandle{Kind: HandleExpandable, PID: 0x1cb, SegmentBytes: 20 << 20, FDs: []int32{45, 46, 47}}, h)

	bare, err := ParseMemoryHandle(make([]byte, 64))
	require.NoError(t, err)
	require.Equal(t, HandleIPC, bare.Kind)

	fabric := append([]byte{3, 'e'}, make([]byte, 32+2*64)...)
	fabric[2+8+2], fabric[2+16], fabric[2+24] = 1, 2, 2 // 64 KiB, two of them, FABRIC
	h, err = ParseMemoryHandle(fabric)
	require.NoError(t, err)
	require.Len(t, h.Fabric, 2)
	require.Equal(t, int64(65536), h.SegmentBytes)

	expandable := unhex(t, g["expandable"].Handle)
	bad := func(b []byte, reason string) {
		t.Helper()
		_, err := ParseMemoryHandle(b)
		require.ErrorIs(t, err, ErrValue)
		require.ErrorContains(t, err, reason)
	}
	bad(nil, "0 bytes")
	bad([]byte{4, 'c'}, "version 4")
	bad([]byte{0, 'c'}, "version 0")
	bad([]byte{2, 'x'}, "kind")
	bad(append([]byte{2, 'c'}, make([]byte, 63)...), "63 bytes")
	bad(expandable[:20], "too short")
	bad(expandable[:len(expandable)-1], "segments in")
	bad(append([]byte{2, 'e'}, make([]byte, 28)...), "segment size")
	fabric[2+24] = 9
	bad(fabric, "handle type 9")
}
