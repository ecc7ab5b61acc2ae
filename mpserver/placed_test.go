package mpserver

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver/torchpickle"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Objects of 512 KiB, so that pickles of a few are read as large frames.
const (
	largeHidden = 16 << 10
	largeObject = 2 * testChunk * largeHidden
)

// pickling starts a server in pickle mode with a worker of large objects.
func pickling(t *testing.T) (*Server, *peer) {
	t.Helper()
	s := startServer(t, func(o *Options) { o.L1.SizeBytes = 96 << 20 })
	p := connect(t, s)
	c := wire.EngineDrivenContext{InstanceID: 1, Model: testModel, WorldSize: 1, BlockSize: testChunk, NumLayers: 1, HiddenDim: largeHidden, DType: "uint8"}
	_, refused := p.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &c))
	require.False(t, refused)
	return s, p
}

func largeChunk(seed, chunk int) []byte {
	b := make([]byte, largeObject)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(seed)<<48|uint64(chunk)<<32|uint64(i))
	}
	return b
}

func largePickle(t *testing.T, seed, n int) []byte {
	t.Helper()
	d, _ := torchdtype.Lookup("uint8")
	enc, err := torchpickle.NewEncoder(d, []int64{2, 1, testChunk, largeHidden})
	require.NoError(t, err)
	chunks := make([][]byte, n)
	for i := range chunks {
		chunks[i] = largeChunk(seed, i)
	}
	return enc.Append(nil, chunks)
}

// requireStored looks k up and reads it back.
func requireStored(t *testing.T, p *peer, k wire.Key, seed int) {
	t.Helper()
	n := k.End / testChunk
	require.Equal(t, n, p.lookup(k))
	r := p.prepareRetrieve(k, 1)
	require.True(t, r.Success)
	tensors, err := torchpickle.Parse(r.Data)
	require.NoError(t, err)
	require.Len(t, tensors, n)
	for i := range tensors {
		require.True(t, bytes.Equal(largeChunk(seed, i), tensors[i].Data), "chunk %d", i)
	}
	require.True(t, p.commitRetrieve(k, 1))
	p.end(k.RequestID)
}

// From the second one on, a client's pickles of one size go straight into the pool.
func TestPicklesAreReadIntoThePool(t *testing.T) {
	s, p := pickling(t)
	for i := range 4 {
		k := keyOf("r", prompt(uint64(i+1), 3*testChunk))
		require.True(t, p.commitPickle(k, largePickle(t, i, 3)))
		require.EqualValues(t, i, s.directly.Load())
		requireStored(t, p, k, i)
	}
	// Two chunks are resident, with other bytes: only the third is taken.
	tokens := prompt(1, 3*testChunk)
	tokens[2*testChunk]++
	k := keyOf("part", tokens)
	require.True(t, p.commitPickle(k, largePickle(t, 7, 3)))
	require.EqualValues(t, 4, s.directly.Load())
	require.Equal(t, 3, p.lookup(k))
	tensors, err := torchpickle.Parse(p.prepareRetrieve(k, 1).Data)
	require.NoError(t, err)
	for i, seed := range []int{0, 0, 7} {
		require.True(t, bytes.Equal(largeChunk(seed, i), tensors[i].Data), "chunk %d", i)
	}
	// All are resident: there is nothing to place.
	require.True(t, p.commitPickle(k, largePickle(t, 8, 3)))
	require.EqualValues(t, 4, s.directly.Load())
	require.Zero(t, s.cache.Stats().Reserved)
}

// A pickle of the same size whose tensors lie elsewhere is stored all the same.
func TestPickleUnlikeTheOneBefore(t *testing.T) {
	s, p := pickling(t)
	// The offset of a tensor in its storage, 0, takes two or three bytes.
	long := func(pickle []byte, chunk int) []byte {
		const short = "\x85R" + "K\x00" // TUPLE1, REDUCE, BININT1 0
		at := 0
		for range chunk + 1 {
			at += strings.Index(string(pickle[at:]), short) + len(short)
		}
		return append(append(bytes.Clone(pickle[:at-2]), "M\x00\x00"...), pickle[at:]...)
	}
	for i, chunk := range []int{0, 1, 0, 0} {
		k := keyOf("r", prompt(uint64(i+1), 3*testChunk))
		require.True(t, p.commitPickle(k, long(largePickle(t, i, 3), chunk)))
		requireStored(t, p, k, i)
	}
	// The second did not fit the first and was taken as a new one; the third
	// had to be learned again.
	require.EqualValues(t, 1, s.directly.Load())
	require.Zero(t, s.cache.Stats().Reserved)
}

