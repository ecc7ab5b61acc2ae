package mpserver

import (
	"bytes"
	"encoding/json"
	"net"
	"strconv"
	"strings"

	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
)

// node is a JSON object in order: the tree of GET /config.
type node []leaf

type leaf struct {
	key   string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (n node) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, l := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		v := l.value
		if f, ok := v.(float64); ok {
			v = httpapi.Float(f) // a float stays one
		}
		data, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		b.WriteString(strconv.Quote(l.key) + ":")
		b.Write(data)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// set changes the value at a path of keys with dots between them; false when
// there is none.
func (n node) set(path string, v any) bool {
	key, rest, deeper := strings.Cut(path, ".")
	for i := range n {
		if n[i].key != key {
			continue
		}
		if !deeper {
			n[i].value = v
			return true
		}
		in, ok := n[i].value.(node)
		return ok && in.set(rest, v)
	}
	return false
}

// Config implements [httpapi.Server]: the effective configuration in the
// reference's tree (lmcache 0.5.6, v1/multiprocess/http_apis/config_api.py). What
// the reference has and this server has not is shown as the reference's default,
// or as Options.Shown says.
func (f surface) Config() any {
	o := &f.s.opt
	eviction := func() node {
		return node{
			{"eviction_policy", string(o.L1.EvictionPolicy)},
			{"trigger_watermark", o.L1.TriggerWatermark},
			{"eviction_ratio", o.L1.EvictionRatio},
			{"extra_logging_enabled", false},
			{"extra_logging_interval", 10.0},
		}
	}
	l1 := func() node {
		return node{
			{"memory_config", node{
				{"size_in_bytes", o.L1.SizeBytes},
				{"use_lazy", false},
				{"init_size_in_bytes", o.L1.SizeBytes},
				{"align_bytes", o.L1.AlignBytes},
				{"shm_name", SegmentName(o.L1.ShmName)},
				{"use_hugepages", false},
				{"devdax_path", nil},
				{"devdax_size_in_bytes", 0},
			}},
			{"gds_l1_config", nil},
			{"write_ttl_seconds", int(o.L1.WriteTTL.Seconds())},
			{"read_ttl_seconds", int(o.L1.ReadTTL.Seconds())},
			{"tag", "_default"},
			{"eviction", eviction()},
		}
	}
	tree := node{
		{"mp", f.mpConfig()},
		{"storage_manager", node{
			{"l1_manager_config", l1()},
			{"eviction_config", eviction()},
			{"l2_adapter_config", node{{"adapters", []string{}}}},
			{"store_policy", "default"},
			{"prefetch_policy", "default"},
			{"prefetch_max_in_flight", 8},
			{"periodic_notifier_interval_ms", 5},
			{"l1_manager_configs", []node{l1()}},
		}},
		{"observability", node{
			{"enabled", !o.DisableMetrics},
			{"max_queue_size", 10000},
			{"metrics_enabled", !o.DisableMetrics},
			{"grpc_metrics_enabled", false},
			{"logging_enabled", true},
			{"tracing_enabled", false},
			{"otlp_endpoint", nil},
			{"prometheus_port", 9090},
			{"metrics_sample_rate", o.MetricsSampleRate},
			{"lookup_hash_log", node{
				{"output_dir", o.LookupHashLog.Dir},
				{"rotation_interval_sec", int(o.LookupHashLog.RotateAfter.Seconds())},
				{"rotation_max_size", o.LookupHashLog.RotateBytes},
				{"max_files", o.LookupHashLog.MaxFiles},
			}},
			{"gc_monitor", node{{"enabled", false}, {"min_pause_ms", 1.0}, {"top_objects", 0}}},
			{"extra_logging_enabled", false},
			{"extra_logging_interval", 10.0},
			{"trace_level", nil},
			{"trace_output", nil},
			{"service_instance_id", o.InstanceID},
		}},
		{"http", node{{"http_host", o.HTTPHost}, {"http_port", portNumber(f.s.HTTPAddr(), o.HTTPPort)}}},
		{"coordinator", node{
			{"url", ""},
			{"advertise_ip", ""},
			{"heartbeat_interval", 5.0},
			{"event_reporting", false},
			{"event_flush_interval", 1.0},
			{"event_sink_config", node{}},
			{"blend_timeout", 1.0},
			{"blend_match_concurrency", 8},
		}},
	}
	for path, v := range o.Shown {
		tree.set(path, v)
	}
	return tree
}

func (f surface) mpConfig() node {
	o := &f.s.opt
	return node{
		{"transport", "zmq"},
		{"host", o.Host},
		{"port", portNumber(strings.TrimPrefix(f.s.Addr(), "tcp://"), o.Port)},
		{"chunk_size", o.ChunkSize},
		{"max_workers", 1},
		{"max_gpu_workers", 1},
		{"max_cpu_workers", 1},
		{"grpc_server_workers", 32},
		{"hash_algorithm", o.HashAlgorithm},
		{"engine_type", "default"},
		{"separate_object_groups", o.SeparateObjectGroups},
		{"enable_segmented_prefix", false},
		{"enable_dedup_content", false},
		{"enable_blend_reorder", false},
		{"supported_transfer_mode", string(o.TransferMode)},
		{"isolated_ipc", false},
		{"runtime_plugin_config", node{{"locations", []string{}}, {"extra_config", node{}}}},
		{"p2p_config", node{{"advertise_url", ""}, {"listen_url", ""}, {"lookup_timeout", 30.0}, {"load_timeout", 30.0}, {"transfer_engine", "nixl"}}},
		{"shm_name", SegmentName(o.L1.ShmName)},
		{"script_allowed_imports", []string{}},
		{"run_script_api_enabled", false},
		{"instance_id", o.InstanceID},
		{"worker_reap_timeout_seconds", max(0, o.WorkerReapTimeout.Seconds())},
		{"session_ttl_seconds", o.SessionTTL.Seconds()},
		{"worker_registration_grace_seconds", o.WorkerRegistrationGrace.Seconds()},
		{"enable", []string{}},
		{"kv_event_log_size", max(0, o.KVEventLogSize)},
		{"null_block_id", o.NullBlockID},
		{"server_modules", []string{}},
	}
}

// portNumber is the port of an address, or what was asked for.
func portNumber(addr string, asked int) int {
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return asked
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return asked
	}
	return n
}
