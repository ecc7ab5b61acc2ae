package mpserver

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// kvGroup is a group of layers of a test engine.
type kvGroup struct {
	layers, heads, headBytes int
	window                   int // tokens, 0 for full attention
	tag                      int // above 0: auxiliary
}

func (g *kvGroup) rowBytes() int { return g.heads * g.headBytes }

// objectBytes of a chunk, when the window is not below one.
func (g *kvGroup) objectBytes() int { return g.layers * testChunk * g.rowBytes() }

// engine is a worker whose blocks the server copies: its memory, its layout
// and its connection. Layers lie one behind the other in one segment, each
// [blocks, tokens, heads, bytes] or, heads first, [blocks, heads, tokens, bytes].
type engine struct {
	*peer
	tb         testing.TB // of a benchmark, which has no peer
	s          *Server
	id         int64
	hnd        bool
	blockSlots int
	blocks     int
	groups     []kvGroup
	key        string
	mem        []byte // outside the Go heap: the server writes there
	world      int
	worker     int
	// On a GPU of the tests:
	gpus   *testGPUs
	uuid   string
	handle []byte // what torch's handle of the storage is
}

var engineSeq atomic.Int64

// oneGroup is the ordinary model of the tests; an engine-driven worker's
// objects of it have 2 layers and rows of 32 bytes.
var oneGroup = []kvGroup{{layers: 2, heads: 4, headBytes: 8}}

// newEngine makes a worker that is not registered yet.
func newEngine(t *testing.T, s *Server, id int64, hnd bool, groups []kvGroup) *engine {
	t.Helper()
	e := &engine{peer: connect(t, s), tb: t, s: s, id: id, hnd: hnd, blockSlots: 4, blocks: 64, groups: groups, world: 1}
	e.newMemory()
	return e
}

