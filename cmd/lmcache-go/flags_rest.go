package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

// tierFlags is the tables of server-surface 2.2 and 2.4.
func tierFlags() []row {
	const p2p = "sharing between servers is not built yet: leave it out"
	const l2 = "there is no L2 yet: leave it out"
	return []row{
		{name: "p2p-advertise-url", group: groupP2P, help: "host:port that peers reach this server at; switches P2P on", stance: refused, why: p2p},
		{name: "p2p-listen-url", group: groupP2P, help: "host:port of the transfer channel", stance: refused, why: p2p},
		{name: "p2p-lookup-timeout", group: groupP2P, kind: kindFloat, def: "30", help: "seconds until a lookup at a peer is a miss", stance: refused, why: p2p},
		{name: "p2p-load-timeout", group: groupP2P, kind: kindFloat, def: "30", help: "seconds until a load from a peer has failed", stance: refused, why: p2p},
		{name: "p2p-transfer-engine", group: groupP2P, def: "nixl", help: "transfer library", stance: refused, why: p2p},

		{name: "l2-adapter", group: groupL2, kind: kindAppend, help: "JSON of one L2 adapter", check: checkAdapters, stance: refused, why: l2},
		{name: "l2-store-policy", group: groupL2, def: "default", choices: []string{"default", "skip_l1"}, help: "what goes to L2", stance: refused, why: l2},
		{name: "l2-prefetch-policy", group: groupL2, def: "default", choices: []string{"default", "retain"}, help: "what becomes of objects read from L2", stance: refused, why: l2},
		{
			name: "l2-prefetch-max-in-flight", group: groupL2, kind: kindInt, def: "8", help: "loads from L2 at once", check: atLeast(1),
			stance: accepted, why: "there is no L2 to load from",
		},
		{
			name: "periodic-notifier-interval-ms", group: groupL2, kind: kindInt, def: "5", help: "polling of L2 completions", check: atLeast(1),
			stance: accepted, why: "there is no L2 to poll",
		},
	}
}

// checkAdapters names the type of each adapter, which is what has to go.
func checkAdapters(v value) string {
	var out []string
	for _, text := range v.list {
		var adapter struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(text), &adapter); err != nil || adapter.Type == "" {
			out = append(out, fmt.Sprintf("%q is not a JSON object with a type", text))
			continue
		}
		out = append(out, fmt.Sprintf("type %q is not served: there is no L2 yet", adapter.Type))
	}
	if len(out) == 0 {
		return ""
	}
	return strings.Join(out, "; ") + ": leave it out"
}

// httpFlags is the table of server-surface 2.5.
func httpFlags() []row {
	return []row{
		{
			name: "http-host", group: groupHTTP, def: "127.0.0.1", help: "address of the HTTP surface, which has no authentication", check: checkHost,
			apply: func(o *mpserver.Options, v value) { o.HTTPHost = v.text },
		},
		{
			name: "http-port", group: groupHTTP, kind: kindInt, def: "8080", help: "port of the HTTP surface; 0 takes a free one", check: between(0, 65535),
			apply: func(o *mpserver.Options, v value) { o.HTTPPort = int(v.n) },
		},
	}
}

