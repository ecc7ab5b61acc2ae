package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

const laneWhy = "every client has a lane of its own here and one slow call delays nobody: --workers bounds how many run at once"

// mpFlags is the table of server-surface 2.1.
func mpFlags() []row {
	const python = "it loads Python code, which this server cannot run: leave it out"
	const blend = "CacheBlend is not part of this server: leave it out, or run the reference for blend models"
	return []row{
		{
			name: "instance-id", help: "identity in telemetry; empty means a random UUID",
			apply: func(o *mpserver.Options, v value) { o.InstanceID = v.text },
		},
		{
			name: "transport", def: "zmq", choices: []string{"zmq", "grpc"}, help: "request transport",
			stance: refused, why: "use zmq, which is what tcp:// addresses of clients mean",
		},
		{
			name: "host", def: "localhost", help: "address that the request socket binds to", check: checkHost,
			apply: func(o *mpserver.Options, v value) { o.Host = v.text },
		},
		{
			name: "port", kind: kindInt, def: "5555", help: "port of the request socket; 0 takes a free one", check: between(0, 65535),
			apply: func(o *mpserver.Options, v value) { o.Port = int(v.n) },
		},
		{
			name: "chunk-size", kind: kindInt, def: "256", help: "tokens per chunk; a multiple of every engine's block size", check: between(1, 1<<20),
			apply: func(o *mpserver.Options, v value) { o.ChunkSize = int(v.n) },
		},
		{
			name: "null-block-id", kind: kindInt, def: "0", help: "engine block id that means: no KV here", check: atLeast(0),
			apply: func(o *mpserver.Options, v value) { o.NullBlockID = int(v.n) },
		},
		{name: "max-workers", kind: kindInt, def: "1", help: "size of both worker pools", stance: accepted, why: laneWhy},
		{name: "max-gpu-workers", kind: kindInt, help: "size of the transfer pool", stance: accepted, why: laneWhy},
		{name: "max-cpu-workers", kind: kindInt, help: "size of the pool for other calls", stance: accepted, why: laneWhy},
		{
			name: "grpc-server-workers", kind: kindInt, def: "32", help: "threads of the gRPC transport", check: atLeast(1),
			stance: accepted, why: "there is no gRPC transport to size",
		},
		{
			name: "hash-algorithm", def: "blake3", help: "chunk hash: blake3 or sha256_cbor",
			apply: func(o *mpserver.Options, v value) { o.HashAlgorithm = v.text },
		},
		{
			name: "engine-type", def: "default", choices: []string{"default", "blend"}, help: "kind of engine",
			stance: refused, why: blend,
		},
		{
			name: "supported-transfer-mode", def: string(mpserver.TransferAuto), choices: []string{"lmcache_driven", "engine_driven", "auto"},
			help:  "who copies: the server, the engine, or whichever the worker asks for (the reference's default is lmcache_driven)",
			apply: func(o *mpserver.Options, v value) { o.TransferMode = mpserver.TransferMode(v.text) },
		},
		{
			name: "isolated-ipc", kind: kindBool, help: "timeline semaphores instead of event handles",
			stance: accepted, why: "every request says which kind of event it has, and is answered in that kind",
		},
		{name: "runtime-plugin-locations", kind: kindList, help: "plug-in scripts to start", stance: refused, why: python},
		{name: "runtime-plugin-config", def: "{}", help: "JSON for the plug-ins", check: checkPluginConfig, stance: accepted, why: "there are no plug-ins to configure"},
		{
			name: "shm-name", help: "shared memory segment for the pool (lmcache_l1_pool_ is put in front); empty: engines send pickles", check: checkShmName,
			apply: func(o *mpserver.Options, v value) { o.L1.ShmName = v.text },
		},
		{name: "script-allowed-imports", kind: kindList, help: "modules for /run_script", stance: refused, why: "there is no /run_script: leave it out"},
		{
			name: "run-script-api-enabled", kind: kindBool, help: "remote code execution over HTTP",
			stance: refused, why: "there is no /run_script, on purpose: leave it out",
		},
		{
			name: "separate-object-groups", kind: kindBool, help: "objects of their own for each sliding window of a hybrid model (lmcache_driven)",
			apply: func(o *mpserver.Options, v value) { o.SeparateObjectGroups = v.on },
		},
		{
			name: "worker-reap-timeout-seconds", kind: kindFloat, def: "120", help: "silence after which a worker that has pinged is dropped; 0 is never, else at least 30",
			check: func(v value) string {
				if v.x < 0 || v.x > maxSeconds {
					return "must be 0 (never) or a number of seconds from 30 on, got " + v.text
				}
				return ""
			},
			apply: func(o *mpserver.Options, v value) {
				if o.WorkerReapTimeout = duration(v); v.x == 0 {
					o.WorkerReapTimeout = -1 // 0 is the default there
				}
			},
		},
		{
			name: "session-ttl-seconds", kind: kindFloat, def: "600", help: "how long an idle request session is kept", check: seconds,
			apply: func(o *mpserver.Options, v value) { o.SessionTTL = duration(v) },
		},
		{
			name: "worker-registration-grace-seconds", kind: kindFloat, def: "3600", help: "the same for a worker that has not pinged yet", check: seconds,
			apply: func(o *mpserver.Options, v value) { o.WorkerRegistrationGrace = duration(v) },
		},
		{name: "enable-segmented-prefix", kind: kindSwitch, help: "blend only", stance: refused, why: blend},
		{name: "enable-dedup-content", kind: kindSwitch, help: "blend only", stance: refused, why: blend},
		{name: "enable-blend-reorder", kind: kindSwitch, help: "blend only", stance: refused, why: blend},
		{name: "enable", kind: kindList, help: "experimental modules", stance: refused, why: "experimental modules (transfer_query) are not part of this server: leave it out"},
		{
			name: "kv-event-log-size", kind: kindInt, def: "32768", help: "records kept for KV-event subscribers; 0 switches the stream off", check: atLeast(0),
			apply: func(o *mpserver.Options, v value) {
				if o.KVEventLogSize = int(v.n); v.n == 0 {
					o.KVEventLogSize = -1
				}
			},
		},
		{name: "server-module", kind: kindAppend, help: "out-of-tree module", stance: refused, why: python},
	}
}

