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
	// Mode is engine_driven while the server cannot copy GPU memory, which is
	// what a worker on CUDA asks for unless it is told otherwise.
	Mode mpserver.TransferMode `json:"lmcache.mp.mp_transfer_mode"`
}

// connectorJSON is that configuration. A failed load is recomputed and not an
// error of the request: a cache must not be able to break an answer.
func connectorJSON(host string, port int, served mpserver.TransferMode) string {
	mode := mpserver.TransferEngineDriven
	if served == mpserver.TransferLMCacheDriven {
		mode = served
	}
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
func printConnector(w io.Writer, host string, port int, o mpserver.Options) {
	fmt.Fprintf(w, "Start vLLM on this host with:\n\n  --kv-transfer-config '%s'\n\n", connectorJSON(host, port, o.TransferMode))
	switch {
	case o.TransferMode == mpserver.TransferLMCacheDriven:
	case o.L1.ShmName == "":
		fmt.Fprintf(w, "Engines without a GPU send their KV as pickles: add --shm-name NAME to copy through shared memory instead.\n")
	default:
		fmt.Fprintf(w, "Engines without a GPU copy through shared memory: %s/%s.\n", shmFolder, mpserver.SegmentName(o.L1.ShmName))
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