// observeFlags is the table of server-surface 2.6.
func observeFlags() []row {
	const (
		otlp  = "traces and metrics are not pushed yet: leave it out and scrape GET /metrics"
		gc    = "it watches CPython's collector: read go_gc_* on GET /metrics"
		trace = "trace files are not written yet: leave it out"
	)
	return []row{
		{
			name: "disable-observability", kind: kindSwitch, help: "no events, no metrics of the server",
			apply: func(o *mpserver.Options, v value) {
				if v.on {
					o.DisableMetrics, o.KVEventLogSize = true, -1
				}
			},
		},
		{
			name: "disable-metrics", kind: kindSwitch, help: "no metrics of the server",
			apply: func(o *mpserver.Options, v value) { o.DisableMetrics = o.DisableMetrics || v.on },
		},
		{name: "disable-grpc-metrics", kind: kindSwitch, help: "no metrics of the gRPC transport", stance: accepted, why: "there is no gRPC transport"},
		{name: "disable-logging", kind: kindSwitch, help: "no log lines for events", stance: accepted, why: "single requests are logged at DEBUG only: use --log-level"},
		{name: "enable-tracing", kind: kindSwitch, help: "OpenTelemetry spans", stance: refused, why: otlp},
		{name: "otlp-endpoint", help: "OTLP collector", stance: refused, why: otlp},
		{
			name: "event-bus-queue-size", kind: kindInt, def: "10000", help: "events that may wait", check: atLeast(1),
			stance: accepted, why: "events are counted where they happen; no queue can overflow",
		},
		{
			name: "prometheus-port", kind: kindInt, def: "9090", help: "no effect in the reference's server either", check: between(0, 65535),
			stance: accepted, why: "metrics are at GET /metrics of --http-port, as with the reference",
		},
		{
			name: "metrics-sample-rate", kind: kindFloat, def: "0.01", help: "share of chunks in the lifetime histograms", check: fraction("it is a share of the chunks"),
			apply: func(o *mpserver.Options, v value) { o.MetricsSampleRate = v.x },
		},
		{
			name: "lookup-hash-log-dir", help: "folder for a log of lookups, a line of JSON each; empty: no log",
			apply: func(o *mpserver.Options, v value) { o.LookupHashLog.Dir = v.text },
		},
		{
			name: "lookup-hash-log-rotation-interval", kind: kindFloat, def: "21600", help: "age in seconds at which its file is followed by the next", check: seconds,
			apply: func(o *mpserver.Options, v value) { o.LookupHashLog.RotateAfter = duration(v) },
		},
		{
			name: "lookup-hash-log-rotation-max-size", kind: kindInt, def: "104857600", help: "bytes at which it is", check: atLeast(1),
			apply: func(o *mpserver.Options, v value) { o.LookupHashLog.RotateBytes = v.n },
		},
		{
			name: "lookup-hash-log-max-files", kind: kindInt, def: "100", help: "files of the log that are kept", check: between(1, 1<<20),
			apply: func(o *mpserver.Options, v value) { o.LookupHashLog.MaxFiles = int(v.n) },
		},
		{name: "enable-gc-monitor", kind: kindSwitch, help: "timing of CPython's collector", stance: refused, why: gc},
		{name: "gc-monitor-min-pause-ms", kind: kindFloat, def: "1.0", help: "shortest pause reported", stance: accepted, why: gc},
		{name: "gc-monitor-top-objects", kind: kindInt, def: "0", help: "objects listed", stance: accepted, why: gc},
		{name: "enable-extra-logging", kind: kindSwitch, help: "periodic lines on usage", stance: accepted, why: "GET /status and /metrics tell usage at any time"},
		{
			name: "extra-logging-interval", kind: kindFloat, def: "10.0", help: "seconds between those lines", check: seconds,
			stance: accepted, why: "there are no periodic lines",
		},
		{name: "trace-level", choices: []string{"storage", "events"}, help: "what a trace file records", stance: refused, why: trace},
		{name: "trace-output", help: "path of the trace file", stance: refused, why: trace},
	}
}

// coordinatorFlags is the table of server-surface 2.7.
func coordinatorFlags() []row {
	const (
		member = "membership at a coordinator is not built yet: leave it out"
		kafka  = "it belongs to --coordinator-event-transport kafka, which is not served"
		blend  = "it belongs to CacheBlend, which is not served"
	)
	return []row{
		{name: "coordinator-url", env: "LMCACHE_COORDINATOR_URL", help: "coordinator to join", stance: refused, why: member},
		{name: "coordinator-advertise-ip", env: "LMCACHE_COORDINATOR_ADVERTISE_IP", help: "address told to the coordinator", stance: refused, why: member},
		{
			name: "coordinator-heartbeat-interval", env: "LMCACHE_COORDINATOR_HEARTBEAT_INTERVAL", kind: kindFloat, def: "5.0", help: "seconds between heartbeats",
			check: seconds, stance: refused, why: member,
		},
		{name: "coordinator-event-reporting", env: "LMCACHE_COORDINATOR_EVENT_REPORTING", kind: kindSwitch, help: "report what is stored and removed", stance: refused, why: member},
		{
			name: "coordinator-event-flush-interval", env: "LMCACHE_COORDINATOR_EVENT_FLUSH_INTERVAL", kind: kindFloat, def: "1.0", help: "seconds between reports",
			check: seconds, stance: refused, why: member,
		},
		{name: "coordinator-event-transport", def: "http", choices: []string{"http", "kafka"}, help: "how reports travel", stance: refused, why: "reports would travel by http only: leave it out"},
		{name: "coordinator-kafka-bootstrap-servers", help: "Kafka brokers", stance: accepted, why: kafka},
		{name: "coordinator-kafka-topic", def: "lmcache-cache-events", help: "Kafka topic", stance: accepted, why: kafka},
		{name: "coordinator-kafka-delivery-timeout", kind: kindFloat, def: "300.0", help: "Kafka delivery timeout", stance: accepted, why: kafka},
		{name: "coordinator-blend-timeout", kind: kindFloat, def: "1.0", help: "seconds a match may take", check: seconds, stance: accepted, why: blend},
		{name: "coordinator-blend-match-concurrency", kind: kindInt, def: "8", help: "matches at once", check: atLeast(1), stance: accepted, why: blend},
		{name: "coordinator-l2-event-reporting", kind: kindSwitch, hidden: true, help: "old name of --coordinator-event-reporting", stance: refused, why: member},
		{name: "coordinator-l2-event-flush-interval", kind: kindFloat, hidden: true, help: "old name of --coordinator-event-flush-interval", stance: refused, why: member},

		{name: "format", group: groupCommon, def: "terminal", choices: []string{"terminal", "json"}, help: "output of other commands", stance: accepted, why: "the server has no report to format"},
		{name: "output", group: groupCommon, help: "file for the output of other commands", stance: accepted, why: "the server has no report to write"},
		{name: "quiet", short: "-q", group: groupCommon, kind: kindSwitch, help: "less output from other commands", stance: accepted, why: "use --log-level"},
	}
}

