package metrics

// kind is the TYPE of a family in the exposition.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// family describes the series of one name.
type family struct {
	name string
	kind kind
	help string
}

// Names of the reference (lmcache 0.5.6, v1/mp_observability, as its Prometheus
// exporter writes them).
const (
	nameL1Write          = "lmcache_mp_l1_write_chunks_total"
	nameL1Read           = "lmcache_mp_l1_read_chunks_total"
	nameL1Evicted        = "lmcache_mp_l1_evicted_chunks_total"
	nameEvictTicks       = "lmcache_mp_l1_eviction_loop_ticks_total"
	nameEvictTriggered   = "lmcache_mp_l1_eviction_loop_triggered_total"
	nameL1Usage          = "lmcache_mp_l1_memory_usage_bytes"
	nameL1Ratio          = "lmcache_mp_l1_usage_ratio"
	nameL1Staging        = "lmcache_mp_l1_staging_bytes"
	nameLifetime         = "lmcache_mp_l1_chunk_lifetime_seconds"
	nameIdle             = "lmcache_mp_l1_chunk_idle_before_evict_seconds"
	nameReuse            = "lmcache_mp_l1_chunk_reuse_gap_seconds"
	nameComeback         = "lmcache_mp_l1_chunk_evict_reuse_gap_seconds"
	nameRealReuseSeconds = "lmcache_mp_real_reuse_gap_seconds"
	nameRealReuseObjects = "lmcache_mp_real_reuse_gap_objects"
	nameAllocFailure     = "lmcache_mp_l1_allocation_failure_chunks_total"
	nameReadFailure      = "lmcache_mp_l1_read_failure_chunks_total"
	nameRequestedTokens  = "lmcache_mp_lookup_requested_tokens_total"
	nameHitTokens        = "lmcache_mp_lookup_hit_tokens_total"
	nameHitL1Tokens      = "lmcache_mp_lookup_hit_l1_tokens_total"
	nameHitL2Tokens      = "lmcache_mp_lookup_hit_l2_tokens_total"
	nameHitL1Keys        = "lmcache_mp_lookup_hit_l1_keys_total"
	nameHitL2Keys        = "lmcache_mp_lookup_hit_l2_keys_total"
	nameLookups          = "lmcache_mp_lookups_requests_total"
	nameEarlyExit        = "lmcache_mp_lookup_early_exit_requests_total"
	nameStoresSubmitted  = "lmcache_mp_num_submitted_stores_total"
	nameStoresFinished   = "lmcache_mp_num_finished_stores_total"
	nameLoadsSubmitted   = "lmcache_mp_num_submitted_retrieves_total"
	nameLoadsFinished    = "lmcache_mp_num_finished_retrieves_total"
	nameChunksLoaded     = "lmcache_mp_num_chunks_loaded_total"
	nameStoreThroughput  = "lmcache_mp_l0_l1_store_throughput_GB_per_second"
	nameLoadThroughput   = "lmcache_mp_l0_l1_load_throughput_GB_per_second"
	nameBlockLifetime    = "lmcache_mp_l0_block_lifetime_seconds"
	nameBlockIdle        = "lmcache_mp_l0_block_idle_before_evict_seconds"
	nameBlockReuse       = "lmcache_mp_l0_block_reuse_gap_seconds"
	nameTimeouts         = "lmcache_mp_timeouts_total"
	namePrefetchJobs     = "lmcache_mp_active_prefetch_jobs"
	nameP2PJobs          = "lmcache_mp_active_p2p_lookup_jobs"
	nameKVEventDepth     = "lmcache_mp_kv_events_log_depth"
	nameBusDepth         = "lmcache_mp_event_bus_queue_depth"
	nameBusLag           = "lmcache_mp_event_bus_drain_lag_seconds"
	nameBusDropped       = "lmcache_mp_event_bus_dropped_events_total"
	nameL2StoreAdapters  = "lmcache_mp_l2_store_adapters"
	nameL2PrefetchAdapts = "lmcache_mp_l2_prefetch_adapters"
	nameTargetInfo       = "target_info"
)

