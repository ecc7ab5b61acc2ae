package connector

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Names of the connectors and roles of vLLM 0.33.
const (
	MPConnector    = "LMCacheMPConnector"
	MultiConnector = "MultiConnector"
	NixlConnector  = "NixlConnector"
)

// Role says whether an engine stores what it computes, loads what others did,
// or both (kv_role).
type Role string

// The roles. A consumer never stores; a producer still loads.
const (
	RoleBoth     Role = "kv_both"
	RoleProducer Role = "kv_producer"
	RoleConsumer Role = "kv_consumer"
)

// Stores says whether the role stores.
func (r Role) Stores() bool { return r != RoleConsumer }

// FailurePolicy is what an engine does with a request whose load failed
// (kv_load_failure_policy).
type FailurePolicy string

// The policies.
const (
	PolicyFail      FailurePolicy = "fail"
	PolicyRecompute FailurePolicy = "recompute"
)

// TransferConfig is vLLM's KVTransferConfig, as `--kv-transfer-config` gives it
// in JSON. Keys that nothing here uses are kept in Extra or ignored.
type TransferConfig struct {
	Connector string `json:"kv_connector"`
	Role      Role   `json:"kv_role"`
	// EngineID of the engine; "" lets it choose.
	EngineID string `json:"engine_id"`
	// FailurePolicy counts at the top level only; in a child of a
	// MultiConnector vLLM does not read it. Default fail.
	FailurePolicy FailurePolicy `json:"kv_load_failure_policy"`
	// ModulePath overrides vLLM's registry of connectors; kept for the record.
	ModulePath string `json:"kv_connector_module_path"`
	// Extra is kv_connector_extra_config, undecoded.
	Extra map[string]json.RawMessage `json:"kv_connector_extra_config"`
	// Children of a MultiConnector, in order.
	Children []*TransferConfig `json:"-"`
}

// ParseTransferConfig reads the JSON of `--kv-transfer-config`. Errors wrap
// [ErrConfig]; all problems are reported at once.
func ParseTransferConfig(data []byte) (*TransferConfig, error) {
	var errs []error
	t := parseTransfer(data, "", &errs)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return t, nil
}

func parseTransfer(data []byte, at string, errs *[]error) *TransferConfig {
	bad := func(format string, args ...any) {
		*errs = append(*errs, fmt.Errorf("%w: kv-transfer-config%s: %s", ErrConfig, at, fmt.Sprintf(format, args...)))
	}
	t := &TransferConfig{}
	if err := json.Unmarshal(data, t); err != nil {
		bad("%v", err)
		return t
	}
	if t.Connector == "" {
		bad("kv_connector is missing: name %s or %s", MPConnector, MultiConnector)
	}
	switch t.Role {
	case RoleBoth, RoleProducer, RoleConsumer:
	case "":
		bad("kv_role is missing: use kv_both, kv_producer or kv_consumer")
	default:
		bad("kv_role %q: use kv_both, kv_producer or kv_consumer", t.Role)
	}
	switch t.FailurePolicy {
	case PolicyFail, PolicyRecompute:
	case "":
		t.FailurePolicy = PolicyFail
	default:
		bad("kv_load_failure_policy %q: use fail or recompute", t.FailurePolicy)
	}
	if t.Connector != MultiConnector {
		return t
	}
	var children []json.RawMessage
	if raw, ok := t.Extra["connectors"]; !ok || json.Unmarshal(raw, &children) != nil || len(children) == 0 {
		bad("a %s needs a list of connectors in kv_connector_extra_config.connectors", MultiConnector)
	}
	if at != "" {
		bad("a %s inside another one", MultiConnector)
		return t
	}
	for i, c := range children {
		t.Children = append(t.Children, parseTransfer(c, fmt.Sprintf(" connector %d", i), errs))
	}
	return t
}

// Find returns the config of the named connector: t itself, or the first child
// with that name; nil without one.
func (t *TransferConfig) Find(connector string) *TransferConfig {
	if t.Connector == connector {
		return t
	}
	for _, c := range t.Children {
		if c.Connector == connector {
			return c
		}
	}
	return nil
}

// Warnings lists what vLLM accepts silently and an operator should know.
func (t *TransferConfig) Warnings() []string {
	var out []string
	for i, c := range t.Children {
		if c.FailurePolicy != t.FailurePolicy {
			out = append(out, fmt.Sprintf("kv_load_failure_policy %q of connector %d has no effect: only the top level's (%q) is read", c.FailurePolicy, i, t.FailurePolicy))
		}
	}
	if mp := t.Find(MPConnector); mp != nil {
		if t.FailurePolicy == PolicyFail && mp.Role.Stores() {
			out = append(out, `vLLM 0.33 stops after a failed load with this config: set "kv_load_failure_policy": "recompute" at the top level`)
		}
		if c, err := mp.MP(); err == nil && 3*c.HeartbeatInterval > 30*time.Second {
			// At 10 s, the default, this is silent.
			out = append(out, fmt.Sprintf("lmcache.mp.heartbeat_interval of %g s is long: a dead server is noticed after up to twice that", c.HeartbeatInterval.Seconds()))
		}
	}
	return out
}

