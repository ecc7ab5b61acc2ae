package httpapi

// CacheContextMeta is one worker of server-driven transfers.
type CacheContextMeta struct {
	ModelName     string        `json:"model_name"`
	WorldSize     int           `json:"world_size"`
	KVCacheLayout KVCacheLayout `json:"kv_cache_layout"`
}

// KVCacheLayout is the layout that such a worker registered.
type KVCacheLayout struct {
	NumLayers int `json:"num_layers"`
	NumBlocks int `json:"num_blocks"`
	// CacheSizePerToken is bytes; `lmcache bench engine` derives tokens per GB from it.
	CacheSizePerToken int64         `json:"cache_size_per_token"`
	KernelGroups      []KernelGroup `json:"kernel_groups"`
}

// KernelGroup is layers that are copied alike.
type KernelGroup struct {
	KernelGroupIdx        int    `json:"kernel_group_idx"`
	EngineGroupIdx        int    `json:"engine_group_idx"`
	ObjectGroupIdx        int    `json:"object_group_idx"`
	NumLayers             int    `json:"num_layers"`
	LayerIndices          []int  `json:"layer_indices"`
	TokensPerBlock        int    `json:"tokens_per_block"`
	SlotsPerBlock         int    `json:"slots_per_block"`
	DType                 string `json:"dtype"` // "torch.bfloat16"
	EngineKVConcreteShape string `json:"engine_kv_concrete_shape"`
	IsMLA                 bool   `json:"is_mla"`
	EngineKVFormat        string `json:"engine_kv_format"`
	EngineKVShape         string `json:"engine_kv_shape"`
	AttentionBackend      string `json:"attention_backend"`
}

// NonCUDAContextMeta is one worker of engine-driven transfers.
type NonCUDAContextMeta struct {
	ModelName string `json:"model_name"`
	WorldSize int    `json:"world_size"`
	BlockSize int    `json:"block_size"`
	UseMLA    bool   `json:"use_mla"`
}

// GoStatus is the part of the tree that the reference has not: ages, what is
// stuck, and what went wrong last, with what to do about it.
type GoStatus struct {
	Version       string `json:"version"`
	InstanceID    string `json:"instance_id"`
	UptimeSeconds Float  `json:"uptime_seconds"`
	// UnhealthyReason is empty while the server is healthy.
	UnhealthyReason string `json:"unhealthy_reason"`
	// ShmName is the segment of the pool, "" for a private pool.
	ShmName        string     `json:"shm_name"`
	QueuedRequests int        `json:"queued_requests"`
	L1             GoL1Status `json:"l1"`
	Instances      []Instance `json:"instances"`
	// GPUs that this server sees, with or without workers on them.
	GPUs []GPU `json:"gpus"`
	// GPUsUnknown says why GPUs are not listed, "" where they are.
	GPUsUnknown string `json:"gpus_unknown,omitempty"`
	// LastErrors is the latest of each kind, newest first, bounded.
	LastErrors []LastError `json:"last_errors"`
}

// GoL1Status is states of objects that the reference does not tell apart.
type GoL1Status struct {
	ResidentObjects    int64 `json:"resident_objects"`
	ReservedObjects    int64 `json:"reserved_objects"`
	FillingObjects     int64 `json:"filling_objects"`
	QuarantinedObjects int64 `json:"quarantined_objects"`
	QuarantinedBytes   int64 `json:"quarantined_bytes"`
	LeasedObjects      int64 `json:"leased_objects"`
	// EvictedChunks is counted by reason since the start.
	EvictedChunks map[string]int64 `json:"evicted_chunks"`
	// NoSpaceRefusals is stores that found no room since the start.
	NoSpaceRefusals int64 `json:"no_space_refusals"`
}

// Instance is one registered worker, whatever its transport.
type Instance struct {
	InstanceID int64  `json:"instance_id"`
	ModelName  string `json:"model_name"`
	Transport  string `json:"transport"` // "shm", "pickle", "cpu", "cuda:0"
	// AgeSeconds is since the registration, SilentSeconds since the last word.
	AgeSeconds    Float  `json:"age_seconds"`
	SilentSeconds Float  `json:"silent_seconds"`
	State         string `json:"state"` // "alive", "disconnected", "quarantined"
	// PendingTransfers is reservations and leases in the worker's hands.
	PendingTransfers int `json:"pending_transfers"`
}

// GPU is a device of this machine and what the server has on it.
type GPU struct {
	Device     string `json:"device"` // "cuda:0" as in metrics, "" when CUDA does not show it
	UUID       string `json:"uuid"`
	Name       string `json:"name"`
	PCIAddress string `json:"pci_address"`
	// PCIeGen is the link's best, not what it sleeps at, PCIeWidth its lanes; 0 is unknown.
	PCIeGen   int `json:"pcie_gen"`
	PCIeWidth int `json:"pcie_width"`
	NUMANode  int `json:"numa_node"` // -1 is unknown
	// MemoryBytes of the GPU, and UsedBytes of it by all processes; 0 and -1 are unknown.
	MemoryBytes int64 `json:"memory_bytes"`
	UsedBytes   int64 `json:"used_bytes"`
	// Open: workers are registered on it, so that this server holds a context.
	Open bool `json:"open"`
	// MappedBytes of engines' memory, in so many Mappings; the Streams that copy.
	MappedBytes int64 `json:"mapped_bytes"`
	Mappings    int   `json:"mappings"`
	Streams     int   `json:"streams"`
	// PendingCopies are requests on their way.
	PendingCopies int `json:"pending_copies"`
	// Workers are registered on it, QuarantinedWorkers have ended and something
	// of theirs still waits; their memory stays mapped.
	Workers            int `json:"workers"`
	QuarantinedWorkers int `json:"quarantined_workers"`
}

// LastError is the latest failure of one kind.
type LastError struct {
	Op         string `json:"op"`
	Reason     string `json:"reason"`
	Count      int64  `json:"count"`
	AgeSeconds Float  `json:"age_seconds"`
	Message    string `json:"message"`
	Remedy     string `json:"remedy"`
}
