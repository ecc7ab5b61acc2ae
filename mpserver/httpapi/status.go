package httpapi

// Status is the tree of GET /status, with the reference's keys (lmcache 0.5.6,
// v1/multiprocess and v1/distributed, report_status). Make it with [NewStatus], then
// fill in what the server knows.
type Status struct {
	IsHealthy     bool   `json:"is_healthy"`
	EngineType    string `json:"engine_type"`
	ChunkSize     int    `json:"chunk_size"` // tokens
	HashAlgorithm string `json:"hash_algorithm"`
	// ActiveSessions is request sessions that have not ended.
	ActiveSessions int            `json:"active_sessions"`
	StorageManager StorageManager `json:"storage_manager"`
	// ActivePrefetchJobs is lookups whose result was not fetched yet.
	ActivePrefetchJobs  int            `json:"active_prefetch_jobs"`
	ActiveP2PLookupJobs int            `json:"active_p2p_lookup_jobs"`
	P2PEnabled          bool           `json:"p2p_enabled"`
	P2PState            string         `json:"p2p_state"` // "unregistered" while P2P is off
	P2PPeerCount        int            `json:"p2p_peer_count"`
	P2PPeers            []string       `json:"p2p_peers"`
	WorkerLiveness      WorkerLiveness `json:"worker_liveness"`
	KVEvents            KVEvents       `json:"kv_events"`

	// RegisteredGPUIDs and CacheContextMeta are the workers of server-driven
	// transfers; set (not nil) when the transfer mode serves those.
	RegisteredGPUIDs []int64                     `json:"registered_gpu_ids,omitzero"`
	CacheContextMeta map[string]CacheContextMeta `json:"cache_context_meta,omitzero"`
	// RegisteredNonCUDAInstanceIDs and NonCUDAContextMeta are the workers of
	// engine-driven transfers; set (not nil) when the transfer mode serves those.
	RegisteredNonCUDAInstanceIDs []int64                       `json:"registered_non_cuda_instance_ids,omitzero"`
	NonCUDAContextMeta           map[string]NonCUDAContextMeta `json:"non_cuda_context_meta,omitzero"`

	// Go is ours: what an operator needs beyond the reference's tree.
	Go GoStatus `json:"lmcache_go"`
}

// NewStatus returns a tree with everything set that is the same for every server
// without L2, P2P and an event stream.
func NewStatus(sm StorageManager) Status {
	return Status{
		IsHealthy:      sm.IsHealthy,
		EngineType:     "MPCacheServer",
		StorageManager: sm,
		P2PState:       "unregistered",
		P2PPeers:       []string{},
		KVEvents:       KVEvents{NextSeq: 1},
		Go:             GoStatus{Instances: []Instance{}, GPUs: []GPU{}, LastErrors: []LastError{}},
	}
}

// WorkerLiveness is how silent workers are dropped.
type WorkerLiveness struct {
	Enabled                  bool  `json:"enabled"`
	ReapTimeoutSeconds       Float `json:"reap_timeout_seconds"`
	RegistrationGraceSeconds Float `json:"registration_grace_seconds"`
	TrackedInstances         int   `json:"tracked_instances"`
}

// KVEvents is the log of stored and removed chunks that subscribers read.
type KVEvents struct {
	Enabled bool `json:"enabled"`
	// Incarnation is the server's start in nanoseconds since 1970.
	Incarnation   int64 `json:"incarnation"`
	LogDepth      int   `json:"log_depth"`
	LogCapacity   int   `json:"log_capacity"`
	NextSeq       int64 `json:"next_seq"` // the first record is 1
	LostMarkers   int64 `json:"lost_markers"`
	UnboundStores int64 `json:"unbound_stores"`
	Subscribers   int   `json:"subscribers"`
}

// StorageManager is the tiers and the loops that serve them.
type StorageManager struct {
	IsHealthy             bool                          `json:"is_healthy"`
	L1Managers            map[string]L1Manager          `json:"l1_managers"`
	StoreControllers      map[string]StoreController    `json:"store_controllers"`
	L1EvictionControllers map[string]EvictionController `json:"l1_eviction_controllers"`
	PrefetchController    PrefetchController            `json:"prefetch_controller"`
	L2EvictionController  L2EvictionController          `json:"l2_eviction_controller"`
	L2Adapters            []any                         `json:"l2_adapters"`
	NumL2Adapters         int                           `json:"num_l2_adapters"`
	L1Usage               [2]int64                      `json:"l1_usage"` // used, total bytes
	L1CapacityByBackend   map[string]int64              `json:"l1_capacity_bytes_by_backend"`
	L1Manager             L1Manager                     `json:"l1_manager"`
	StoreController       StoreController               `json:"store_controller"`
	L1EvictionController  EvictionController            `json:"l1_eviction_controller"`
	// EvictionController is a copy that the reference's own `describe` looks for
	// and 0.5.6 does not send.
	EvictionController EvictionController `json:"eviction_controller"`
}

// defaultTag names the one L1 of a server without --l1-manager (lmcache 0.5.6,
// v1/distributed/config).
const defaultTag = "_default"

