package mpserver

import (
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// checksums asks over HTTP.
func checksums(t *testing.T, s *Server, body string) (status int, answer map[string]json.RawMessage) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTPAddr()+"/cache/checksums", strings.NewReader(body))
	require.NoError(t, err)
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	require.NoError(t, json.Unmarshal(data, &answer), "%s", data)
	return resp.StatusCode, answer
}

// kvTensors registers layers of one shape in the memory of e, which must be
// large enough; each is contiguous.
func (e *engine) kvTensors(dtype string, layout string, layers int, shape ...int64) {
	e.t.Helper()
	d, ok := torchdtype.Lookup(dtype)
	require.True(e.t, ok)
	stride, n := make([]int64, len(shape)), int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		stride[i] = n
		n *= shape[i]
	}
	var ws []wire.DeviceWrapper
	for l := range layers {
		w := wire.DeviceWrapper{
			Source:   &wire.CPUShm{Name: e.key, SizeBytes: int64(len(e.mem))},
			Metadata: wire.TensorMetadata{DType: d, Shape: shape, Stride: stride, StorageOffset: int64(l) * n, DeviceUUID: "cpu"},
		}
		if e.gpus != nil {
			w.Source, w.Metadata.DeviceUUID = &wire.CUDAStorage{Handle: e.handle, SizeBytes: int64(len(e.mem))}, e.uuid
		}
		ws = append(ws, w)
	}
	hints := wire.LayoutHints{KVLayout: layout}
	e.none(wire.OpRegisterKVCache, intFrame(e.id), wire.AppendDeviceWrappers(nil, ws), strFrame(testModel), intFrame(1),
		strFrame("vllm"), wire.AppendLayoutHints(nil, &hints), wire.AppendEngineGroupInfos(nil, nil))
}

func md5Hex(parts ...[]byte) string {
	h := md5.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func withHTTP(o *Options) { o.HTTPPort = 0 }

func TestChecksumsOfAnEngine(t *testing.T) {
	onDevices(t, withHTTP, func(t *testing.T, s *Server) {
		e := newEngine(t, s, 1<<62+1, false, []kvGroup{{layers: 4, heads: 4, headBytes: 64}})
		for i := range e.mem {
			e.mem[i] = byte(i*131 + i>>8)
		}
		// Two layers of [2, 16 blocks, 4 tokens, 2 heads, 8] float16: a block of a plane has 128 bytes.
		const bb, plane, layer = 4 * 2 * 8 * 2, 16 * 4 * 2 * 8 * 2, 2 * 16 * 4 * 2 * 8 * 2
		e.kvTensors("float16", "NHD", 2, 2, 16, 4, 2, 8)
		block := func(l, p, b int) []byte { return e.mem[l*layer+p*plane+b*bb:][:bb] }
		of := func(l int, ids ...int) (parts [][]byte) {
			for p := range 2 {
				for _, b := range ids {
					parts = append(parts, block(l, p, b))
				}
			}
			return parts
		}
		status, got := checksums(t, s, `{"block_ids":[3,4,5,1,9],"chunk_size":2,"instance_id":4611686018427387905}`)
		require.Equal(t, 200, status, "%s", got)
		want := func(layers ...int) string {
			var sums []string
			for _, ids := range [][]int{{3, 4}, {5, 1}, {9}} {
				var parts [][]byte
				for _, l := range layers {
					parts = append(parts, of(l, ids...)...)
				}
				sums = append(sums, `"`+md5Hex(parts...)+`"`)
			}
			return "[" + strings.Join(sums, ",") + "]"
		}
		require.Equal(t, want(0, 1), string(got["chunk_checksums"]))
		require.Equal(t, `3`, string(got["num_chunks"]))
		require.Equal(t, `[[3,5],1,9]`, string(got["block_id_ranges"]))
		status, got = checksums(t, s, `{"block_ids":[3,4,5,1,9],"chunk_size":2,"instance_id":4611686018427387905,"layerwise":true}`)
		require.Equal(t, 200, status)
		require.Equal(t, fmt.Sprintf(`{"layer_0":%s,"layer_1":%s}`, want(0), want(1)), string(got["chunk_checksums"]))
		idle(t, s)

		// bfloat16 is hashed as float32; blocks of one tensor lie side by side.
		e.kvTensors("bfloat16", "NHD", 1, 16, 4, 8)
		raw := e.mem[2*4*8*2:][:2*4*8*2]
		var wide []byte
		for i := 0; i < len(raw); i += 2 {
			f := math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[i:])) << 16)
			wide = binary.LittleEndian.AppendUint32(wide, math.Float32bits(f))
		}
		_, got = checksums(t, s, `{"block_ids":[2,3],"chunk_size":2,"instance_id":4611686018427387905}`)
		require.Equal(t, `["`+md5Hex(wide)+`"]`, string(got["chunk_checksums"]))
	})
}

