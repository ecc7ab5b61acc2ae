package simengine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/connector/multi"
	"github.com/lmcache-go/lmcache-go/connector/multi/nixlpull"
	"github.com/lmcache-go/lmcache-go/connector/pd"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// nixlPull is the name that vLLM 0.33 prints for [connector.NixlConnector].
const nixlPull = "NixlPullConnector"

// nixl starts the NIXL peer that a transfer config asks for.
func (e *Engine) nixl(_ context.Context, t *connector.TransferConfig) (multi.Scheduler, multi.Worker, error) {
	o, err := e.peerOptions(t)
	if err != nil {
		return nil, nil, err
	}
	c, err := nixlpull.New(o, e.opts.BlockTokens)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w (`lmcache-go doctor nixl` tells where it is looked for, pip install 'nixl-cu12==1.5.1' brings it)", t.Connector, err)
	}
	e.pd = c.Peer()
	e.opts.Logger.Info("NIXL side channel", "component", "nixl", "host", o.Host, "port", e.pd.Port(), "engine_id", e.pd.EngineID())
	return c.Scheduler(), c.Worker(), nil
}

func (e *Engine) peerOptions(t *connector.TransferConfig) (pd.Options, error) {
	o := pd.Options{
		EngineID: e.opts.Connector.EngineID,
		Model: pd.Model{
			Name: e.opts.Model, DType: "torch." + dtype, KVHeads: e.opts.Heads, HeadSize: e.opts.HeadSize, Layers: e.opts.Layers, AttnBackend: "FLASH_ATTN",
		},
		Layout: pd.LayoutHeadsFirst, BlockTokens: e.opts.BlockTokens, NoDirect: !e.opts.NixlDirect, Library: e.opts.Library, Logger: e.opts.Logger,
	}
	if err := o.FromEnv(e.opts.Getenv); err != nil {
		return o, err
	}
	var seconds float64
	for key, set := range map[string]func(){
		"kv_lease_duration": func() { o.Lease = time.Duration(seconds * float64(time.Second)) },
		"engine_ttl":        func() { o.EngineTTL = time.Duration(seconds * float64(time.Second)) },
	} {
		raw, ok := t.Extra[key]
		if !ok {
			continue
		}
		if err := json.Unmarshal(raw, &seconds); err != nil || seconds <= 0 || seconds > 1e6 {
			return o, fmt.Errorf("%w: %s must be a number of seconds above 0, got %.40s", errOptions, key, raw)
		}
		set()
	}
	o.AnyModel = string(t.Extra["enforce_handshake_compat"]) == "false"
	mem := e.mem.Host()[0]
	o.Memory = []nixl.Region{nixl.HostMemory(mem)}
	base := o.Memory[0].Addr
	for l := range e.opts.Layers {
		o.Regions = append(o.Regions, pd.Region{
			Name: "model.layers." + strconv.Itoa(l) + ".self_attn.attn", Addr: base + uintptr(l*e.kv.layer), BlockBytes: e.opts.pageBytes(), Blocks: e.opts.Blocks,
		})
	}
	src, err := e.mem.Source(0)
	if err != nil {
		return o, err
	}
	if shm, ok := src.(*wire.CPUShm); ok {
		o.Shared = []pd.SharedMemory{{Path: filepath.Join("/dev/shm", shm.Name), Addr: base, Bytes: int64(len(mem))}}
	}
	return o, nil
}

// nixlTotals are the peer's statistics since the start, and those that the log
// has not told yet. The peer forgets what it has told.
type nixlTotals struct {
	all, fresh pd.Stats
	// Sums of all, since the list of transfers is not kept for ever.
	transfers, bytes, descriptors int64
	xfer, post                    time.Duration
}

// collect takes the peer's statistics; the caller holds nixlMu.
func (e *Engine) collect() {
	if e.pd == nil {
		return
	}
	s := e.pd.TakeStats()
	n := &e.nixlTotals
	n.fresh.Add(s)
	for _, t := range s.Transfers {
		n.transfers++
		n.bytes += t.Bytes
		n.descriptors += int64(t.Descriptors)
		n.xfer += t.Xfer
		n.post += t.Post
	}
	s.Transfers = nil
	n.all.Add(s)
}

// nixlStats are the figures of an interval, for the log.
func (e *Engine) nixlStats() []multi.ChildStats {
	e.nixlMu.Lock()
	defer e.nixlMu.Unlock()
	e.collect()
	s := e.nixlTotals.fresh
	e.nixlTotals.fresh = pd.Stats{}
	if s.Empty() {
		return nil
	}
	out := multi.ChildStats{Name: connector.NixlConnector}
	for _, x := range s.Entries() {
		out.Stats = append(out.Stats, multi.Stat{Key: x.Key, Value: x.Text})
	}
	return []multi.ChildStats{out}
}

// nixlMetrics writes vLLM's metrics of NIXL. Histograms have their sum and count
// and one bucket.
func (e *Engine) nixlMetrics(w io.Writer, labels string) {
	if e.pd == nil {
		return
	}
	e.nixlMu.Lock()
	e.collect()
	n := e.nixlTotals
	e.nixlMu.Unlock()
	for _, h := range []struct {
		name string
		sum  float64
	}{
		{"vllm:nixl_xfer_time_seconds", n.xfer.Seconds()},
		{"vllm:nixl_post_time_seconds", n.post.Seconds()},
		{"vllm:nixl_bytes_transferred", float64(n.bytes)},
		{"vllm:nixl_num_descriptors", float64(n.descriptors)},
	} {
		fmt.Fprintf(w, "# TYPE %s histogram\n%s_bucket{%s,le=\"+Inf\"} %d\n%s_sum{%s} %s\n%s_count{%s} %d\n", h.name,
			h.name, labels, n.transfers, h.name, labels, strconv.FormatFloat(h.sum, 'g', -1, 64), h.name, labels, n.transfers)
	}
	s := n.all
	for _, m := range []metric{
		{"counter", "vllm:nixl_num_failed_transfers_total", float64(s.FailedTransfers + s.FailedNotifications + s.FailedHandshakes)},
		{"counter", "vllm:nixl_num_failed_notifications_total", float64(s.FailedNotifications)},
		{"counter", "vllm:nixl_num_kv_expired_reqs_total", float64(s.Expired)},
		{"counter", "vllm:nixl_num_notifications_after_expiry_total", float64(s.LateNotifs)},
	} {
		m.write(w, labels)
	}
}

// usesNixl says whether pages must have the form that NIXL transfers.
func usesNixl(t *connector.TransferConfig) bool {
	return t != nil && slices.ContainsFunc(append([]*connector.TransferConfig{t}, t.Children...), func(c *connector.TransferConfig) bool {
		return c.Connector == connector.NixlConnector || c.Connector == nixlPull
	})
}