// What is no pickle, or not that of the worker's objects, is refused as ever.
func TestJunkWhereAPickleIsExpected(t *testing.T) {
	s, p := pickling(t)
	first := largePickle(t, 1, 3)
	require.True(t, p.commitPickle(keyOf("r", prompt(1, 3*testChunk)), first))
	k := keyOf("r", prompt(2, 3*testChunk))
	require.False(t, p.commitPickle(k, bytes.Repeat([]byte{0x80, 4, '.'}, len(first)/3+1)[:len(first)]))
	require.Zero(t, p.lookup(k))
	require.True(t, p.commitPickle(k, largePickle(t, 2, 3)))
	other := bytes.Replace(largePickle(t, 3, 3), []byte("ByteStorage"), []byte("CharStorage"), 1)
	require.True(t, p.commitPickle(keyOf("r", prompt(3, 3*testChunk)), largePickle(t, 3, 3)))
	require.False(t, p.commitPickle(keyOf("r", prompt(4, 3*testChunk)), other), "int8 is not uint8")
	require.Zero(t, s.cache.Stats().Reserved)
}

// A client that ends in the middle leaves nothing behind.
func TestConnectionEndsWhileAPickleIsPlaced(t *testing.T) {
	s, p := pickling(t)
	nc, err := net.Dial("tcp", strings.TrimPrefix(s.Addr(), "tcp://"))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(time.Minute)))
	c, err := zmtp.Dealer(nc, 1<<20)
	require.NoError(t, err)
	commit := func(seed uint64) []byte {
		var m []byte
		for _, f := range [][]byte{intFrame(1), wire.AppendOp(nil, wire.OpCommitStore), keyFrame(keyOf("r", prompt(seed, 3*testChunk))), intFrame(1)} {
			m = zmtp.AppendFrame(m, f, true)
		}
		return zmtp.AppendFrame(m, wire.AppendBytes(nil, largePickle(t, int(seed), 3)), false)
	}
	require.NoError(t, c.Write(commit(1)))
	_, err = c.Read()
	require.NoError(t, err)
	half := commit(2)
	require.NoError(t, c.Write(half[:len(half)*2/3]))
	testutil.Eventually(t, "slots are reserved", func() bool { return s.cache.Stats().Reserved == 3 })
	require.Zero(t, p.lookup(keyOf("r", prompt(2, 3*testChunk))))
	require.NoError(t, c.Close())
	testutil.Eventually(t, "they are given back", func() bool { return s.cache.Stats().Reserved == 0 })
	k := keyOf("r", prompt(2, 3*testChunk))
	require.True(t, p.commitPickle(k, largePickle(t, 2, 3)))
	requireStored(t, p, k, 2)
}

// A client that does not read its pickle holds the objects of it, whatever
// becomes of the cache, until it reads or is gone.
func TestPickleThatIsNotRead(t *testing.T) {
	s, p := pickling(t)
	const n = 80 // chunks: more than the socket takes
	k := keyOf("r", prompt(1, n*testChunk))
	pickle := largePickle(t, 1, n)
	require.True(t, p.commitPickle(k, pickle))
	nc, err := net.Dial("tcp", strings.TrimPrefix(s.Addr(), "tcp://"))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(time.Minute)))
	c, err := zmtp.Dealer(nc, 64<<20)
	require.NoError(t, err)
	retrieve := func() {
		require.Equal(t, n, p.lookup(k))
		var m []byte
		m = zmtp.AppendFrame(m, intFrame(1), true)
		m = zmtp.AppendFrame(m, wire.AppendOp(nil, wire.OpPrepareRetrieve), true)
		m = zmtp.AppendFrame(m, keyFrame(k), true)
		require.NoError(t, c.Write(zmtp.AppendFrame(m, intFrame(1), false)))
	}
	retrieve()
	testutil.Eventually(t, "it is being read", func() bool { return s.cache.Stats().LeaseHolds == 0 })
	p.none(wire.OpClear, boolFrame(true))
	other := keyOf("o", prompt(2, 3*testChunk))
	require.True(t, p.commitPickle(other, largePickle(t, 2, 3)), "the rest of the pool is free")
	m, err := c.Read()
	require.NoError(t, err)
	r, err := wire.DecodePrepareRetrieve(m[2])
	require.NoError(t, err)
	tensors, err := torchpickle.Parse(r.Data)
	require.NoError(t, err)
	require.Len(t, tensors, n)
	for _, i := range []int{0, 1, n / 2, n - 1} {
		require.True(t, bytes.Equal(largeChunk(1, i), tensors[i].Data), "chunk %d", i)
	}
	testutil.Eventually(t, "only the other is left", func() bool { return s.cache.Stats().UsedBytes == 3*largeObject })

	require.True(t, p.commitPickle(k, pickle))
	retrieve()
	testutil.Eventually(t, "it is being read again", func() bool { return s.cache.Stats().LeaseHolds == 0 })
	p.none(wire.OpClear, boolFrame(true))
	require.NotZero(t, s.cache.Stats().UsedBytes)
	require.NoError(t, c.Close())
	testutil.Eventually(t, "the memory is back", func() bool { return s.cache.Stats().UsedBytes == 0 })
}
