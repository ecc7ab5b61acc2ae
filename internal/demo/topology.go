package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The model: what an engine must know to simulate it. Its KV is 512 bytes a token
// and layer.
const (
	modelName   = "demo/model"
	layers      = 4
	kvHeads     = 4
	headSize    = 32
	blockTokens = 16
	chunkTokens = 256
	// pageBytes is a block of one layer: bfloat16, K and V.
	pageBytes = blockTokens * kvHeads * headSize * 2 * 2
)

// shape is what runs of the demo differ in.
type shape struct {
	layers                      int
	prefillBlocks, decodeBlocks int
	tokenCost                   time.Duration
	l1GB                        string
	lease, heartbeat            string // kv_lease_duration, lmcache.mp.heartbeat_interval; "" leaves the default
	noLMCache                   bool
}

// verifyShape has a small pool on the prefiller, which is made to spill.
var verifyShape = shape{layers: layers, prefillBlocks: 256, decodeBlocks: 1024, tokenCost: 100 * time.Microsecond, l1GB: "0.25"}

// topology is a deployment of five processes.
type topology struct {
	dir   string
	self  string // this executable
	parts parts
	shape shape

	prefillServer, decodeServer, prefill, decode, router *process

	// Addresses: http://host:port, but for the servers' ports of the protocol.
	prefillServerHTTP, decodeServerHTTP, prefillURL, decodeURL, routerURL string
	prefillPort, decodePort                                               int
	sidePrefill, sideDecode                                               int
}

// all processes in the order of their start.
func (t *topology) all() []*process {
	var out []*process
	for _, p := range []*process{t.prefillServer, t.decodeServer, t.prefill, t.decode, t.router} {
		if p != nil {
			out = append(out, p)
		}
	}
	return out
}

// stop ends everything, the router first.
func (t *topology) stop() {
	list := t.all()
	for i := len(list) - 1; i >= 0; i-- {
		list[i].stop()
	}
}

// freePort asks the kernel for a port. Somebody may take it before it is used;
// the process then says so.
func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	err = l.Close()
	if !ok {
		return 0, errors.Join(err, errors.New("no TCP address"))
	}
	return addr.Port, err
}

// start runs all five. What has started when one fails is stopped by the caller.
func (t *topology) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{t.startServers, t.startEngines, t.startRouter} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

var serverReady = regexp.MustCompile(`msg=ready addr=tcp://127\.0\.0\.1:(\d+) http=(127\.0\.0\.1:\d+)`)

func (t *topology) startServers(ctx context.Context) error {
	if t.shape.noLMCache {
		return nil
	}
	for _, s := range []struct {
		id   string
		p    **process
		port *int
		http *string
	}{{"prefiller", &t.prefillServer, &t.prefillPort, &t.prefillServerHTTP}, {"decoder", &t.decodeServer, &t.decodePort, &t.decodeServerHTTP}} {
		if *s.p != nil && (*s.p).alive() {
			continue // it is the other one that is started again
		}
		*s.p = &process{name: s.id + "-server", argv: []string{
			t.self, "server", "--host", "127.0.0.1", "--port", strconv.Itoa(*s.port), "--http-port", portOf(*s.http),
			"--l1-size-gb", t.shape.l1GB, "--eviction-policy", "LRU", "--chunk-size", strconv.Itoa(chunkTokens), "--instance-id", s.id,
		}}
		m, err := t.run(ctx, *s.p, serverReady)
		if err != nil {
			return err
		}
		if *s.port, err = strconv.Atoi(m[1]); err != nil {
			return err
		}
		*s.http = "http://" + m[2]
	}
	return nil
}

func portOf(url string) string {
	if i := strings.LastIndexByte(url, ':'); i >= 0 {
		return url[i+1:]
	}
	return "0"
}

// run starts a process and waits until it says that it serves.
func (t *topology) run(ctx context.Context, p *process, ready *regexp.Regexp) ([]string, error) {
	from := (&process{log: t.logOf(p)}).size()
	if err := p.start(t.dir); err != nil {
		return nil, err
	}
	return p.said(ctx, ready, from)
}

func (t *topology) logOf(p *process) string { return t.dir + "/" + p.name + ".log" }