// TransferMode says who copies (lmcache.mp.mp_transfer_mode).
type TransferMode string

// The modes. Auto is lmcache_driven for CUDA memory and engine_driven otherwise.
const (
	ModeAuto          TransferMode = "auto"
	ModeLMCacheDriven TransferMode = "lmcache_driven"
	ModeEngineDriven  TransferMode = "engine_driven"
)

// Config is what the lmcache.mp.* keys of kv_connector_extra_config say, with
// the defaults of lmcache 0.5.6. Make one with [DefaultConfig] or
// [TransferConfig.MP].
type Config struct {
	Role Role
	// Servers are urls; one unless lmcache.mp.server_urls lists more.
	Servers []string
	// Timeout of calls that somebody waits for. Default 300 s.
	Timeout time.Duration
	// HeartbeatInterval between pings, and how long each waits. Default 10 s.
	HeartbeatInterval time.Duration
	// Mode of transfers. Default auto; the key goes before the environment's
	// LMCACHE_MP_TRANSFER_MODE.
	Mode TransferMode
	// SaveDecodeCache stores generated chunks too, not only those of the
	// prompt. Default false.
	SaveDecodeCache bool
	// EagerPrefetch sends the lookup when a request enters the queue
	// ([Scheduler.Enqueued]). Default false.
	EagerPrefetch bool
	// NonblockingLookup asks for the status of a lookup at each step; otherwise
	// Match waits for it. Default true.
	NonblockingLookup bool
	// LazyOffload, TransferQuery and the rest of lmcache's experimental keys
	// are not served: [TransferConfig.MP] refuses them when they are on.
	IsolatedIPC bool
	UseVMM      bool
	// HashAlgorithm of client-side KV events. Default blake3.
	HashAlgorithm string
	// Autostart asks lmcache to start its own Python server. This package
	// starts none: an engine may look at it.
	Autostart bool
	// LayerOrder and other unknown keys of lmcache.mp.* are listed here.
	Unknown []string
}

// DefaultConfig is what lmcache does without any key.
func DefaultConfig() Config {
	return Config{
		Role: RoleBoth, Servers: []string{"tcp://localhost:5555"}, Timeout: DefaultTimeout, HeartbeatInterval: 10 * time.Second,
		Mode: ModeAuto, NonblockingLookup: true, HashAlgorithm: "blake3",
	}
}

// ModeEnv is read where the transfer mode is not in the config.
const ModeEnv = "LMCACHE_MP_TRANSFER_MODE"

// MP reads the settings of an LMCacheMPConnector. Errors wrap [ErrConfig] and
// name the key, all of them at once.
func (t *TransferConfig) MP() (Config, error) { return t.mp(func(string) string { return "" }) }

// MPWithEnv is MP for a process whose environment counts too, as os.Getenv
// tells it.
func (t *TransferConfig) MPWithEnv(getenv func(string) string) (Config, error) { return t.mp(getenv) }

