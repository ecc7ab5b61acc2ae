package pd_test

import (
	"context"
	"errors"
	"os"

	"github.com/lmcache-go/lmcache-go/connector/pd"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// layer is the KV cache of one layer: blocks of heads, tokens and content.
type layer struct {
	name   string
	memory []byte // not of the Go heap
}

// newPeer makes the peer of a tiny engine.
func newPeer(layers []layer, blocks int, free func(requestID string)) (*pd.Peer, error) {
	o := pd.Options{
		Model: pd.Model{
			Name: "Qwen/Qwen3-0.6B", DType: "torch.bfloat16", KVHeads: 8, HeadSize: 128, Layers: len(layers), AttnBackend: "FLASH_ATTN",
		},
		BlockTokens: 16,
		Released:    func(r pd.Release) { free(r.RequestID) }, // read, expired, withdrawn or closed
	}
	if err := o.FromEnv(os.Getenv); err != nil { // VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT
		return nil, err
	}
	for _, l := range layers {
		m := nixl.HostMemory(l.memory)
		o.Memory = append(o.Memory, m)
		o.Regions = append(o.Regions, pd.Region{Name: l.name, Addr: m.Addr, BlockBytes: len(l.memory) / blocks, Blocks: blocks})
	}
	return pd.New(o)
}

// A decode engine: what the router passed on says where the KV is.
func ExamplePeer_Pull() {
	load := func(ctx context.Context, p *pd.Peer, requestID string, transferParams []byte, blocks []int64) (loaded bool, err error) {
		params, err := pd.ParseParams(transferParams)
		if err != nil || params == nil || !params.DoRemotePrefill {
			return false, err // compute it here
		}
		if err := params.Check(); err != nil {
			return false, err
		}
		p.Track(requestID, params) // when the request arrives: its lease stays alive while it waits
		res, err := p.Pull(ctx, requestID, params, [][]int64{blocks})
		if err != nil && !errors.Is(err, pd.ErrNotify) {
			<-res.Settled // until then the blocks may still be written to
			return false, err
		}
		return true, nil
	}
	_ = load
}

// A prefill engine: the answer says where the KV is, and the blocks stay until
// Options.Released is called.
func ExamplePeer_Offer() {
	answer := func(p *pd.Peer, requestID string, blocks []int64, tokens int) (transferParams *pd.Params, err error) {
		return p.Offer(pd.Offer{RequestID: requestID, Blocks: [][]int64{blocks}, Tokens: tokens})
	}
	_, _ = answer, newPeer
}
