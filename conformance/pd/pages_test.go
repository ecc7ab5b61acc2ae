package pd

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/connector/pd"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// goEngine is the KV cache of a Go engine with the geometry of a vLLM engine,
// and its peer.
type goEngine struct {
	*pd.Peer
	t        *testing.T
	shape    *reply
	buf      *nixl.HostBuffer
	blocks   int
	released chan pd.Release
}

const goBlocks = 128

func newGo(t *testing.T, shape *reply, change ...func(*pd.Options)) *goEngine {
	t.Helper()
	g := &goEngine{t: t, shape: shape, blocks: goBlocks, released: make(chan pd.Release, 16)}
	page := shape.Lens[0]
	var err error
	g.buf, err = nixl.MapBuffer(len(shape.Names)*goBlocks*page, nixl.MapOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.buf.Close() })
	o := pd.Options{
		Library: library(t), Host: "127.0.0.1", BlockTokens: shape.Block, Layout: shape.Layout, Memory: []nixl.Region{g.buf.Region()},
		Model: pd.Model{
			Name: shape.Model, DType: shape.DType, KVHeads: shape.Heads, HeadSize: shape.HeadSize, Layers: shape.Layers, AttnBackend: shape.Backend,
			CacheDType: shape.Cache, NoHybrid: !shape.Hybrid,
		},
		Released: func(r pd.Release) { g.released <- r },
	}
	require.Equal(t, shape.Hash, o.Model.Hash(), "the hash that vLLM computes")
	for i, name := range shape.Names {
		o.Regions = append(o.Regions, pd.Region{Name: name, Addr: g.buf.Addr() + uintptr(i*goBlocks*page), BlockBytes: page, Blocks: goBlocks})
	}
	for _, f := range change {
		f(&o)
	}
	g.Peer, err = pd.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

// page returns what engine.py holds in the block of positions [from, from+32):
// heads first, 16 bits an element. Positions behind the tokens are zero.
func (g *goEngine) page(tokens []int, layer, from int) []byte {
	h := 7
	b := make([]byte, g.shape.Lens[0])
	for pos, token := range tokens {
		h = (h*1103515245 + token + 12345) & 0x3fffffff
		if pos < from || pos >= from+g.shape.Block {
			continue
		}
		for head := range g.shape.Heads {
			for i := range 2 * g.shape.HeadSize {
				at := ((head*g.shape.Block+pos-from)*2*g.shape.HeadSize + i) * 2
				binary.LittleEndian.PutUint16(b[at:], uint16((h+head*7919+i*31+layer*104729)&0x7fff))
			}
		}
	}
	return b
}

func (g *goEngine) at(layer int, block int64) []byte {
	n := g.shape.Lens[0]
	i := (layer*g.blocks + int(block)) * n
	return g.buf.Bytes()[i : i+n]
}

// count is how many blocks so many tokens take.
func (g *goEngine) count(tokens int) int { return (tokens + g.shape.Block - 1) / g.shape.Block }

// scattered are block ids in no order.
func scattered(n int) []int64 {
	ids := make([]int64, n)
	for i, id := range rand.New(rand.NewPCG(3, 4)).Perm(goBlocks - 1)[:n] {
		ids[i] = int64(id) + 1
	}
	return ids
}

// prefill computes a prompt and offers it.
func (g *goEngine) prefill(id string, tokens []int) *pd.Params {
	g.t.Helper()
	ids := scattered(g.count(len(tokens)))
	for i, id := range ids {
		for l := range g.shape.Names {
			copy(g.at(l, id), g.page(tokens, l, i*g.shape.Block))
		}
	}
	p, err := g.Offer(pd.Offer{RequestID: id, Blocks: [][]int64{ids}, Tokens: len(tokens)})
	require.NoError(g.t, err)
	return p
}

// pull reads a prompt but for the first skip blocks, and compares all pages.
func (g *goEngine) pull(p *pd.Params, tokens []int, skip int) pd.Result {
	g.t.Helper()
	clear(g.buf.Bytes())
	ids := scattered(g.count(len(tokens)) - skip)
	ctx, cancel := context.WithTimeout(g.t.Context(), 20*time.Second)
	defer cancel()
	res, err := g.Pull(ctx, "mine-"+p.RemoteRequestID, p, [][]int64{ids})
	require.NoError(g.t, err)
	for i, id := range ids {
		from := (skip + i) * g.shape.Block
		for l := range g.shape.Names {
			want, got := g.page(tokens, l, from), g.at(l, id)
			for head := range g.shape.Heads { // what was computed; behind it the producer has anything
				row := 2 * g.shape.HeadSize * 2
				n, at := min(len(tokens)-from, g.shape.Block)*row, head*g.shape.Block*row
				require.Equal(g.t, want[at:at+n], got[at:at+n], "layer %d, block %d of the prompt, head %d", l, skip+i, head)
			}
		}
	}
	return res
}

// read waits for the notification of a reader.
func (g *goEngine) read(id string) {
	g.t.Helper()
	select {
	case r := <-g.released:
		require.Equal(g.t, id, r.RequestID)
		require.Equal(g.t, pd.ReleaseRead, r.Reason)
		require.Equal(g.t, 1, r.Readers)
	case <-time.After(20 * time.Second):
		g.t.Fatal("no notification in 20 s")
	}
}