// transferConfig is the deployment page's JSON; without LMCache its connector
// is left out.
func (t *topology) transferConfig(role string, port int) string {
	lease, beat := "", ""
	if t.shape.lease != "" {
		lease = `,"kv_connector_extra_config":{"kv_lease_duration":` + t.shape.lease + `}`
	}
	if t.shape.heartbeat != "" {
		beat = `,"lmcache.mp.heartbeat_interval":` + t.shape.heartbeat
	}
	lmcache := fmt.Sprintf(`,{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_connector_extra_config":{"lmcache.mp.host":"tcp://localhost","lmcache.mp.port":%d%s}}`, port, beat)
	if t.shape.noLMCache {
		lmcache = ""
	}
	return fmt.Sprintf(`{"kv_connector":"MultiConnector","kv_role":"%s","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"%s","kv_load_failure_policy":"fail"%s}%s]}}`,
		role, role, lease, lmcache)
}

var engineReady = regexp.MustCompile(`serves (http://127\.0\.0\.1:\d+)`)

// engine makes the process of an engine. Its side channel's port must be known
// to nobody in advance, but stays the same when the engine is started again.
func (t *topology) engine(name, role string, blocks, serverPort, side int, url string) *process {
	p := &process{name: name, argv: []string{
		t.self, "engine", "serve", modelName, "--port", portOf(url), "--block-size", strconv.Itoa(blockTokens), "--num-gpu-blocks-override", strconv.Itoa(blocks),
		"--layers", strconv.Itoa(t.shape.layers), "--kv-heads", strconv.Itoa(kvHeads), "--head-size", strconv.Itoa(headSize), "--token-cost", t.shape.tokenCost.String(),
		"--kv-transfer-config", t.transferConfig(role, serverPort),
	}, env: []string{
		"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT=" + strconv.Itoa(side), "UCX_NET_DEVICES=all", "NCCL_CUMEM_ENABLE=1",
		"VLLM_LOG_STATS_INTERVAL=0.5",
	}}
	if t.parts.nixlDir != "" {
		p.env = append(p.env, "NIXL_LIB_DIR="+t.parts.nixlDir)
	}
	return p
}

func (t *topology) startEngines(ctx context.Context) error {
	var err error
	for _, port := range []*int{&t.sidePrefill, &t.sideDecode} {
		if *port, err = freePort(ctx); err != nil {
			return err
		}
	}
	return errors.Join(t.startPrefill(ctx), t.startDecode(ctx))
}

func (t *topology) startPrefill(ctx context.Context) error {
	t.prefill = t.engine("prefill", "kv_producer", t.shape.prefillBlocks, t.prefillPort, t.sidePrefill, t.prefillURL)
	m, err := t.run(ctx, t.prefill, engineReady)
	if err == nil {
		t.prefillURL = m[1]
	}
	return err
}

func (t *topology) startDecode(ctx context.Context) error {
	t.decode = t.engine("decode", "kv_consumer", t.shape.decodeBlocks, t.decodePort, t.sideDecode, t.decodeURL)
	m, err := t.run(ctx, t.decode, engineReady)
	if err == nil {
		t.decodeURL = m[1]
	}
	return err
}

func (t *topology) startRouter(ctx context.Context) error {
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	if t.routerURL != "" {
		if port, err = strconv.Atoi(portOf(t.routerURL)); err != nil {
			return err
		}
	}
	metrics, err := freePort(ctx)
	if err != nil {
		return err
	}
	t.router = &process{name: "router"}
	if t.parts.router != "" {
		t.router.argv = []string{t.parts.router, "--policy", "round_robin", "--vllm-pd-disaggregation", "--prometheus-port", strconv.Itoa(metrics)}
	} else {
		t.router.argv = []string{t.self, "demo", "router"}
	}
	t.router.argv = append(t.router.argv, "--prefill", t.prefillURL, "--decode", t.decodeURL, "--host", "127.0.0.1", "--port", strconv.Itoa(port))
	if err := t.router.start(t.dir); err != nil {
		return err
	}
	t.routerURL = "http://127.0.0.1:" + strconv.Itoa(port)
	c := newClient()
	defer c.close()
	if !eventually(ctx, startLimit, func() bool {
		_, err := c.get(ctx, t.routerURL+"/health")
		return err == nil || !t.router.alive()
	}) || !t.router.alive() {
		text, _ := t.router.output(0)
		return fmt.Errorf("the router does not serve; its log %s ends so:\n%s", t.router.log, tail(text))
	}
	return nil
}