// ownFlags is what the reference has not.
func ownFlags() []row {
	return []row{
		{name: "check", kind: kindSwitch, help: "look whether the server could start, print everything about the configuration, and end"},
		{name: "log-format", def: "text", choices: []string{"text", "json"}, help: "format of the log on stderr"},
		{name: "log-level", env: "LMCACHE_LOG_LEVEL", def: "INFO", choices: []string{"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}, help: "least severe line of the log"},
		{
			name: "on-register-failure", def: string(mpserver.RegisterRefuse), choices: []string{"refuse", "degrade"},
			help:  "a worker that cannot be served: refuse ends its engine's start with the reason in our log, degrade lets it run without a cache",
			apply: func(o *mpserver.Options, v value) { o.OnRegisterFailure = mpserver.RegisterFailurePolicy(v.text) },
		},
		{
			name: "no-http", kind: kindSwitch, help: "serve no HTTP at all",
			apply: func(o *mpserver.Options, v value) {
				if v.on {
					o.HTTPPort = -1
				}
			},
		},
		{
			name: "workers", kind: kindInt, def: "0", help: "requests in lanes that run at once: larger ones, and those that copy; 0 is twice the CPUs, at least 4", check: between(0, 1<<16),
			apply: func(o *mpserver.Options, v value) { o.Workers = int(v.n) },
		},
		{
			name: "lane-depth", kind: kindInt, def: "1024", help: "requests of one client that may wait", check: between(1, 1<<20),
			apply: func(o *mpserver.Options, v value) { o.LaneDepth = int(v.n) },
		},
		{
			name: "max-message-size", kind: kindSize, unit: 1, def: "4160MiB", help: "largest message that is read, in bytes or with a unit",
			check: between(64<<10, 4160<<20),
			apply: func(o *mpserver.Options, v value) { o.MaxMessageBytes = v.n },
		},
		{
			name: "prompt-cache-size", kind: kindSize, unit: 1, def: "64MiB", help: "memory for hashes of prompts, in bytes or with a unit",
			check: atLeast(64 << 10),
			apply: func(o *mpserver.Options, v value) { o.PromptCacheBytes = v.n },
		},
		{
			name: "connection-grace-seconds", kind: kindFloat, def: "5", help: "how long a client whose connection is gone keeps what it holds", check: seconds,
			apply: func(o *mpserver.Options, v value) { o.ConnectionGrace = duration(v) },
		},
		{
			name: "pending-lookup-timeout-seconds", kind: kindFloat, def: "1", help: "how long a lookup waits for chunks whose copy is in flight", check: seconds,
			apply: func(o *mpserver.Options, v value) { o.PendingLookupTimeout = duration(v) },
		},
		{
			name: "session-grace-seconds", kind: kindFloat, def: "30", help: "how long holds of an ended session stay valid for a retrieve that comes late", check: seconds,
			apply: func(o *mpserver.Options, v value) { o.SessionGrace = duration(v) },
		},
		{
			name: "drain-timeout-seconds", kind: kindFloat, def: "5", help: "how long a stop waits for copies in flight", check: seconds,
			apply: func(o *mpserver.Options, v value) { o.DrainTimeout = duration(v) },
		},
		{
			name: "python-hash-seed", env: "PYTHONHASHSEED", help: "the engines' PYTHONHASHSEED; matters to sha256_cbor only",
			apply: func(o *mpserver.Options, v value) { o.PythonHashSeed = v.text },
		},
	}
}
