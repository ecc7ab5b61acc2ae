package nixldoctor

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lmcache-go/lmcache-go/nixl"
	"github.com/lmcache-go/lmcache-go/nixl/internal/pair"
)

// Plugin is one plugin of the library.
type Plugin struct {
	Name string   `json:"name"`
	Mems []string `json:"mems,omitempty"`
	// Params are its parameters with their defaults.
	Params map[string]string `json:"params,omitempty"`
	// Err is why it cannot be loaded.
	Err string `json:"err,omitempty"`
	// Missing are the libraries that it lacks.
	Missing []Missing `json:"missing,omitempty"`
}

// Module is a transport module of UCX.
type Module struct {
	Name    string    `json:"name"`
	Missing []Missing `json:"missing,omitempty"`
}

// Library is what a process that loaded NIXL found.
type Library struct {
	Path     string        `json:"path"`
	Origin   nixl.Origin   `json:"origin"`
	Version  string        `json:"version"`
	Features nixl.Features `json:"features"`
	Plugins  []Plugin      `json:"plugins"`
	// UCX are the UCX libraries that the process holds after UCX was started.
	UCX []string `json:"ucx"`
	// Modules are UCX's modules beside it.
	Modules []Module `json:"modules"`
	GPUs    int      `json:"gpus"`
	NoGPU   string   `json:"no_gpu,omitempty"`
	Err     string   `json:"err,omitempty"`
}

// inspectRole is the argument that makes this program inspect the library: in
// a process of its own, which may crash.
const inspectRole = "--inspect"

func inspect(path string, out io.Writer) int {
	enc := json.NewEncoder(out)
	l := look(path)
	if err := enc.Encode(l); err != nil || l.Err != "" {
		return 1
	}
	return 0
}

func look(path string) Library {
	o := nixl.LoadOptions{Path: path}
	lib, err := nixl.Load(o)
	if err != nil {
		return Library{Err: err.Error()}
	}
	l := Library{Path: lib.Path(), Origin: lib.Origin(), Version: lib.Version(), Features: lib.Features()}
	if l.GPUs, err = pair.GPUs(); err != nil {
		l.NoGPU = err.Error()
	}
	agent, err := nixl.NewAgent(lib, nixl.Config{})
	if err != nil {
		l.Err = err.Error()
		return l
	}
	defer agent.Close() //nolint:errcheck // the process ends
	names, err := agent.Plugins()
	if err != nil {
		l.Err = err.Error()
		return l
	}
	r := newResolver()
	dir := os.Getenv("NIXL_PLUGIN_DIR")
	if dir == "" {
		dir = filepath.Join(filepath.Dir(lib.Path()), "plugins")
	}
	for _, name := range names {
		p := Plugin{Name: name}
		mems, params, err := agent.PluginInfo(name)
		for _, m := range mems {
			p.Mems = append(p.Mems, m.String())
		}
		p.Params = params
		if err != nil {
			p.Err = err.Error()
			if p.Missing, err = r.missing(filepath.Join(dir, "libplugin_"+name+".so")); err != nil {
				p.Err += "; " + err.Error()
			}
		}
		l.Plugins = append(l.Plugins, p)
	}
	if _, err := agent.Backend(nixl.UCX{}); err != nil {
		l.Err = err.Error()
	}
	l.UCX = mapped("libucp", "libuct.", "libuct-", "libucs")
	for _, ucp := range l.UCX {
		if strings.HasPrefix(filepath.Base(ucp), "libucp") {
			l.Modules = modules(r, filepath.Join(filepath.Dir(ucp), "ucx"))
		}
	}
	return l
}

// modules lists UCX's modules in a folder.
func modules(r *resolver, dir string) []Module {
	files, _ := filepath.Glob(filepath.Join(dir, "libuc[tm]_*.so*"))
	var list []Module
	for _, f := range files {
		name, _, _ := strings.Cut(filepath.Base(f), ".so")
		if slices.ContainsFunc(list, func(m Module) bool { return m.Name == name }) {
			continue
		}
		m := Module{Name: name}
		m.Missing, _ = r.missing(f) // a file that is no library is no module
		list = append(list, m)
	}
	return list
}

// mapped lists files of this process's memory map whose names start so.
func mapped(prefixes ...string) []string {
	data, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	var files []string
	for _, line := range strings.Split(string(data), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		path := fields[5]
		for _, p := range prefixes {
			if strings.HasPrefix(filepath.Base(path), p) && !slices.Contains(files, path) && !strings.Contains(path, "/ucx/") {
				files = append(files, path)
			}
		}
	}
	return files
}
