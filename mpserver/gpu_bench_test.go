//go:build linux && cgo

package mpserver

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/fakecuda"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// BenchmarkGPUStore is the time from a STORE of 32 chunks until its copies are in
// the hands of the driver, which does nothing here: blocks of 64 KiB of 32
// layers at random places, in 1 GiB.
func BenchmarkGPUStore(b *testing.B) {
	const chunks = 32
	f := fakecuda.New(fakecuda.Options{})
	defer f.Close()
	f.NoCopies()
	drv, err := cuda.Load(cuda.LoadOptions{Symbol: f.Symbol})
	require.NoError(b, err)
	s, err := New(Options{HTTPPort: -1, L1: L1Options{SizeBytes: 1100 << 20}, gpuDriver: func() (gpuDriver, error) { return cudaDriver{drv}, nil }})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	<-s.arena.Grown()
	e := &engine{tb: b, s: s, id: 1, blockSlots: 16, blocks: 1024, world: 1, groups: []kvGroup{{layers: 32, heads: 8, headBytes: 512}}}
	handle, mem := f.Export(101, int64(32*1024*16*e.groups[0].rowBytes()))
	e.mem, e.uuid, e.handle = mem, drv.Devices()[0].UUID, append([]byte{3, 'c'}, handle[:]...)
	e.do(b, wire.OpRegisterKVCache, e.registration()...)

	tokens := prompt(1, chunks*256)
	tokens[0] = 70000 // five bytes on the wire, to be changed in place
	k := keyOf("bench", tokens)
	k.End = len(tokens)
	frame := keyFrame(k)
	tok := firstToken(b, frame)
	ids := make([]int64, 16*chunks)
	for i, p := range rand.New(rand.NewPCG(1, 2)).Perm(1023)[:len(ids)] {
		ids[i] = int64(p + 1)
	}
	id, event, src := intFrame(1), wire.AppendBytes(nil, nil), wire.AppendBlockIDs(nil, [][]int64{ids})
	b.ReportAllocs()
	for i := uint32(1); b.Loop(); i++ {
		binary.BigEndian.PutUint32(tok, 1<<20+i)
		e.transferOK(b, wire.OpStore, frame, id, src, event)
		b.StopTimer()
		for s.gpus.devices()[0].dev.Stats().Pending > 0 {
			runtime.Gosched()
		}
		b.StartTimer()
	}
}
