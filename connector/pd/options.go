package pd

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// Defaults of vLLM 0.33.
const (
	// DefaultPort is VLLM_NIXL_SIDE_CHANNEL_PORT's default.
	DefaultPort = 5600
	// DefaultLease is kv_lease_duration's default.
	DefaultLease = 30 * time.Second
	// EnvHost and EnvPort say where the side channel is.
	EnvHost = "VLLM_NIXL_SIDE_CHANNEL_HOST"
	EnvPort = "VLLM_NIXL_SIDE_CHANNEL_PORT"
)

// Region is the KV cache of one layer: blocks at equal distances. Its memory
// must lie within Options.Memory.
type Region struct {
	// Name of the layer as vLLM has it, "model.layers.0.self_attn.attn". Both
	// sides must list the same names in the same order.
	Name string
	// Addr is the address of block 0.
	Addr uintptr
	// BlockBytes is what is transferred of a block; Stride is the distance of
	// blocks, 0 for BlockBytes.
	BlockBytes, Stride int
	// Blocks is how many there are.
	Blocks int
	// Group is the KV cache group: the index into the lists of block ids.
	Group int
}

// Options configure a Peer.
type Options struct {
	// EngineID names the engine, for all its ranks. Default: new at each start,
	// which is what peers that outlive this engine need.
	EngineID string
	// Model is what must agree on both sides. Required unless Compatibility is
	// given.
	Model Model
	// Compatibility is the hash that stands for the model, 64 hexadecimal
	// digits, for an engine that read it from a peer ([Query]) instead of
	// computing it. Default: Model.Hash().
	Compatibility string
	// AnyModel accepts producers with another hash (enforce_handshake_compat
	// false).
	AnyModel bool

	// TPRank of TPSize: this rank of the engine. Default 0 of 1.
	TPRank, TPSize int

	// Layout is vLLM's name of the order of dimensions: LBHNC (heads first;
	// needed to read from another tensor parallel size) or LBNHC. Default LBHNC.
	Layout string
	// BlockTokens is the size of a block of the regions in tokens. Required.
	BlockTokens int
	// BlocksPerLogical is how many blocks of the regions make one block of the
	// scheduler, whose ids are the ones that travel. Default 1.
	BlocksPerLogical int
	// Regions are the KV cache, one or more for each layer, in the order of
	// layers. Required.
	Regions []Region
	// Memory holds all regions, and is registered with NIXL: [nixl.HostMemory]
	// or [nixl.CUDAMemory], all of one kind and device. It must stay until
	// Close has returned nil, else until Peer.Done is closed. Required.
	Memory []nixl.Region
	// Shared are the parts of Memory that are shared memory of this host; see
	// [SharedMemory].
	Shared []SharedMemory
	// SharedGPU are the allocations of GPU memory in Memory that can be mapped
	// by CUDA IPC; see [SharedGPU].
	SharedGPU []SharedGPU
	// CUDA is the context of this rank's GPU, by which it reads the GPU memory of
	// producers on its host. The caller holds it until Close has returned. nil:
	// it is read through NIXL.
	CUDA *cuda.Context
	// PullBlocks is how many multiprocessors reading by CUDA takes from whoever
	// else computes, while it lasts. Default 32.
	PullBlocks int
	// NoDirect neither offers nor uses ways around NIXL.
	NoDirect bool

	// Library is NIXL. Default: what nixl.Load finds.
	Library *nixl.Library
	// UCX configures the backend.
	UCX nixl.UCX

	// Channel is a side channel that ranks of the engine share. Default: one of
	// this peer's own at Host and Port.
	Channel *SideChannel
	// Host to listen on, and to be reached at: it goes into Params. Default
	// "localhost", which no other host can reach.
	Host string
	// Advertise is the host that goes into Params, where Host is a wildcard or
	// behind a translation. Default Host.
	Advertise string
	// Port to listen on. 0 chooses a free one; see [Peer.Port]. [Options.FromEnv]
	// sets vLLM's.
	Port int

	// Released is called once for each request that was offered, when its
	// blocks may be reused. It must not block, and may call the peer.
	Released func(Release)

	// Lease is how long blocks are kept without a sign of their reader.
	// Default 30 s. A heartbeat extends it to two thirds of that from then on.
	Lease time.Duration
	// Heartbeat is the pause between heartbeats for tracked requests. Default:
	// Lease/6.
	Heartbeat time.Duration
	// HandshakeTimeout bounds one handshake. Default 5 s.
	HandshakeTimeout time.Duration
	// TransferTimeout bounds the reading of one request. vLLM has no such bound;
	// a hung producer would hold a request for ever. Default 2 min.
	TransferTimeout time.Duration
	// EngineTTL is how long a producer that is not used stays known (engine_ttl).
	// Default 1 h.
	EngineTTL time.Duration

	// Logger hears of leases that end, of peers that go, and of what vLLM logs.
	// Default: nobody.
	Logger *slog.Logger
}

