package mpserver

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Every wrapper that the real client sends says where its memory is, or why it
// cannot be opened.
func TestPlacesOfGoldenWrappers(t *testing.T) {
	data, err := os.ReadFile("wire/testdata/ipc_wrapper_samples.json")
	require.NoError(t, err)
	var golden struct {
		Samples map[string]json.RawMessage `json:"samples"`
	}
	require.NoError(t, json.Unmarshal(data, &golden))
	require.NotEmpty(t, golden.Samples)
	seen := map[string]int{}
	for name, raw := range golden.Samples {
		var s struct {
			Body string `json:"ext_body_hex"`
		}
		if json.Unmarshal(raw, &s) != nil || s.Body == "" {
			continue // arguments of a whole request
		}
		body, err := hex.DecodeString(s.Body)
		require.NoError(t, err)
		frame := append([]byte{0x91, 0xc8, byte(len(body) >> 8), byte(len(body)), 1}, body...)
		ws, err := wire.DecodeDeviceWrappers(frame)
		if err != nil {
			require.ErrorIs(t, err, wire.ErrUnsupportedDevice, name)
			continue
		}
		p, err := placeOf(&ws[0])
		tag := ws[0].Source.Tag()
		seen[tag]++
		switch {
		case tag == wire.TagCUDAVMM:
			require.ErrorIs(t, err, errVMM, name)
		case err != nil:
			require.ErrorIs(t, err, errNoMemory, name)
		case tag == wire.TagCPUShm:
			require.Empty(t, p.uuid, name)
		default:
			require.Len(t, p.uuid, 36, name)
			if rest, ok := strings.CutPrefix(p.key, device.CUDAIPCPrefix); ok {
				require.Len(t, rest, 128, name)
			} else {
				require.True(t, strings.HasPrefix(p.key, device.CUDAExpandablePrefix), name)
			}
		}
	}
	for _, tag := range []string{wire.TagCUDA, wire.TagCUDARaw, wire.TagCUDAVMM, wire.TagCPUShm} {
		require.NotZero(t, seen[tag], tag)
	}
}

// Storages that lie in one allocation are one storage, so that layers which
// were registered one by one have a constant distance.
func TestStoragesOfOneAllocation(t *testing.T) {
	d, _ := torchdtype.Lookup("bfloat16")
	b, _ := torchdtype.Lookup("uint8")
	raw := func(handle byte, offset, size int64, dt torchdtype.DType) wire.DeviceWrapper {
		src := &wire.CUDARaw{OffsetBytes: offset, SizeBytes: size}
		src.Handle[0] = handle
		return wire.DeviceWrapper{Source: src, Metadata: wire.TensorMetadata{
			DType: dt, Shape: []int64{2, 2, 2, 2}, Stride: []int64{8, 4, 2, 1}, DeviceUUID: "GPU-" + strings.ToUpper(gpu0),
		}}
	}
	ts, uuid, _, err := tensorsOf([]wire.DeviceWrapper{raw(1, 512, 64, d), raw(1, 1024, 64, d), raw(2, 0, 32, d)})
	require.NoError(t, err)
	require.Equal(t, gpu0, uuid)
	require.Equal(t, ts[0].Storage, ts[1].Storage)
	require.True(t, strings.HasSuffix(ts[0].Storage, ":512"))
	require.Equal(t, int64(576), ts[0].StorageBytes)
	require.Equal(t, []int64{0, 256, 0}, []int64{ts[0].Offset, ts[1].Offset, ts[2].Offset})
	require.NotEqual(t, ts[0].Storage, ts[2].Storage)

	// An odd offset does not count in elements: they stay apart.
	ts, _, _, err = tensorsOf([]wire.DeviceWrapper{raw(1, 1, 16, b), raw(1, 64, 64, d)})
	require.NoError(t, err)
	require.NotEqual(t, ts[0].Storage, ts[1].Storage)
	require.Zero(t, ts[0].Offset+ts[1].Offset)

	_, _, _, err = tensorsOf([]wire.DeviceWrapper{raw(1, 0, 64, d), {
		Source:   &wire.CPUShm{Name: "/lmcache_kv_x", SizeBytes: 64},
		Metadata: wire.TensorMetadata{DType: d, Shape: []int64{1}, Stride: []int64{1}, DeviceUUID: "cpu"},
	}})
	require.ErrorIs(t, err, errMixedDevices)
	_, _, _, err = tensorsOf([]wire.DeviceWrapper{raw(1, 1<<62, 1<<62, d)})
	require.Error(t, err)
}

func TestUUIDs(t *testing.T) {
	for in, want := range map[string]string{
		gpu0: gpu0, "GPU-" + gpu0: gpu0, strings.ToUpper(gpu0): gpu0, "MIG-" + gpu0: "mig-" + gpu0,
		"": "", "cpu": "", "cuda:0": "", gpu0 + "0": "", strings.Repeat("z", 36): "",
	} {
		got, err := gpuUUID(in)
		require.Equal(t, want == "", err != nil, in)
		require.Equal(t, want, got, in)
	}
}