// More than the buffer holds at a time.
func TestChecksumsOfManyBlocks(t *testing.T) {
	s := startServer(t, withHTTP)
	e := newEngine(t, s, 1, false, []kvGroup{{layers: 1, heads: 64, headBytes: 1024}})
	for i := range e.mem {
		e.mem[i] = byte(i*7 + i>>11)
	}
	// 16 MiB: 3 layers of 61 blocks of an odd number of bytes.
	const bb = 4 * 21845
	e.kvTensors("uint8", "NHD", 3, 61, 4, 21845)
	var ids []string
	for b := range 61 {
		ids = append(ids, fmt.Sprint(60-b))
	}
	var parts [][]byte
	for l := range 3 {
		for b := range 61 {
			parts = append(parts, e.mem[(l*61+60-b)*bb:][:bb])
		}
	}
	status, got := checksums(t, s, `{"block_ids":[`+strings.Join(ids, ",")+`],"chunk_size":1000,"instance_id":1}`)
	require.Equal(t, 200, status, "%s", got)
	require.Equal(t, `["`+md5Hex(parts...)+`"]`, string(got["chunk_checksums"]))
}

func TestChecksumsThatCannotBe(t *testing.T) {
	f := func(s *Server, body string, status int, detail string) {
		t.Helper()
		code, got := checksums(t, s, body)
		require.Equal(t, status, code, "%s", got)
		require.Contains(t, string(got["detail"]), detail)
	}
	engineDriven := startServer(t, func(o *Options) { withHTTP(o); o.TransferMode = TransferEngineDriven })
	f(engineDriven, `{"block_ids":[1],"chunk_size":1,"instance_id":1}`, 501, "checksum not supported for this engine type")

	s := startServer(t, withHTTP)
	e, p := newEngine(t, s, 1, false, oneGroup), connect(t, s)
	p.registerCopier(2)
	f(s, `{"instance_id":4242}`, 404, "instance_id 4242 not registered")
	f(s, `{"block_ids":[1],"chunk_size":1,"instance_id":2}`, 404, "instance_id 2 not registered") // engine-driven
	e.registerKV()
	f(s, `{"instance_id":1}`, 400, "block_ids is required")
	f(s, `{"block_ids":[1],"instance_id":1}`, 400, "chunk_size must be positive")
	f(s, `{"block_ids":[1],"chunk_size":-1,"instance_id":1}`, 400, "chunk_size must be positive")
	f(s, `{"block_ids":[1],"chunk_size":1,"instance_id":1}`, 501, "checksum not supported for GPU KV format NL_X_NB_BS_NH_CS")
	other := newEngine(t, s, 3, false, oneGroup)
	p.none(wire.OpUnregisterEngineDriven, intFrame(2))
	e.none(wire.OpUnregisterKVCache, intFrame(1))
	other.kvTensors("float16", "NHD", 1, 16, 4, 8)
	f(s, `{"block_ids":[1,-1],"chunk_size":1,"instance_id":3}`, 400, "block id -1 is out of range")
	f(s, `{"block_ids":[1,16],"chunk_size":1,"instance_id":3}`, 400, "block id 16 is out of range")
}

// Checksums do not wait for a store that is stuck, and end with their worker.
func TestChecksumsBesideAStuckStore(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, withHTTP)
	dev.AddEvent("lost")
	e := newEngine(t, s, 1, false, oneGroup)
	e.kvTensors("float16", "NHD", 1, 16, 4, 8)
	uid := e.sendStore(e.keyOf("a", prompt(1, testChunk)), [][]int64{{1, 2, 3, 4}}, "lost")
	status, got := checksums(t, s, `{"block_ids":[1],"chunk_size":1,"instance_id":1}`)
	require.Equal(t, 200, status, "%s", got)
	s.sweep(time.Now().Add(2 * s.opt.WorkerRegistrationGrace))
	_, ok := e.answer(uid)
	require.False(t, ok)
	status, _ = checksums(t, s, `{"block_ids":[1],"chunk_size":1,"instance_id":1}`)
	require.Equal(t, 404, status)
}
