package mpserver

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
)

// Status is the tree of GET /status. It reads counters; it walks nothing but
// the registered workers.
func (s *Server) Status() httpapi.Status {
	ok, reason := s.Health()
	st := s.cache.Stats()
	staged := st.Reserved + st.Filling
	l1 := httpapi.L1Manager{
		IsHealthy:             s.cache.Alive(),
		TotalObjectCount:      int(st.Resident + staged),
		WriteLockedCount:      int(staged),
		ReadLockedCount:       int(st.Leased),
		StagingObjectCount:    int(staged),
		StagingBytes:          st.ReservedBytes + st.FillingBytes,
		MemoryUsedBytes:       st.UsedBytes,
		MemoryTotalBytes:      st.TotalBytes,
		MemoryConfiguredBytes: st.ConfiguredBytes,
		WriteTTLSeconds:       int(s.opt.L1.WriteTTL.Seconds()),
		ReadTTLSeconds:        int(s.opt.L1.ReadTTL.Seconds()),
	}
	evict := httpapi.EvictionController{
		IsHealthy: s.cache.Alive(), ThreadAlive: s.cache.Alive(), EvictionPolicy: string(s.opt.L1.EvictionPolicy),
		TriggerWatermark: httpapi.Float(s.opt.L1.TriggerWatermark), EvictionRatio: httpapi.Float(s.opt.L1.EvictionRatio),
	}
	out := httpapi.NewStatus(httpapi.NewStorageManager(l1, evict))
	out.IsHealthy = ok
	if n, ok := s.opt.Shown["storage_manager.prefetch_max_in_flight"].(int64); ok {
		out.StorageManager.PrefetchController.MaxInFlight = int(n)
	}
	out.ChunkSize = s.opt.ChunkSize
	out.HashAlgorithm = s.opt.HashAlgorithm
	out.ActiveSessions, out.ActivePrefetchJobs = s.sessions.counts()
	out.ActiveP2PLookupJobs = s.peers.len()
	out.KVEvents = s.events.status()
	out.WorkerLiveness = httpapi.WorkerLiveness{
		Enabled:                  s.opt.WorkerReapTimeout > 0,
		ReapTimeoutSeconds:       httpapi.Float(max(0, s.opt.WorkerReapTimeout.Seconds())),
		RegistrationGraceSeconds: httpapi.Float(s.opt.WorkerRegistrationGrace.Seconds()),
	}
	out.Go.Version, out.Go.InstanceID = s.opt.Version, s.opt.InstanceID
	out.Go.UptimeSeconds = httpapi.Float(time.Since(s.start).Seconds())
	out.Go.UnhealthyReason = reason
	out.Go.ShmName = s.arena.ShmName()
	out.Go.QueuedRequests = s.clients.queued()
	out.Go.L1 = goL1(st)
	out.Go.LastErrors = s.failures.list(time.Now())
	s.describeInstances(&out)
	s.describeGPUs(&out.Go)
	return out
}

func goL1(st l1cache.Stats) httpapi.GoL1Status {
	g := httpapi.GoL1Status{
		ResidentObjects: st.Resident, ReservedObjects: st.Reserved, FillingObjects: st.Filling,
		QuarantinedObjects: st.Quarantined + st.Orphaned, QuarantinedBytes: st.QuarantinedBytes + st.OrphanedBytes,
		LeasedObjects: st.Leased, NoSpaceRefusals: int64(st.NoSpace + st.TooLarge), EvictedChunks: map[string]int64{},
	}
	for r, n := range st.Evicted {
		g.EvictedChunks[l1cache.EvictReason(r).String()] = int64(n)
	}
	return g
}

// describeInstances fills in the registered workers, by transfer mode as the
// reference does.
func (s *Server) describeInstances(out *httpapi.Status) {
	if s.opt.TransferMode != TransferEngineDriven {
		out.RegisteredGPUIDs, out.CacheContextMeta = []int64{}, map[string]httpapi.CacheContextMeta{}
	}
	if s.opt.TransferMode != TransferLMCacheDriven {
		out.RegisteredNonCUDAInstanceIDs, out.NonCUDAContextMeta = []int64{}, map[string]httpapi.NonCUDAContextMeta{}
	}
	now := time.Now()
	t := s.instances
	t.mu.Lock()
	defer t.mu.Unlock()
	out.WorkerLiveness.TrackedInstances = len(t.byID)
	for id, in := range t.byID {
		g := httpapi.Instance{
			InstanceID: id, ModelName: in.layout.model, Transport: "pickle", State: "alive",
			AgeSeconds: httpapi.Float(now.Sub(in.registered).Seconds()), SilentSeconds: httpapi.Float(now.Sub(in.lastSeen).Seconds()),
			PendingTransfers: len(in.hands),
		}
		switch {
		case in.driven != nil:
			g.Transport = in.driven.name
			g.PendingTransfers += in.driven.pending()
		case !in.engine:
			g.Transport = "none"
		case s.sharesPool():
			g.Transport = "shm"
		}
		switch {
		case in.ill:
			g.State = "ill: " + in.lastErr
		case in.conn != nil && in.conn.isGone():
			g.State = "disconnected"
		default:
		}
		out.Go.Instances = append(out.Go.Instances, g)
		if in.engine && out.NonCUDAContextMeta != nil {
			out.RegisteredNonCUDAInstanceIDs = append(out.RegisteredNonCUDAInstanceIDs, id)
			out.NonCUDAContextMeta[strconv.FormatInt(id, 10)] = httpapi.NonCUDAContextMeta{
				ModelName: in.layout.model, WorldSize: in.layout.worldSize, BlockSize: in.layout.blockSize, UseMLA: in.layout.useMLA,
			}
		}
		if in.driven != nil && out.CacheContextMeta != nil {
			out.RegisteredGPUIDs = append(out.RegisteredGPUIDs, id)
			out.CacheContextMeta[strconv.FormatInt(id, 10)] = httpapi.CacheContextMeta{
				ModelName: in.layout.model, WorldSize: in.layout.worldSize, KVCacheLayout: describeLayout(in.layout.kv),
			}
		}
	}
	for d, c := range t.closing {
		out.Go.Instances = append(out.Go.Instances, httpapi.Instance{
			InstanceID: d.instance, ModelName: c.model, Transport: d.name, State: "quarantined",
			AgeSeconds: httpapi.Float(now.Sub(c.since).Seconds()), PendingTransfers: d.pending(),
		})
	}
	slices.Sort(out.RegisteredGPUIDs)
	slices.Sort(out.RegisteredNonCUDAInstanceIDs)
	slices.SortFunc(out.Go.Instances, func(a, b httpapi.Instance) int { return cmp.Compare(a.InstanceID, b.InstanceID) })
}