func (t *TransferConfig) mp(getenv func(string) string) (Config, error) {
	c := DefaultConfig()
	c.Role = t.Role
	d := extra{values: t.Extra, used: make(map[string]bool)}
	host, port := "tcp://localhost", 5555
	d.text("lmcache.mp.host", &host)
	d.integer("lmcache.mp.port", &port)
	if !strings.Contains(host, "://") {
		host = "tcp://" + host
	}
	c.Servers = []string{fmt.Sprintf("%s:%d", host, port)}
	d.list("lmcache.mp.server_urls", &c.Servers)
	d.seconds("lmcache.mp.mq_timeout", &c.Timeout)
	d.seconds("lmcache.mp.heartbeat_interval", &c.HeartbeatInterval)
	d.strictBool("lmcache.mp.save_decode_cache", &c.SaveDecodeCache)
	d.strictBool("lmcache.mp.eager_prefetch", &c.EagerPrefetch)
	d.boolean("lmcache.mp.nonblocking_lookup_status", &c.NonblockingLookup)
	d.boolean("lmcache.mp.isolated_ipc", &c.IsolatedIPC)
	d.boolean("lmcache.mp.use_vmm_api", &c.UseVMM)
	d.boolean("lmcache.mp.autostart", &c.Autostart)
	d.text("lmcache.mp.hash_algorithm", &c.HashAlgorithm)
	mode := string(c.Mode)
	if env := getenv(ModeEnv); env != "" {
		mode = env
	}
	d.text("lmcache.mp.mp_transfer_mode", &mode)
	c.Mode = TransferMode(mode)
	for _, key := range []string{"lmcache.mp.lazy_offload", "lmcache.mp.transfer_intermediate_tensors"} {
		on := false
		if d.boolean(key, &on); on {
			d.bad(key, "is not served by this connector: leave it out")
		}
	}
	for _, key := range []string{
		"lmcache.mp.lazy_offload_policy", "lmcache.mp.lazy_offload_threshold", "lmcache.mp.lazy_offload_select_count",
		"lmcache.mp.autostart.server_args", "lmcache.mp.autostart.wait_timeout",
	} {
		d.used[key] = true // of switches that are off, or that this package leaves to others
	}
	d.check(&c)
	for key := range t.Extra {
		if strings.HasPrefix(key, "lmcache.") && !d.used[key] {
			c.Unknown = append(c.Unknown, key)
		}
	}
	slices.Sort(c.Unknown)
	return c, errors.Join(d.errs...)
}

// extra decodes kv_connector_extra_config key by key.
type extra struct {
	values map[string]json.RawMessage
	used   map[string]bool
	errs   []error
}

func (d *extra) bad(key, format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf("%w: %s %s", ErrConfig, key, fmt.Sprintf(format, args...)))
}

// get returns a value that is there and not null.
func (d *extra) get(key string) (json.RawMessage, bool) {
	d.used[key] = true
	raw, ok := d.values[key]
	return raw, ok && !bytes.Equal(raw, []byte("null"))
}

func (d *extra) text(key string, dst *string) {
	if raw, ok := d.get(key); ok {
		if err := json.Unmarshal(raw, dst); err != nil {
			d.bad(key, "must be a string, got %.40s", raw)
		}
	}
}

func (d *extra) integer(key string, dst *int) {
	raw, ok := d.get(key)
	if !ok {
		return
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		raw = json.RawMessage(text) // Python formats either into the url
	}
	if err := json.Unmarshal(raw, dst); err != nil {
		d.bad(key, "must be an integer, got %.40s", raw)
	}
}

func (d *extra) seconds(key string, dst *time.Duration) {
	raw, ok := d.get(key)
	if !ok {
		return
	}
	var s float64
	if err := json.Unmarshal(raw, &s); err != nil || s <= 0 || s > 1e6 {
		d.bad(key, "must be a number of seconds above 0, got %.40s", raw)
		return
	}
	*dst = time.Duration(s * float64(time.Second))
}

// strictBool takes JSON booleans only, as the reference does for keys where a
// string would be a silent mistake.
func (d *extra) strictBool(key string, dst *bool) {
	if raw, ok := d.get(key); ok {
		if err := json.Unmarshal(raw, dst); err != nil {
			d.bad(key, "must be true or false without quotes, got %.40s", raw)
		}
	}
}

// boolean also takes the words and numbers that the reference reads as true;
// everything else is false.
func (d *extra) boolean(key string, dst *bool) {
	raw, ok := d.get(key)
	if !ok {
		return
	}
	if json.Unmarshal(raw, dst) == nil {
		return
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "1", "true", "yes", "on", "y":
		*dst = true
	default:
		*dst = false
	}
}

// list takes a list of strings or one string with commas.
func (d *extra) list(key string, dst *[]string) {
	raw, ok := d.get(key)
	if !ok {
		return
	}
	var items []string
	var text string
	switch {
	case json.Unmarshal(raw, &text) == nil:
		items = strings.Split(text, ",")
	case json.Unmarshal(raw, &items) != nil:
		d.bad(key, "must be a list of urls or one string with commas, got %.80s", raw)
		return
	}
	var out []string
	for _, s := range items {
		if s = strings.TrimSpace(s); s != "" {
			if !strings.Contains(s, "://") {
				s = "tcp://" + s
			}
			out = append(out, s)
		}
	}
	if len(out) > 0 { // an empty list means the other keys
		*dst = out
	}
}

func (d *extra) check(c *Config) {
	for _, url := range c.Servers {
		if _, _, err := splitURL(url); err != nil {
			d.errs = append(d.errs, err)
		}
	}
	switch c.Mode {
	case ModeAuto, ModeLMCacheDriven, ModeEngineDriven:
	default:
		d.bad("lmcache.mp.mp_transfer_mode", "%q: use auto, lmcache_driven or engine_driven", c.Mode)
	}
}
