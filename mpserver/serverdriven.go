package mpserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// serverDriven is what the server holds of a worker whose blocks it copies: the
// mappings of its KV cache and a queue each way, so that a load does not wait
// behind stores, nor behind anybody else.
type serverDriven struct {
	instance int64
	name     string // of the device, for metrics
	dev      device.Device
	memory   []device.Memory // one per storage of the layout
	bytes    int64           // of them
	stores   *copyQueue
	loads    *copyQueue
	hashing  chan struct{} // holds a value while checksums are computed
	closed   chan struct{} // closed when nothing touches the worker's memory any more
	// Of a worker whose cache is on a GPU:
	gpu      *gpu
	counters []refCounter
}

func (d *serverDriven) queue(dir copyplan.Direction) *copyQueue {
	if dir == copyplan.Load {
		return d.loads
	}
	return d.stores
}

// pending is the number of transfers on their way.
func (d *serverDriven) pending() int { return d.stores.pending() + d.loads.pending() }

// registration is a decoded REGISTER_KV_CACHE.
type registration struct {
	id        int64
	model     string
	worldSize int
	input     kvlayout.Input
	uuid      string // of the GPU, "" for host memory
	counters  []refCounter
}

// decodeRegistration reads the seven payloads (gpu-path 2).
func (s *Server) decodeRegistration(r *request) (reg registration, err error) {
	p := r.payloads
	if reg.id, err = wire.DecodeInt(p[0]); err != nil {
		return reg, fmt.Errorf("instance_id: %w", err)
	}
	if reg.model, err = wire.DecodeString(p[2]); err != nil {
		return reg, fmt.Errorf("model_name: %w", err)
	}
	world, err := wire.DecodeInt(p[3])
	if err != nil {
		return reg, fmt.Errorf("world_size: %w", err)
	}
	reg.worldSize = int(world)
	wrappers, err := wire.DecodeDeviceWrappers(p[1])
	if err != nil {
		return reg, fmt.Errorf("kv_cache: %w", err)
	}
	engine, err := wire.DecodeEngineType(p[4])
	if err != nil {
		return reg, fmt.Errorf("engine_type: %w", err)
	}
	var hints wire.LayoutHints
	if err := wire.DecodeLayoutHints(p[5], &hints); err != nil {
		return reg, fmt.Errorf("layout_hints: %w", err)
	}
	groups, err := wire.DecodeEngineGroupInfos(p[6])
	if err != nil {
		return reg, fmt.Errorf("engine_group_infos: %w", err)
	}
	in := kvlayout.Input{
		Engine: kvlayout.Engine(engine), ChunkTokens: s.opt.ChunkSize, SeparateObjectGroups: s.opt.SeparateObjectGroups,
		Hints: kvlayout.Hints{KVLayout: hints.KVLayout, NumKVHeads: int64(hints.NumKVHeads), TokensPerBlock: int64(hints.TokensPerBlock), KVListLayout: hints.KVListLayout, HeadDim: int64(hints.HeadDim)},
	}
	if in.Tensors, reg.uuid, reg.counters, err = tensorsOf(wrappers); err != nil {
		return reg, err
	}
	in.CPUEngine = reg.uuid == ""
	for _, g := range groups {
		in.Groups = append(in.Groups, kvlayout.GroupInfo{
			EngineGroup: g.EngineGroupID, Layers: g.LayerIndices, TokensPerBlock: g.TokensPerBlock,
			WindowTokens: g.WindowTokens, ExtraTag: g.ExtraGroupTag, Recurrent: g.RecurrentState,
		})
	}
	reg.input = in
	return reg, nil
}

// handleRegisterKVCache maps a worker's KV cache and works out how its blocks
// become objects.
func handleRegisterKVCache(s *Server, _ context.Context, r *request) reply {
	reg, err := s.decodeRegistration(r)
	if err != nil {
		return s.registrationFailed(r, reg.id, s.illLayout(reg), fmt.Errorf("%w of instance %d: %w", errRegistration, reg.id, err))
	}
	kv, err := kvlayout.New(reg.input)
	if err != nil {
		return s.registrationFailed(r, reg.id, s.illLayout(reg), err)
	}
	lay, err := s.serverDrivenLayout(reg.model, reg.worldSize, kv)
	if err != nil {
		return s.registrationFailed(r, reg.id, s.illLayout(reg), err)
	}
	if reg.uuid != "" {
		// The driver takes its time, and may never come back.
		s.retiring.run(func() {
			ctx, cancel := context.WithTimeout(s.abandon, s.registerLimit(r))
			defer cancel()
			d, err := s.openOnGPU(ctx, &reg, kv)
			s.later(r, s.registered(r, &reg, lay, d, err))
		})
		return reply{kind: replyLater}
	}
	d, err := openServerDriven(&reg, s.dev, s.devName, kv)
	return s.registered(r, &reg, lay, d, err)
}

// registered ends a registration: d is what was opened of its memory, unless
// err says why it was not.
//
// A worker that registers again may have new memory under the old names, and
// has given up what it had on its way: nothing of its former self is kept.
func (s *Server) registered(r *request, reg *registration, lay *layout, d *serverDriven, err error) reply {
	if err != nil {
		return s.registrationFailed(r, reg.id, lay, err)
	}
	in := &instance{id: reg.id, layout: lay, driven: d, conn: r.client}
	former, err := s.instances.register(in, time.Now())
	if err != nil {
		s.retire(d, endDoubtful)
		return s.registrationFailed(r, reg.id, lay, err)
	}
	s.met.InstanceEvent("registered")
	s.log.Info("registered", "component", "mq", "instance_id", reg.id, "model", reg.model, "world_size", reg.worldSize,
		"mode", TransferLMCacheDriven, "device", d.name, "layout", lay.fingerprint, "tensors", len(reg.input.Tensors), "storages", len(d.memory), "bytes", d.bytes)
	return s.whenClosed(former, r, empty)
}

// illLayout is a stand-in for a registration that was not understood, so that
// --on-register-failure degrade knows which model counts 0. nil when not even
// the pair is known.
func (s *Server) illLayout(reg registration) *layout {
	if checkPair(reg.model, reg.worldSize) != nil {
		return nil
	}
	return &layout{model: reg.model, worldSize: reg.worldSize}
}

// openServerDriven maps all storages of a layout, or none.
func openServerDriven(reg *registration, dev device.Device, name string, kv *kvlayout.Layout) (opened *serverDriven, err error) {
	d := &serverDriven{instance: reg.id, name: name, dev: dev, hashing: make(chan struct{}, 1), closed: make(chan struct{})}
	defer func() {
		if err != nil {
			for _, m := range d.memory {
				m.Close()
			}
			err = fmt.Errorf("%w of instance %d: %w", errRegistration, reg.id, err)
		}
	}()
	for _, st := range kv.Storages {
		m, err := dev.Open(st.Key, st.Bytes)
		if err != nil {
			if strings.HasPrefix(st.Key, device.CUDAExpandablePrefix) {
				err = fmt.Errorf("%w: %w", errSegments, err)
			}
			return nil, err
		}
		d.memory = append(d.memory, m)
		d.bytes += st.Bytes
	}
	if d.stores, err = newCopyQueue(dev, fmt.Sprintf("store %d", reg.id)); err != nil {
		return nil, err
	}
	if d.loads, err = newCopyQueue(dev, fmt.Sprintf("load %d", reg.id)); err != nil {
		return nil, errors.Join(err, d.stores.stream.Close(context.Background()))
	}
	return d, nil
}