// prompt is a list of tokens; prompts of one seed begin with the same ones.
func prompt(seed uint64, n int) []int {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]int, n)
	for i := range out {
		out[i] = 3 + r.IntN(31990)
	}
	return out
}

const id = "cmpl-___prefill_addr_127.0.0.1:8001___decode_addr_127.0.0.1:8002_%02d-0-1a2b3c4d"

// TestPagesOfAllPairs moves prompts from producers of Go and vLLM to consumers
// of Go and vLLM.
func TestPagesOfAllPairs(t *testing.T) {
	python(t)
	folder := t.TempDir()
	p, d := startEngine(t, folder, "kv_producer"), startEngine(t, folder, "kv_consumer")
	p.reply, d.reply = p.read(), d.read()
	require.Empty(t, p.Error+d.Error)
	require.Equal(t, p.Hash, d.Hash)
	require.Equal(t, "LBHNC", d.Layout)
	goP, goD := newGo(t, &d.reply), newGo(t, &p.reply)
	run := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			p.t, d.t, goP.t, goD.t = t, t, t, t
			f(t)
		})
	}

	run("vLLM to vLLM", func(t *testing.T) {
		tokens := prompt(1, 600)
		params, r := p.prefill(fmt.Sprintf(id, 1), tokens)
		require.Less(t, r.Free, p.Free, "blocks wait for the decoder")
		d.decode("d1", tokens, params, 4)
		p.freed()
	})
	run("vLLM to Go", func(t *testing.T) {
		tokens := prompt(2, 601)
		params, r := p.prefill(fmt.Sprintf(id, 2), tokens)
		require.Equal(t, p.Free-goD.count(len(tokens)), r.Free)
		require.Equal(t, p.Engine, params.RemoteEngineID)
		res := goD.pull(params, tokens, 0)
		require.Equal(t, goD.count(len(tokens)), res.Blocks)
		p.freed()
		// The first blocks are in the consumer's prefix cache.
		params, _ = p.prefill(fmt.Sprintf(id, 3), tokens)
		require.Equal(t, 5, goD.pull(params, tokens, goD.count(len(tokens))-5).Blocks)
		p.freed()
		// All of them are.
		params, _ = p.prefill(fmt.Sprintf(id, 4), tokens)
		goD.pull(params, tokens, goD.count(len(tokens)))
		p.freed()
		s := goD.TakeStats()
		require.Len(t, s.Transfers, 2)
	})
	run("Go to vLLM", func(t *testing.T) {
		tokens := prompt(3, 600)
		d.decode("d2", tokens, goP.prefill(fmt.Sprintf(id, 5), tokens), 4)
		goP.read(fmt.Sprintf(id, 5))
		// Its prefix cache has the first 18 blocks now.
		tokens = prompt(3, 640)
		d.decode("d3", tokens, goP.prefill(fmt.Sprintf(id, 6), tokens), 4)
		goP.read(fmt.Sprintf(id, 6))
		counts := d.look().Counts["NixlPullConnector"]
		require.Empty(t, counts["num_failed_transfers"])
		n := len(counts["bytes_transferred"])
		require.EqualValues(t, 19*4*d.Lens[0], counts["bytes_transferred"][n-2])
		require.EqualValues(t, 2*4*d.Lens[0], counts["bytes_transferred"][n-1])
	})
	run("Go to Go", func(t *testing.T) {
		tokens := prompt(4, 600)
		goD.pull(goP.prefill(fmt.Sprintf(id, 7), tokens), tokens, 3)
		goP.read(fmt.Sprintf(id, 7))
	})
	// Heartbeats of a Go consumer keep the blocks of a vLLM producer beyond the
	// lease of 8 s.
	run("heartbeats of Go", func(t *testing.T) {
		tokens := prompt(5, 600)
		beating := newGo(t, &p.reply, func(o *pd.Options) { o.Heartbeat = time.Second })
		params, held := p.prefill(fmt.Sprintf(id, 8), tokens)
		beating.Track("waits", params)
		time.Sleep(10 * time.Second) //nolint:forbidigo // nothing may happen meanwhile
		require.Equal(t, held.Free, p.look().Free)
		beating.pull(params, tokens, 0)
		beating.Untrack("waits")
		p.freed()
	})
	run("heartbeats of vLLM", func(t *testing.T) {
		tokens := prompt(8, 600)
		const lease = 5 * time.Second
		beaten := newGo(t, &d.reply, func(o *pd.Options) { o.Lease = lease })
		params := beaten.prefill(fmt.Sprintf(id, 11), tokens)
		d.decodeLater(lease+2*time.Second, "d6", tokens, params, 4)
		beaten.read(fmt.Sprintf(id, 11))
	})
	// A producer that is gone before the read: vLLM computes the prompt itself.
	run("Go producer is gone", func(t *testing.T) {
		tokens := prompt(6, 600)
		gone := newGo(t, &d.reply)
		params := gone.prefill(fmt.Sprintf(id, 9), tokens)
		require.NoError(t, gone.Close())
		d.decode("d4", tokens, params, 4)
		require.NotEmpty(t, d.look().Counts["NixlPullConnector"]["num_failed_handshakes"])
		tokens = prompt(7, 600)
		d.decode("d5", tokens, goP.prefill(fmt.Sprintf(id, 10), tokens), 4)
		goP.read(fmt.Sprintf(id, 10))
	})
}
