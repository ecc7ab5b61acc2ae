package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

// connectorConfig is vLLM's --kv-transfer-config for an engine beside this
// server (lmcache 0.5.6, integration/vllm/lmcache_mp_connector).
type connectorConfig struct {
	Connector string         `json:"kv_connector"`
	Role      string         `json:"kv_role"`
	OnFailure string         `json:"kv_load_failure_policy"`
	Extra     connectorExtra `json:"kv_connector_extra_config"`
}

type connectorExtra struct {
	Host string `json:"lmcache.mp.host"`
	Port int    `json:"lmcache.mp.port"`
	// Mode is engine_driven where the server sees no GPU: a worker on CUDA lets
	// the server copy unless it is told otherwise.
	Mode mpserver.TransferMode `json:"lmcache.mp.mp_transfer_mode"`
}

// transferMode is what an engine beside a server should ask for: that the
// server copies, where it sees a GPU.
func transferMode(served mpserver.TransferMode, gpus bool) mpserver.TransferMode {
	switch {
	case served == mpserver.TransferLMCacheDriven, served == mpserver.TransferEngineDriven:
		return served
	case gpus:
		return mpserver.TransferAuto
	}
	return mpserver.TransferEngineDriven
}

// connectorJSON is that configuration. A failed load is recomputed and not an
// error of the request: a cache must not be able to break an answer.
func connectorJSON(host string, port int, mode mpserver.TransferMode) string {
	b, err := json.Marshal(connectorConfig{
		Connector: "LMCacheMPConnector",
		Role:      "kv_both",
		OnFailure: "recompute",
		Extra:     connectorExtra{Host: "tcp://" + dialHost(host), Port: port, Mode: mode},
	})
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

// dialHost is where an engine on this host reaches a server that is bound to
// host. A worker has to share the host's memory or GPUs, so that a server on
// every address is reached by loopback.
func dialHost(host string) string {
	switch host {
	case "", "*", "0.0.0.0", "::", "[::]":
		return "localhost"
	}
	if _, err := net.InterfaceByName(host); err == nil {
		host = mpserver.BindAddress(host)
	}
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		return "[" + host + "]"
	}
	return host
}

// printConnector tells an operator what to give to vLLM.
func printConnector(w io.Writer, host string, port int, o mpserver.Options, gpus bool) {
	mode := transferMode(o.TransferMode, gpus)
	fmt.Fprintf(w, "Start vLLM on this host with:\n\n  --kv-transfer-config '%s'\n\n", connectorJSON(host, port, mode))
	switch {
	case o.TransferMode == mpserver.TransferLMCacheDriven && !gpus:
		fmt.Fprintf(w, "This server sees no GPU: it refuses engines that have one. `lmcache-go doctor gpu` says why.\n")
	case o.TransferMode == mpserver.TransferLMCacheDriven:
	case o.L1.ShmName == "":
		fmt.Fprintf(w, "Engines that copy themselves send their KV as pickles: add --shm-name NAME to copy through shared memory instead.\n")
	default:
		fmt.Fprintf(w, "Engines that copy themselves do so through shared memory: %s/%s.\n", shmFolder, mpserver.SegmentName(o.L1.ShmName))
	}
}

// portOf is the port of an endpoint such as tcp://127.0.0.1:6555, 0 if it has none.
func portOf(endpoint string) int {
	_, addr, ok := strings.Cut(endpoint, "://")
	if !ok {
		addr = endpoint
	}
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}