func checkHost(v value) string {
	switch {
	case v.text == "":
		return "is empty: give an address, or leave it out for localhost"
	case strings.Contains(v.text, "://"):
		_, bare, _ := strings.Cut(v.text, "://")
		return fmt.Sprintf("takes an address without a scheme: write %s", bare)
	case strings.Count(v.text, ":") == 1:
		host, port, _ := strings.Cut(v.text, ":")
		return fmt.Sprintf("takes an address without a port: write --host %s --port %s", host, port)
	case strings.ContainsAny(v.text, "/ "):
		return fmt.Sprintf("is not an address: %q", v.text)
	}
	return ""
}

func checkPluginConfig(v value) string {
	var config map[string]any
	if err := json.Unmarshal([]byte(v.text), &config); err != nil {
		return fmt.Sprintf("is not a JSON object (%v): leave it out", err)
	}
	if len(config) > 0 {
		return "is not served: it configures Python plug-ins, which this server cannot run: leave it out"
	}
	return ""
}

func checkShmName(v value) string {
	name := mpserver.SegmentName(v.text)
	switch {
	case v.text == "":
		return ""
	case name == mpserver.ShmPrefix, strings.ContainsAny(name, "/\x00"):
		return fmt.Sprintf("is not a name of a segment: %q; use letters, digits, dots, dashes and underscores", v.text)
	case len(name) > 255:
		return fmt.Sprintf("is %d bytes long with its prefix; a segment's name has at most 255", len(name))
	}
	return ""
}

// ttlSeconds is a whole number of seconds from 1 on.
func ttlSeconds(v value) time.Duration { return time.Duration(v.n) * time.Second }
