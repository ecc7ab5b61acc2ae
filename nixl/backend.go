package nixl

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// BackendConfig names a plugin and its parameters: [UCX], [POSIX],
// [ObjectStore], or [Plugin] for any other.
type BackendConfig interface {
	// Plugin is the name of the plugin.
	Plugin() string
	// Params are its parameters; an error says what makes no sense.
	Params() (map[string]string, error)
}

// Plugin is the backend of any plugin, with parameters as it takes them. Keys
// that it does not know are ignored without a word by some plugins.
type Plugin struct {
	Name       string
	Parameters map[string]string
}

// Plugin returns the name.
func (p Plugin) Plugin() string { return p.Name }

// Params returns the parameters.
func (p Plugin) Params() (map[string]string, error) { return p.Parameters, nil }

// POSIXAPI is the interface to the kernel that the POSIX plugin uses.
type POSIXAPI string

// Interfaces of the POSIX plugin. The parameter's key is the constant.
const (
	POSIXDefault POSIXAPI = ""              // the plugin's choice
	POSIXAIO     POSIXAPI = "use_aio"       // libaio
	POSIXURing   POSIXAPI = "use_uring"     // io_uring; a container may forbid it
	POSIXGlibc   POSIXAPI = "use_posix_aio" // glibc's threads
)

// POSIX moves data between host memory and files.
type POSIX struct {
	API POSIXAPI
	// Queue is the depth of the kernel's queue. Default: the plugin's, 256.
	Queue int
	// Extra parameters, as the plugin names them.
	Extra map[string]string
}

// Plugin is "POSIX".
func (POSIX) Plugin() string { return "POSIX" }

// Params translates the fields.
func (p POSIX) Params() (map[string]string, error) {
	m := params(p.Extra)
	switch p.API {
	case POSIXDefault:
	case POSIXAIO, POSIXURing, POSIXGlibc:
		m[string(p.API)] = "true"
	default:
		return nil, fmt.Errorf("%w: POSIX.API %q", ErrInvalidParam, p.API)
	}
	if p.Queue > 0 {
		m["kernel_queue_size"] = strconv.Itoa(p.Queue)
	}
	return m, nil
}

// ObjectStore moves data between host memory and objects of an S3 store
// (plugin OBJ). A store that does not answer fails transfers only after about
// half a minute.
type ObjectStore struct {
	Bucket   string // default: $AWS_DEFAULT_BUCKET
	Endpoint string // "http://host:port"; default: AWS
	Region   string
	// AccessKey and SecretKey; default: the AWS SDK's search.
	AccessKey, SecretKey string
	// Extra parameters, as the plugin names them: "req_checksum",
	// "resp_checksum", "num_threads" and others.
	Extra map[string]string
}

// Plugin is "OBJ".
func (ObjectStore) Plugin() string { return "OBJ" }

// Params translates the fields.
func (o ObjectStore) Params() (map[string]string, error) {
	m := params(o.Extra)
	set := func(key, value string) {
		if value != "" {
			m[key] = value
		}
	}
	set("bucket", o.Bucket)
	set("region", o.Region)
	set("access_key", o.AccessKey)
	set("secret_key", o.SecretKey)
	if o.Endpoint != "" {
		set("endpoint_override", o.Endpoint)
		if scheme, _, ok := strings.Cut(o.Endpoint, "://"); ok {
			set("scheme", scheme)
		}
	}
	return m, nil
}

// params starts a parameter map with extra ones.
func params(extra map[string]string) map[string]string {
	m := make(map[string]string, len(extra)+4)
	maps.Copy(m, extra)
	return m
}

// Backend is one plugin at work for an agent. It lives as long as the agent.
type Backend struct {
	agent  *Agent
	name   string
	h      uintptr
	mems   uint32 // bit set
	params map[string]string
	cuda   []int // devices whose contexts are ready; guarded by agent.mu
}

// Plugins lists the plugins that the library has, by their files. Whether one
// can be loaded shows in [Agent.PluginInfo].
func (a *Agent) Plugins() ([]string, error) {
	if err := a.enter("list plugins"); err != nil {
		return nil, err
	}
	defer a.leave()
	names, err := a.lib.c.Plugins(a.h)
	if err != nil {
		return nil, a.fail("list plugins").from(err)
	}
	slices.Sort(names)
	return names, nil
}

// PluginInfo loads a plugin and tells which memory it moves and which
// parameters it has, with their defaults. Some plugins list fewer than they
// take.
func (a *Agent) PluginInfo(name string) ([]MemType, map[string]string, error) {
	if err := a.enter("inspect plugin"); err != nil {
		return nil, nil, err
	}
	defer a.leave()
	mems, params, err := a.lib.c.PluginInfo(a.h, name)
	if err != nil {
		e := a.fail("inspect plugin").from(err)
		e.Backend, e.Remedy = name, "lmcache-go doctor nixl lists the libraries that plugins lack"
		return nil, nil, e
	}
	return memTypes(mems), params, nil
}