// Names of our own.
const (
	nameRequests         = "lmcache_go_requests_total"
	nameFailures         = "lmcache_go_request_failures_total"
	nameDuration         = "lmcache_go_request_duration_seconds"
	nameDropped          = "lmcache_go_dropped_frames_total"
	namePanics           = "lmcache_go_panics_total"
	nameEvictedBy        = "lmcache_go_l1_evicted_chunks_by_reason_total"
	nameTransferBytes    = "lmcache_go_transfer_bytes_total"
	nameInstanceEvents   = "lmcache_go_instance_events_total"
	nameLeaseExpired     = "lmcache_go_expired_leases_total"
	nameHealthy          = "lmcache_go_healthy"
	nameL1Total          = "lmcache_go_l1_memory_total_bytes"
	nameL1Configured     = "lmcache_go_l1_memory_configured_bytes"
	nameL1Quarantined    = "lmcache_go_l1_quarantined_bytes"
	nameL1Objects        = "lmcache_go_l1_objects"
	nameL1Leased         = "lmcache_go_l1_leased_objects"
	nameSessions         = "lmcache_go_active_sessions"
	nameInstances        = "lmcache_go_registered_instances"
	nameQueued           = "lmcache_go_queued_requests"
	nameBuildInfo        = "lmcache_go_build_info"
	namePromptCacheBytes = "lmcache_go_prompt_cache_bytes"
	nameGPUInfo          = "lmcache_go_gpu_info"
	nameGPUMemory        = "lmcache_go_gpu_memory_bytes"
	nameGPUUsed          = "lmcache_go_gpu_memory_used_bytes"
	nameGPUOpen          = "lmcache_go_gpu_open"
	nameGPUMapped        = "lmcache_go_gpu_mapped_bytes"
	nameGPUMappings      = "lmcache_go_gpu_mappings"
	nameGPUStreams       = "lmcache_go_gpu_streams"
	nameGPUPending       = "lmcache_go_gpu_pending_copies"
	nameGPUWorkers       = "lmcache_go_gpu_workers"
	nameGPUQuarantined   = "lmcache_go_gpu_quarantined_workers"
)