// newMemory gives the engine other memory, under another name.
func (e *engine) newMemory() {
	e.tb.Helper()
	size := 0
	for _, g := range e.groups {
		size += g.layers * e.blocks * e.blockSlots * g.rowBytes()
	}
	seq := engineSeq.Add(1)
	e.key = fmt.Sprintf("%stest_%d_%d", device.SegmentPrefix, os.Getpid(), seq)
	if e.gpus != nil {
		e.handle = append([]byte{3, 'c'}, make([]byte, 64)...)
		binary.LittleEndian.PutUint64(e.handle[2:], uint64(seq))
		e.key = device.CUDAIPCPrefix + hex.EncodeToString(e.handle[2:]) + ":0"
	}
	fd := -1
	flags := unix.MAP_PRIVATE | unix.MAP_ANON
	fake, isFake := e.s.dev.(*device.Fake)
	if !isFake && e.gpus == nil {
		f, err := os.Create(filepath.Join("/dev/shm", e.key))
		require.NoError(e.tb, err)
		defer f.Close()
		e.tb.Cleanup(func() { _ = os.Remove(f.Name()) })
		require.NoError(e.tb, f.Truncate(int64(size)))
		fd, flags = int(f.Fd()), unix.MAP_SHARED
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	require.NoError(e.tb, err)
	s := e.s
	e.tb.Cleanup(func() { // before the server's own end
		_ = s.Close()
		noPanic(e.tb, s)
		require.NoError(e.tb, unix.Munmap(mem))
	})
	switch {
	case e.gpus != nil:
		e.gpus.addMemory(e.key, mem)
	case isFake:
		fake.AddMemory(e.key, mem)
	}
	e.mem = mem
}

// at is the place of one head's bytes of a token.
func (e *engine) at(group, layer int, block int64, slot, head int) []byte {
	off := 0
	for _, g := range e.groups[:group] {
		off += g.layers * e.blocks * e.blockSlots * g.rowBytes()
	}
	g := &e.groups[group]
	bb := e.blockSlots * g.rowBytes()
	off += (layer*e.blocks + int(block)) * bb
	if e.hnd {
		off += (head*e.blockSlots + slot) * g.headBytes
	} else {
		off += (slot*g.heads + head) * g.headBytes
	}
	return e.mem[off : off+g.headBytes]
}

// content is the byte of one place of a prompt's KV, whatever the layout.
func content(seed uint32, token, group, layer, head, i int) byte {
	x := seed*2654435761 + uint32(token)*40503 + uint32(group)*977 + uint32(layer)*131 + uint32(head)*17 + uint32(i)*7
	x ^= x >> 15
	x *= 2246822519
	return byte(x>>13) | 1 // never the zero of fresh memory
}

// each visits the places of tokens [from, to), the first of which is in slot 0
// of the first block.
func (e *engine) each(group int, ids []int64, from, to int, f func(token, layer, head int, b []byte)) {
	g := &e.groups[group]
	for tok := from; tok < to; tok++ {
		n := tok - from
		for layer := range g.layers {
			for head := range g.heads {
				f(tok, layer, head, e.at(group, layer, ids[n/e.blockSlots], n%e.blockSlots, head))
			}
		}
	}
}

// write fills the blocks of tokens [from, to) in all groups.
func (e *engine) write(seed uint32, ids [][]int64, from, to int) {
	for g := range e.groups {
		e.each(g, ids[g], from, to, func(tok, layer, head int, b []byte) {
			for i := range b {
				b[i] = content(seed, tok, g, layer, head, i)
			}
		})
	}
}

// wrong counts the tokens of [from, to) in a group that do not hold their KV.
func (e *engine) wrong(group int, seed uint32, ids []int64, from, to int) int {
	bad := map[int]bool{}
	e.each(group, ids, from, to, func(tok, layer, head int, b []byte) {
		for i := range b {
			if b[i] != content(seed, tok, group, layer, head, i) {
				bad[tok] = true
			}
		}
	})
	return len(bad)
}

// requireKV checks tokens [from, to) in all groups.
func (e *engine) requireKV(seed uint32, ids [][]int64, from, to int) {
	e.t.Helper()
	for g := range e.groups {
		require.Zero(e.t, e.wrong(g, seed, ids[g], from, to), "wrong tokens of [%d, %d) in group %d", from, to, g)
	}
}

// wipe zeroes the engine's memory.
func (e *engine) wipe() { clear(e.mem) }

// ids makes block ids for n chunks in each group, from block first on, with a
// gap between groups and never in one run.
func (e *engine) ids(first int64, chunks int) [][]int64 {
	out := make([][]int64, len(e.groups))
	for g := range out {
		for i := range chunks * testChunk / e.blockSlots {
			out[g] = append(out[g], first+int64(i^1))
		}
	}
	return out
}

// registration are the payloads of REGISTER_KV_CACHE.
func (e *engine) registration() [][]byte {
	e.tb.Helper()
	d, ok := torchdtype.Lookup("uint8")
	require.True(e.tb, ok)
	var ws []wire.DeviceWrapper
	var infos []wire.EngineGroupInfo
	off := int64(0)
	for i, g := range e.groups {
		info := wire.EngineGroupInfo{EngineGroupID: i, TokensPerBlock: e.blockSlots, WindowTokens: -1, ExtraGroupTag: g.tag}
		if g.window > 0 {
			info.WindowTokens = g.window
		}
		n, h, c := int64(e.blockSlots), int64(g.heads), int64(g.headBytes)
		for range g.layers {
			info.LayerIndices = append(info.LayerIndices, len(ws))
			shape, stride := []int64{int64(e.blocks), n, h, c}, []int64{n * h * c, h * c, c, 1}
			if e.hnd {
				shape, stride = []int64{int64(e.blocks), h, n, c}, []int64{n * h * c, n * c, c, 1}
			}
			w := wire.DeviceWrapper{
				Source:   &wire.CPUShm{Name: e.key, SizeBytes: int64(len(e.mem))},
				Metadata: wire.TensorMetadata{DType: d, Shape: shape, Stride: stride, StorageOffset: off, DeviceUUID: "cpu"},
			}
			if e.uuid != "" {
				w.Source = &wire.CUDAStorage{Handle: e.handle, SizeBytes: int64(len(e.mem))}
				w.Metadata.DeviceUUID = e.uuid
			}
			ws = append(ws, w)
			off += int64(e.blocks) * n * h * c
		}
		infos = append(infos, info)
	}
	layout := wire.LayoutHints{KVLayout: "NHD"}
	if e.hnd {
		layout.KVLayout = "HND"
	}
	return [][]byte{
		intFrame(e.id), wire.AppendDeviceWrappers(nil, ws), strFrame(testModel), intFrame(int64(e.world)),
		strFrame(string(wire.EngineVLLM)), wire.AppendLayoutHints(nil, &layout), wire.AppendEngineGroupInfos(nil, infos),
	}
}

func (e *engine) registerKV() {
	e.t.Helper()
	e.none(wire.OpRegisterKVCache, e.registration()...)
}

// keyOf is a key of this worker.
func (e *engine) keyOf(id string, tokens []uint32) wire.Key {
	k := keyOf(id, tokens)
	k.WorldSize, k.WorkerID = e.world, e.worker
	return k
}

// sendStore sends a STORE and returns its uid.
func (e *engine) sendStore(k wire.Key, ids [][]int64, event string) []byte {
	e.t.Helper()
	return e.send(wire.AppendOp(nil, wire.OpStore), keyFrame(k), intFrame(e.id), wire.AppendBlockIDs(nil, ids), wire.AppendBytes(nil, []byte(event)))
}

func (e *engine) sendRetrieve(k wire.Key, ids [][]int64, skip int, event string) []byte {
	e.t.Helper()
	return e.send(wire.AppendOp(nil, wire.OpRetrieve), keyFrame(k), intFrame(e.id), wire.AppendBlockIDs(nil, ids), wire.AppendBytes(nil, []byte(event)), intFrame(int64(skip)))
}

// answer waits for the reply to uid, which is the next one.
func (e *engine) answer(uid []byte) (event string, ok bool) {
	e.t.Helper()
	frames := e.recv()
	require.Len(e.t, frames, 3)
	require.Equal(e.t, uid, frames[0], "the reply to another request")
	ev, ok, err := wire.DecodeStoreReply(frames[2])
	require.NoError(e.t, err)
	return string(ev), ok
}

func (e *engine) storeKV(k wire.Key, ids [][]int64) bool {
	e.t.Helper()
	_, ok := e.answer(e.sendStore(k, ids, ""))
	return ok
}

func (e *engine) retrieveKV(k wire.Key, ids [][]int64, skip int) bool {
	e.t.Helper()
	_, ok := e.answer(e.sendRetrieve(k, ids, skip, ""))
	return ok
}

// fakeServer runs a server on a fake device.
func fakeServer(t *testing.T, f device.FakeOptions, change func(*Options)) (*Server, *device.Fake) {
	t.Helper()
	dev := device.NewFake(f)
	t.Cleanup(func() { _ = dev.Close() })
	s := startServer(t, func(o *Options) {
		o.device = dev
		if change != nil {
			change(o)
		}
	})
	return s, dev
}

// idle checks that nothing is left of any transfer.
func idle(t *testing.T, s *Server) {
	t.Helper()
	st := s.cache.Stats()
	require.Zero(t, st.LeaseHolds, "leases")
	require.Zero(t, st.Reserved+st.Filling+st.Quarantined+st.Orphaned, "reservations: %+v", st)
	require.Zero(t, st.TransferObjects, "transfers")
	require.NoError(t, s.cache.Check())
}

// tryQuery asks once for the result of a lookup.
func (p *peer) tryQuery(id string) (n int, known bool) {
	p.t.Helper()
	v, refused := p.call(wire.OpQueryPrefetchStatus, strFrame(id))
	require.False(p.t, refused)
	if v == nil {
		return 0, false
	}
	got, err := wire.DecodeInt(v)
	require.NoError(p.t, err)
	return int(got), true
}

// onDevices runs f on a server with each device.
func onDevices(t *testing.T, change func(*Options), f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run("cpu", func(t *testing.T) { f(t, startServer(t, change)) })
	t.Run("fake", func(t *testing.T) {
		s, _ := fakeServer(t, device.FakeOptions{}, change)
		f(t, s)
	})
}

var panicSeries = regexp.MustCompile(`(?m)^lmcache_go_\w*panic\w*({.*})? [1-9].*$`)

// noPanic fails the test when a handler or the end of a copy has panicked: the
// request is answered as failed then, which a test of failures would not notice.
func noPanic(t testing.TB, s *Server) {
	t.Helper()
	var b bytes.Buffer
	_, _ = s.met.WriteTo(&b)
	if m := panicSeries.FindString(b.String()); m != "" {
		t.Error("the server contained a panic: ", m)
	}
}