// FromEnv sets Host and Port as vLLM does: from VLLM_NIXL_SIDE_CHANNEL_HOST and
// VLLM_NIXL_SIDE_CHANNEL_PORT, localhost and 5600 by default. vLLM adds the data
// parallel index to the port; do so with the result.
func (o *Options) FromEnv(getenv func(string) string) error {
	o.Host, o.Port = "localhost", DefaultPort
	if h := getenv(EnvHost); h != "" {
		o.Host = h
	}
	if p := getenv(EnvPort); p != "" {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 || n > 65535 {
			return fmt.Errorf("%w: %s=%s: give a port, or 0 for a free one", ErrOptions, EnvPort, p)
		}
		o.Port = n
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.EngineID == "" {
		o.EngineID = newID()
	}
	if o.TPSize == 0 {
		o.TPSize = 1
	}
	if o.Layout == "" {
		o.Layout = LayoutHeadsFirst
	}
	if o.BlocksPerLogical == 0 {
		o.BlocksPerLogical = 1
	}
	if o.Host == "" {
		o.Host = "localhost"
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Lease, DefaultLease)
	def(&o.Heartbeat, o.Lease/6)
	def(&o.HandshakeTimeout, 5*time.Second)
	def(&o.TransferTimeout, 2*time.Minute)
	def(&o.EngineTTL, time.Hour)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Compatibility == "" {
		o.Compatibility = o.Model.Hash()
	}
	regions := make([]Region, len(o.Regions))
	for i, r := range o.Regions {
		if r.Stride == 0 {
			r.Stride = r.BlockBytes
		}
		regions[i] = r
	}
	o.Regions = regions
	return o
}

// check reports everything that is wrong with options that have their defaults.
func (o *Options) check() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, args...)))
	}
	if o.TPSize < 1 || o.TPRank < 0 || o.TPRank >= o.TPSize {
		bad("rank %d of %d", o.TPRank, o.TPSize)
	}
	if o.BlockTokens < 1 || o.BlocksPerLogical < 1 {
		bad("BlockTokens %d and BlocksPerLogical %d must be at least 1", o.BlockTokens, o.BlocksPerLogical)
	}
	if len(o.Regions) == 0 {
		bad("no Regions")
	}
	if len(o.Memory) == 0 {
		bad("no Memory to register")
	}
	for _, m := range o.Memory {
		if m.Mem != o.Memory[0].Mem || m.Dev != o.Memory[0].Dev {
			bad("Memory of different kinds or devices: one peer for each")
			break
		}
	}
	if o.CUDA != nil && len(o.Memory) > 0 && (o.Memory[0].Mem != nixl.VRAM || int(o.Memory[0].Dev) != o.CUDA.Device().Ordinal) {
		bad("CUDA is device %d, Memory is %s of device %d", o.CUDA.Device().Ordinal, o.Memory[0].Mem, o.Memory[0].Dev)
	}
	names := map[string]bool{}
	for i, r := range o.Regions {
		switch {
		case r.BlockBytes < 1 || r.Stride < r.BlockBytes || r.Blocks < 1:
			bad("region %d (%s): %d blocks of %d bytes with stride %d", i, r.Name, r.Blocks, r.BlockBytes, r.Stride)
		case r.Group < 0:
			bad("region %d (%s): group %d", i, r.Name, r.Group)
		case !o.holds(r):
			bad("region %d (%s) is not within Memory", i, r.Name)
		}
		if r.Name == "" || names[r.Name] {
			bad("region %d: name %q is empty or not unique", i, r.Name)
		}
		names[r.Name] = true
	}
	if len(o.Compatibility) != 64 {
		bad("Compatibility %q is no SHA-256 in hexadecimal", o.Compatibility)
	}
	return errors.Join(errs...)
}

func (o *Options) holds(r Region) bool {
	size := uintptr(r.Blocks-1)*uintptr(r.Stride) + uintptr(r.BlockBytes)
	for _, m := range o.Memory {
		if r.Addr >= m.Addr && r.Addr+size <= m.Addr+m.Len {
			return true
		}
	}
	return false
}

// groups is how many KV cache groups the regions have.
func (o *Options) groups() int {
	n := 0
	for _, r := range o.Regions {
		n = max(n, r.Group+1)
	}
	return n
}