// Backend starts a plugin. An agent has one backend of each plugin: a second
// call with the same plugin returns the first one's, whatever its parameters.
func (a *Agent) Backend(c BackendConfig) (*Backend, error) {
	name := c.Plugin()
	params, perr := c.Params()
	if perr == nil {
		for k, v := range params {
			if k == "" || hasNUL(k) || hasNUL(v) {
				perr = fmt.Errorf("%w: parameter %q=%q", ErrInvalidParam, k, v)
			}
		}
	}
	if perr != nil || name == "" || hasNUL(name) {
		e := a.fail("create backend")
		e.Backend, e.Cause = name, perr
		if perr == nil {
			e.Cause, e.Detail = ErrInvalidParam, "the name of the plugin"
		}
		return nil, e
	}
	// One at a time: the library has no second backend of a plugin.
	a.making.Lock()
	defer a.making.Unlock()
	if err := a.enter("create backend"); err != nil {
		return nil, err
	}
	defer a.leave()
	a.mu.Lock()
	b := a.backends[name]
	a.mu.Unlock()
	if b != nil {
		return b, nil
	}
	b, err := a.newBackend(name, params, c)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.backends[name] = b
	a.mu.Unlock()
	return b, nil
}

func (a *Agent) newBackend(name string, params map[string]string, c BackendConfig) (*Backend, error) {
	b := &Backend{agent: a, name: name, params: maps.Clone(params)}
	device := -1
	if u, ok := c.(UCX); ok {
		for _, ordinal := range u.CUDA {
			if err := b.enableCUDA(ordinal); err != nil {
				return nil, err
			}
		}
		if len(u.CUDA) > 0 {
			device = u.CUDA[0]
		}
	}
	h, err := a.lib.c.CreateBackend(a.h, name, params, device)
	if err != nil {
		e := a.fail("create backend").from(err)
		e.Backend = name
		e.Remedy = backendRemedy(name)
		return nil, e
	}
	mems, _, err := a.lib.c.BackendInfo(a.h, h)
	if err != nil {
		e := a.fail("inspect backend").from(err)
		e.Backend = name
		return nil, e
	}
	b.h, b.mems = h, mems
	return b, nil
}

func backendRemedy(name string) string {
	switch name {
	case "UCX":
		return "another UCX in the process, or a wrong NIXL_PLUGIN_DIR? NIXL_LOG_LEVEL=DEBUG shows it"
	case "OBJ":
		return "set ObjectStore.Bucket or AWS_DEFAULT_BUCKET, and credentials"
	default:
		return "lmcache-go doctor nixl lists the libraries that plugins lack; NIXL_LOG_LEVEL=DEBUG shows the plugin's own words"
	}
}

// Name is the name of the plugin.
func (b *Backend) Name() string { return b.name }

// Agent is the agent of the backend.
func (b *Backend) Agent() *Agent { return b.agent }

// MemTypes are the kinds of memory that the backend moves.
func (b *Backend) MemTypes() []MemType { return memTypes(b.mems) }

// Supports tells whether the backend moves memory of a kind. UCX says VRAM on
// machines without a GPU too; registering it fails there.
func (b *Backend) Supports(m MemType) bool { return m >= 0 && m < 32 && b.mems&(1<<m) != 0 }

// Parameters are those the backend was made with.
func (b *Backend) Parameters() map[string]string { return maps.Clone(b.params) }

func memTypes(bits uint32) []MemType {
	var list []MemType
	for m := DRAM; m <= File; m++ {
		if bits&(1<<m) != 0 {
			list = append(list, m)
		}
	}
	return list
}

// fail starts an error of this backend.
func (b *Backend) fail(op string, m MemType) *Error {
	e := b.agent.fail(op)
	e.Backend, e.Mem = b.name, m.String()
	return e
}

// enableCUDA makes the primary context of a device ready for the library.
func (b *Backend) enableCUDA(ordinal int) error {
	b.agent.mu.Lock()
	ready := slices.Contains(b.cuda, ordinal)
	b.agent.mu.Unlock()
	if ready {
		return nil
	}
	cudaOnce.Lock()
	err := b.agent.lib.c.EnableCUDA(ordinal)
	cudaOnce.Unlock()
	if err != nil {
		e := b.fail("prepare GPU", VRAM)
		e.Cause, e.Detail = err, fmt.Sprintf("device %d", ordinal)
		e.Remedy = "is the NVIDIA driver installed, and the device visible (CUDA_VISIBLE_DEVICES)?"
		return e
	}
	b.agent.mu.Lock()
	b.cuda = append(b.cuda, ordinal)
	b.agent.mu.Unlock()
	return nil
}