// families is every family that this package writes itself; the test holds it
// against what is written.
var families = []family{
	{nameL1Write, counter, "Chunks admitted to L1."},
	{nameL1Read, counter, "Read holds on L1 chunks that were released."},
	{nameL1Evicted, counter, "Chunks that left L1: evicted, deleted or cleared."},
	{nameEvictTicks, counter, "Turns of the watermark loop."},
	{nameEvictTriggered, counter, "Turns of the watermark loop that found usage at or above the watermark."},
	{nameL1Usage, gauge, "Bytes of the pool in use, reservations included."},
	{nameL1Ratio, gauge, "Bytes in use divided by bytes the pool has mapped so far."},
	{nameL1Staging, gauge, "Bytes reserved by writes that are not published yet."},
	{nameLifetime, histogram, "Time from a chunk's admission to L1 to its end, of a sample."},
	{nameIdle, histogram, "Time from a chunk's last use to its end, of a sample."},
	{nameReuse, histogram, "Time between two uses of a chunk, of a sample."},
	{nameComeback, histogram, "Time from a chunk's end to its return, at most 300 s, of a sample."},
	{nameRealReuseSeconds, histogram, "Time from a chunk's latest store or read to its next read, also after it was evicted and stored again, of a sample."},
	{nameRealReuseObjects, histogram, "The same in chunks of its cache_salt that were stored and read meanwhile."},
	{nameAllocFailure, counter, "Chunks that found no room in L1."},
	{nameReadFailure, counter, "Chunks that a retrieve asked for and did not get."},
	{nameRequestedTokens, counter, "Tokens looked up, in whole chunks."},
	{nameHitTokens, counter, "Tokens of the prefixes found."},
	{nameHitL1Tokens, counter, "Tokens of the prefixes found in L1."},
	{nameHitL2Tokens, counter, "Tokens of the prefixes found in L2; this server has none."},
	{nameHitL1Keys, counter, "Objects held for hits in L1."},
	{nameHitL2Keys, counter, "Objects loaded for hits in L2; this server has none."},
	{nameLookups, counter, "Lookups answered."},
	{nameEarlyExit, counter, "Lookups answered without a search."},
	{nameStoresSubmitted, counter, "Store copies begun."},
	{nameStoresFinished, counter, "Store copies ended."},
	{nameLoadsSubmitted, counter, "Retrieve copies begun."},
	{nameLoadsFinished, counter, "Retrieve copies ended."},
	{nameChunksLoaded, counter, "Chunks copied to an engine."},
	{nameStoreThroughput, histogram, "Speed of store copies, 1e9 bytes per second, without their wait for the engine and for copies before them."},
	{nameLoadThroughput, histogram, "Speed of retrieve copies, 1e9 bytes per second, without their wait for the engine and for copies before them."},
	{nameBlockLifetime, histogram, "Time from a block's allocation in an engine to its next with other tokens, of a sample."},
	{nameBlockIdle, histogram, "Time from the last use of such a block to then, of a sample."},
	{nameBlockReuse, histogram, "Time between two uses of such a block, of a sample."},
	{nameTimeouts, counter, "Waits that ended without a result."},
	{namePrefetchJobs, gauge, "Lookups whose result was not fetched yet."},
	{nameP2PJobs, gauge, "Lookups of peers in flight."},
	{nameKVEventDepth, gauge, "Records in the KV event log."},
	{nameBusDepth, gauge, "Always 0: events are counted where they happen."},
	{nameBusLag, gauge, "Always 0: events are counted where they happen."},
	{nameBusDropped, counter, "Always 0: events are counted where they happen."},
	{nameL2StoreAdapters, gauge, "L2 adapters that take stores."},
	{nameL2PrefetchAdapts, gauge, "L2 adapters that serve prefetches."},
	{nameTargetInfo, gauge, "Identity of this server."},
	{nameRequests, counter, "Requests answered, failures included."},
	{nameFailures, counter, "Requests answered as that operation's failure."},
	{nameDuration, histogram, "Time from the request's arrival to its answer."},
	{nameDropped, counter, "Messages that could not be answered and were dropped."},
	{namePanics, counter, "Panics that were contained."},
	{nameEvictedBy, counter, "Chunks that left L1, by reason."},
	{nameTransferBytes, counter, "Bytes of KV moved between engines and L1."},
	{nameInstanceEvents, counter, "Workers that came and went."},
	{nameLeaseExpired, counter, "Lookups whose holds, and chunks whose reservations, ended by their time limit."},
	{nameHealthy, gauge, "1 while the server is healthy."},
	{nameL1Total, gauge, "Bytes of the pool that are mapped."},
	{nameL1Configured, gauge, "Bytes of the pool as configured."},
	{nameL1Quarantined, gauge, "Bytes that a client may still write to although nobody waits for them."},
	{nameL1Objects, gauge, "Chunks resident in L1."},
	{nameL1Leased, gauge, "Chunks held for a reader."},
	{nameSessions, gauge, "Request sessions open."},
	{nameInstances, gauge, "Workers registered."},
	{nameQueued, gauge, "Requests waiting in lanes."},
	{nameBuildInfo, gauge, "Version of this binary."},
	{namePromptCacheBytes, gauge, "Bytes held by the cache of prompt hashes."},
	{nameGPUInfo, gauge, "Names of a GPU that this server sees; device is empty without workers on it."},
	{nameGPUMemory, gauge, "Memory of a GPU."},
	{nameGPUUsed, gauge, "Memory of a GPU that is in use, by any process."},
	{nameGPUOpen, gauge, "1 while this server holds a context on the GPU."},
	{nameGPUMapped, gauge, "Bytes of engines' GPU memory that this server has mapped."},
	{nameGPUMappings, gauge, "Mappings of engines' GPU memory."},
	{nameGPUStreams, gauge, "Streams that copy."},
	{nameGPUPending, gauge, "Transfers handed to the GPU that have not ended."},
	{nameGPUWorkers, gauge, "Workers registered on the GPU."},
	{nameGPUQuarantined, gauge, "Workers that have ended while a copy of theirs has not; their memory stays mapped."},
}