// NewStorageManager returns the node for a server with one L1 and no L2. It sets
// the copies that the reference keeps; l1's ratio and capacities are computed
// from its bytes.
func NewStorageManager(l1 L1Manager, evict EvictionController) StorageManager {
	l1.CapacityByBackend = map[string]int64{"dram": l1.MemoryConfiguredBytes}
	l1.MemoryUsageRatio = 0
	if l1.MemoryTotalBytes > 0 {
		l1.MemoryUsageRatio = Float(float64(l1.MemoryUsedBytes) / float64(l1.MemoryTotalBytes))
	}
	store := StoreController{IsHealthy: true, ThreadAlive: true}
	return StorageManager{
		IsHealthy:             l1.IsHealthy && evict.IsHealthy,
		L1Managers:            map[string]L1Manager{defaultTag: l1},
		StoreControllers:      map[string]StoreController{defaultTag: store},
		L1EvictionControllers: map[string]EvictionController{defaultTag: evict},
		PrefetchController:    PrefetchController{IsHealthy: true, ThreadAlive: true, MaxInFlight: 8},
		L2EvictionController:  L2EvictionController{IsHealthy: true, ThreadAlive: true, Adapters: []any{}},
		L2Adapters:            []any{},
		L1Usage:               [2]int64{l1.MemoryUsedBytes, l1.MemoryTotalBytes},
		L1CapacityByBackend:   map[string]int64{"dram": l1.MemoryConfiguredBytes},
		L1Manager:             l1,
		StoreController:       store,
		L1EvictionController:  evict,
		EvictionController:    evict,
	}
}

// L1Manager is the pool in host memory.
type L1Manager struct {
	IsHealthy bool `json:"is_healthy"`
	// TotalObjectCount is resident and staged objects together.
	TotalObjectCount int `json:"total_object_count"`
	// WriteLockedCount is staged objects whose reservation has not expired.
	WriteLockedCount int `json:"write_locked_count"`
	// ReadLockedCount is resident objects that somebody holds.
	ReadLockedCount int `json:"read_locked_count"`
	TemporaryCount  int `json:"temporary_count"`
	// StagingObjectCount and StagingBytes are all reservations, expired or not.
	StagingObjectCount int   `json:"staging_object_count"`
	StagingBytes       int64 `json:"staging_bytes"`
	// MemoryUsedBytes includes alignment and staging.
	MemoryUsedBytes int64 `json:"memory_used_bytes"`
	// MemoryTotalBytes is what is mapped so far; it grows to MemoryConfiguredBytes.
	MemoryTotalBytes      int64            `json:"memory_total_bytes"`
	MemoryConfiguredBytes int64            `json:"memory_configured_bytes"`
	CapacityByBackend     map[string]int64 `json:"capacity_bytes_by_backend"`
	MemoryUsageRatio      Float            `json:"memory_usage_ratio"`
	WriteTTLSeconds       int              `json:"write_ttl_seconds"`
	ReadTTLSeconds        int              `json:"read_ttl_seconds"`
}

// StoreController moves objects on to L2; without L2 it is idle.
type StoreController struct {
	IsHealthy           bool `json:"is_healthy"`
	ThreadAlive         bool `json:"thread_alive"`
	PendingKeysCount    int  `json:"pending_keys_count"`
	InFlightTaskCount   int  `json:"in_flight_task_count"`
	NumL2Adapters       int  `json:"num_l2_adapters"`
	NumActiveAdapters   int  `json:"num_active_adapters"`
	NumDrainingAdapters int  `json:"num_draining_adapters"`
}

// EvictionController is the watermark loop.
type EvictionController struct {
	IsHealthy        bool   `json:"is_healthy"`
	ThreadAlive      bool   `json:"thread_alive"`
	EvictionPolicy   string `json:"eviction_policy"`
	TriggerWatermark Float  `json:"trigger_watermark"`
	EvictionRatio    Float  `json:"eviction_ratio"`
}

// PrefetchController loads objects from L2; without L2 it is idle.
type PrefetchController struct {
	IsHealthy             bool `json:"is_healthy"`
	ThreadAlive           bool `json:"thread_alive"`
	MaxInFlight           int  `json:"max_in_flight"`
	SubmissionQueueSize   int  `json:"submission_queue_size"`
	PendingQueueSize      int  `json:"pending_queue_size"`
	InFlightRequestCount  int  `json:"in_flight_request_count"`
	LookupPhaseCount      int  `json:"lookup_phase_count"`
	LoadPhaseCount        int  `json:"load_phase_count"`
	CompletedResultsCount int  `json:"completed_results_count"`
	NumL2Adapters         int  `json:"num_l2_adapters"`
	NumActiveAdapters     int  `json:"num_active_adapters"`
	NumDrainingAdapters   int  `json:"num_draining_adapters"`
}

// L2EvictionController evicts from L2; without L2 it is idle.
type L2EvictionController struct {
	IsHealthy   bool  `json:"is_healthy"`
	ThreadAlive bool  `json:"thread_alive"`
	Adapters    []any `json:"adapters"`
}
