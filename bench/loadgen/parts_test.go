package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

func TestKeyTemplate(t *testing.T) {
	for _, mark := range []int{0, 100, 299} {
		base := baseTokens(300, mark)
		for worker := -1; worker < 2; worker++ {
			k, err := newKeyTemplate("m", base, worker, 0, 256, mark)
			require.NoError(t, err)
			var rid [ridBytes]byte
			copy(rid[:], "c001-0000002-0000000003-")
			const token = 1<<31 + 7
			var got wire.Key
			require.NoError(t, wire.DecodeKey(k.make(&rid, token), &got, nil))
			want := append([]uint32(nil), base...)
			want[mark] = token
			require.Equal(t, wire.AppendTokens(nil, want), got.Tokens)
			require.Equal(t, string(rid[:]), got.RequestID)
			require.Equal(t, 300, got.TokenCount)
			require.Equal(t, 256, got.End)
			require.Equal(t, worker >= 0, got.HasWorker)
			require.Equal(t, 1, got.NumKVReaders)
		}
	}
}

func TestPromptTokensFitTheTemplate(t *testing.T) {
	seen := map[uint32]bool{}
	for client := range 20 {
		for seq := range uint64(100) {
			token := promptToken(client, seq, 99999)
			require.GreaterOrEqual(t, token, uint32(65536), "needs the 5-byte form")
			seen[token] = true
		}
	}
	require.Len(t, seen, 2000)
}

// TestConnections talks through both transports to a ROUTER of libzmq.
func TestConnections(t *testing.T) {
	router, err := zmq4.NewSocket(zmq4.ROUTER)
	require.NoError(t, err)
	require.NoError(t, router.SetRcvtimeo(20*time.Second))
	require.NoError(t, router.Bind("tcp://127.0.0.1:*"))
	url, err := router.GetLastEndpoint()
	require.NoError(t, err)
	const messages = 14
	done := make(chan error, 1)
	go func() { // echoes until it has seen all messages of both
		for range 2 * messages {
			m, err := router.RecvMessageBytes(0)
			if err == nil {
				_, err = router.SendMessage(m)
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for _, transport := range []string{"tcp", "zmq"} {
		c, err := dial(transport, url, 10*time.Second)
		require.NoError(t, err)
		_, err = c.recv(0)
		require.ErrorIs(t, err, errNothing)
		_, err = c.recv(10 * time.Millisecond)
		require.ErrorIs(t, err, errNothing)
		var want [][][]byte
		for _, n := range []int{0, 1, 255, 256, 70000, 3 << 20, 9} {
			big := bytes.Repeat([]byte{byte(n)}, n)
			want = append(want, [][]byte{{1}, big}, [][]byte{big, nil, []byte("x"), big})
		}
		require.Len(t, want, messages)
		for _, m := range want {
			require.NoError(t, c.send(m...))
		}
		require.NoError(t, c.flush())
		for _, m := range want {
			got, err := c.recv(20 * time.Second)
			require.NoError(t, err)
			require.Len(t, got, len(m))
			for i := range m {
				require.True(t, bytes.Equal(m[i], got[i]), "%s: frame %d of %d bytes", transport, i, len(m[i]))
			}
		}
		require.NoError(t, c.close())
	}
	require.NoError(t, <-done)
	require.NoError(t, router.Close())
}

func TestRepliesMustBeAskedFor(t *testing.T) {
	c := &client{st: newStats(), cfg: &config{Ops: "noop"}, flights: make([]flight, 1), conn: &zmtpConn{}}
	c.opFrames[wire.OpNoop], c.opFrames[wire.OpPing] = []byte{24}, []byte{22}
	f := &c.flights[0]
	f.c = c
	post := func() []byte {
		require.NoError(t, f.post(wire.OpNoop, func(*flight, []byte, bool) error { return nil }))
		return bytes.Clone(f.uid[:])
	}
	old := post()
	require.NoError(t, c.handle([][]byte{old, {24}}))
	require.ErrorContains(t, c.handle([][]byte{old, {24}}), "second reply")
	uid := post()
	require.NotEqual(t, old, uid)
	require.ErrorContains(t, c.handle([][]byte{old, {24}}), "second reply")
	require.ErrorContains(t, c.handle([][]byte{uid, {22}}), "refused")
	require.Error(t, c.handle([][]byte{uid}))
	require.Error(t, c.handle([][]byte{{0xce, 0, 0, 0, 9}, {24}}))
}

func TestSummarize(t *testing.T) {
	a, b := newStats(), newStats()
	for i := range 100 {
		a.add("store", time.Duration(i+1)*time.Millisecond, 1e6)
		b.add("store", time.Duration(i+101)*time.Millisecond, 1e6)
	}
	a.inc("refused", 2)
	b.inc("refused", 3)
	r := summarize(&config{Ops: "store", Clients: 2, Depth: 1}, []*stats{a, b}, 10*time.Second)
	o := r.Ops["store"]
	require.Equal(t, 200, o.N)
	require.InDelta(t, 20, o.OpsS, 0.001)
	require.InDelta(t, 100.5e3, o.MeanUS, 1)
	require.InDelta(t, 101e3, o.P50US, 1)
	require.InDelta(t, 199e3, o.P99US, 1)
	require.InDelta(t, 200e3, o.MaxUS, 1)
	require.InDelta(t, 0.02, o.GBsWall, 1e-6)
	require.InDelta(t, 0.02, o.GBsBusy, 0.001) // 200 MB in 20.1 s of two clients
	require.Equal(t, int64(5), r.Counters["refused"])
	a.reset()
	require.Empty(t, a.latencies)
}

func TestReadProc(t *testing.T) {
	s, err := readProc(os.Getpid())
	require.NoError(t, err)
	require.Positive(t, s.Threads)
	require.Positive(t, s.MiB["VmRSS"])
	_, err = readProc(1 << 30)
	require.Error(t, err)
	u := use(procState{CPUS: 1}, procState{CPUS: 2}, 2*time.Second, 1000)
	require.Equal(t, "1000 50", fmt.Sprint(u.CPUUSPerOp, u.CPUPct))
}

func TestReadBackWrongSlots(t *testing.T) {
	d := &dataPlane{c: &client{cfg: &config{Mode: "shm"}, chunks: 1, st: newStats()}, chunkBytes: 64, pool: make([]byte, 256)}
	for _, s := range []wire.Slot{
		{Offset: 0, Length: 63, DType: dtype},
		{Offset: 193, Length: 64, DType: dtype},
		{Offset: -1, Length: 64, DType: dtype},
		{Offset: 0, Length: 64, DType: "float16"},
	} {
		_, err := d.read(&wire.PrepareRetrieveReply{Success: true, Slots: []wire.Slot{s}}, 1)
		require.ErrorContains(t, err, "slot")
		require.Error(t, d.write(&wire.PrepareStoreReply{Slots: []wire.Slot{s}, ChunkIndices: []int{0}}, 1))
	}
}