// describeLayout is kv_cache_layout of a server-driven worker.
func describeLayout(kv *kvlayout.Layout) httpapi.KVCacheLayout {
	d := kv.Describe()
	out := httpapi.KVCacheLayout{NumLayers: d.NumLayers, NumBlocks: int(d.NumBlocks), CacheSizePerToken: d.CacheSizePerToken}
	for i := range d.KernelGroups {
		g := &d.KernelGroups[i]
		out.KernelGroups = append(out.KernelGroups, httpapi.KernelGroup{
			KernelGroupIdx: g.KernelGroup, EngineGroupIdx: g.EngineGroup, ObjectGroupIdx: g.ObjectGroup,
			NumLayers: g.NumLayers, LayerIndices: g.LayerIndices,
			TokensPerBlock: int(g.TokensPerBlock), SlotsPerBlock: int(g.SlotsPerBlock), DType: g.DType,
			EngineKVConcreteShape: g.ConcreteShape, IsMLA: g.MLA, EngineKVFormat: g.Format,
			EngineKVShape: g.Shape, AttentionBackend: g.AttentionBackend,
		})
	}
	return out
}

// gauges is the state that a scrape reads.
func (s *Server) gauges() metrics.Gauges {
	ok, _ := s.Health()
	st := s.cache.Stats()
	active, jobs := s.sessions.counts()
	s.instances.mu.Lock()
	n := len(s.instances.byID)
	s.instances.mu.Unlock()
	return metrics.Gauges{
		Healthy:     ok,
		L1UsedBytes: st.UsedBytes, L1TotalBytes: st.TotalBytes, L1ConfiguredBytes: st.ConfiguredBytes,
		L1StagingBytes: st.ReservedBytes + st.FillingBytes, L1QuarantinedBytes: st.QuarantinedBytes + st.OrphanedBytes,
		L1Objects: st.Resident, L1LeasedObjects: st.Leased, EvictionTurns: st.Turns, EvictionTurnsTriggered: st.TurnsTriggered,
		ActivePrefetchJobs: int64(jobs), ActiveP2PLookupJobs: int64(s.peers.len()),
		KVEventLogDepth: int64(s.events.status().LogDepth),
		Sessions:        int64(active), Instances: int64(n), QueuedRequests: int64(s.clients.queued()),
		PromptCacheBytes: s.hasher.CacheStats().Bytes, GPUs: s.gpuGauges(),
	}
}

// cacheObserver counts what happens in the store.
type cacheObserver struct{ met *metrics.Metrics }

func (o cacheObserver) Published(s l1cache.Scope, n int)    { o.met.L1Written(s.Salt, n) }
func (o cacheObserver) ReadReleased(s l1cache.Scope, n int) { o.met.L1Read(s.Salt, n) }
func (o cacheObserver) Evicted(s l1cache.Scope, n int, reason l1cache.EvictReason) {
	o.met.L1Evicted(s.Salt, reason.String(), n)
}

// Sampled implements [l1cache.Sampler].
func (o cacheObserver) Sampled(events []l1cache.ObjectEvent) {
	now := time.Now()
	for i := range events {
		e := &events[i]
		id := metrics.ObjectID{Hash: e.Hash, Model: e.Scope.Model, Salt: e.Scope.Salt, Layout: e.Scope.Layout, Group: e.Scope.Group, Rank: e.Rank}
		switch e.Kind {
		case l1cache.ObjectStored:
			o.met.ObjectStored(id, now)
		case l1cache.ObjectRead:
			o.met.ObjectRead(id, now)
		case l1cache.ObjectGone:
			o.met.ObjectGone(id, now)
		}
	}
}

// sampleRate is the share of objects that the lifetime histograms follow.
func (o Options) sampleRate() float64 {
	if o.DisableMetrics {
		return 0
	}
	return o.MetricsSampleRate
}
