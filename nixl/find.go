package nixl

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/dl"
)

// EnvLibDir names the variable that says where NIXL is: the file
// libnixl_capi.so, its folder, or a folder above it that [Find] understands.
const EnvLibDir = "NIXL_LIB_DIR"

// File names of the C API: of the 1.5.1 wheels, and the soname planned upstream.
var libNames = []string{"libnixl_capi.so", "libnixl_capi.so.0"}

// Origin tells how a candidate was found.
type Origin string

// Origins, in the order in which they are tried.
const (
	OriginOption Origin = "option" // LoadOptions.Path
	OriginEnv    Origin = "env"    // NIXL_LIB_DIR
	OriginPython Origin = "python" // a wheel in a Python environment
	OriginSystem Origin = "system" // the loader's search, /opt/nvidia, /usr/local, /usr/lib
)

// Candidate is one place where the library is looked for.
type Candidate struct {
	// Path is a file, or a plain name that the loader searches for.
	Path   string
	Origin Origin
	// Exists says that the file is there. A plain name counts as there: only
	// the loader knows.
	Exists bool
	// Note tells what led to this place, for instance which Python.
	Note string
}

// LoadOptions tell [Load] and [Find] where to look. The zero value looks
// everywhere.
type LoadOptions struct {
	// Path is the library, its folder, a site-packages folder, or the root of
	// a Python environment. When set, nothing else is tried.
	Path string
	// Python is the interpreter whose environment is searched, instead of
	// $VIRTUAL_ENV and the python3 and python on PATH.
	Python string
	// NoPython skips Python environments. Looking into one may start the
	// interpreter once, for at most five seconds.
	NoPython bool
	// CUDAMajor, 12 or 13, chooses between two wheels in one environment.
	// Default: that of the CUDA driver, else 13 before 12.
	CUDAMajor int
	// NoDefaults leaves the C environment alone. Otherwise, where unset there:
	// UCX_LOG_FILE=stderr (UCX logs to stdout), UCX_RCACHE_MAX_UNRELEASED=1024
	// (bounds a leak of registrations; vLLM does the same) and
	// NIXL_UCX_EXPECTED_SONAME (refuses a foreign UCX in the process). Go's
	// own environment and child processes do not see them.
	NoDefaults bool
}

// pythonTimeout bounds one question to one interpreter.
const pythonTimeout = 5 * time.Second

// finder holds what discovery asks the system, so that tests can answer.
type finder struct {
	getenv       func(string) string
	pythonSites  func(python string) ([]string, error) // asks the interpreter
	lookPath     func(string) (string, error)
	driverMajor  func() int // CUDA major of the driver, 0 without one
	systemFolder []string
}

func systemFinder() *finder {
	return &finder{
		getenv: os.Getenv, pythonSites: askPython, lookPath: exec.LookPath, driverMajor: cudaDriverMajor,
		systemFolder: systemFolders(),
	}
}

// Find lists where the library is looked for, in the order of [Load]: the
// option; $NIXL_LIB_DIR; Python environments; the system. The first of these
// that is set or non-empty and wins is marked by Exists. Nothing is loaded.
func Find(o LoadOptions) []Candidate {
	return systemFinder().find(o)
}

func (f *finder) find(o LoadOptions) []Candidate {
	majors := f.majors(o)
	if o.Path != "" {
		return place(o.Path, OriginOption, "", majors)
	}
	if dir := f.getenv(EnvLibDir); dir != "" {
		return place(dir, OriginEnv, EnvLibDir, majors)
	}
	var all []Candidate
	if !o.NoPython {
		all = f.python(o, majors)
	}
	for _, name := range libNames {
		all = append(all, Candidate{Path: name, Origin: OriginSystem, Exists: true, Note: "loader search"})
	}
	for _, dir := range f.systemFolder {
		for _, name := range libNames {
			path := filepath.Join(dir, name)
			all = append(all, Candidate{Path: path, Origin: OriginSystem, Exists: isFile(path)})
		}
	}
	return all
}

func (f *finder) majors(o LoadOptions) []string {
	switch {
	case o.CUDAMajor == 12, o.CUDAMajor == 0 && f.driverMajor() == 12:
		return []string{"12", "13"}
	default:
		return []string{"13", "12"}
	}
}

// place lists the candidates under a path that somebody named.
func place(path string, origin Origin, note string, majors []string) []Candidate {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []Candidate{{Path: path, Origin: origin, Exists: err == nil, Note: note}}
	}
	dirs := append([]string{path}, wheelFolders(path, majors)...)
	dirs = append(dirs, filepath.Join(path, "lib"), filepath.Join(path, "lib", multiarch()), filepath.Join(path, "lib64"))
	for _, site := range siteFolders(path) {
		dirs = append(dirs, wheelFolders(site, majors)...)
	}
	var found, all []Candidate
	for _, dir := range dirs {
		for _, name := range libNames {
			c := Candidate{Path: filepath.Join(dir, name), Origin: origin, Note: note}
			if c.Exists = isFile(c.Path); c.Exists {
				found = append(found, c)
			}
			all = append(all, c)
		}
	}
	if len(found) > 0 {
		return found
	}
	return all
}

// wheelFolders are the library folders of the wheels in a site-packages folder.
func wheelFolders(site string, majors []string) []string {
	var dirs []string
	for _, major := range majors {
		dirs = append(dirs, filepath.Join(site, ".nixl_cu"+major+".mesonpy.libs"))
	}
	return dirs
}

// siteFolders are the site-packages folders below the root of an environment.
func siteFolders(root string) []string {
	var sites []string
	for _, lib := range []string{"lib", "lib64"} {
		for _, kind := range []string{"site-packages", "dist-packages"} {
			match, _ := filepath.Glob(filepath.Join(root, lib, "python3*", kind))
			sites = append(sites, match...)
		}
	}
	return unique(sites)
}

// python lists the wheels of Python environments. Looking at the folders of an
// environment comes first; the interpreter is started only when that finds
// nothing.
func (f *finder) python(o LoadOptions, majors []string) []Candidate {
	var pythons []string
	switch env := f.getenv("VIRTUAL_ENV"); {
	case o.Python != "":
		pythons = []string{o.Python}
	case env != "":
		pythons = append(pythons, filepath.Join(env, "bin", "python"))
		fallthrough
	default:
		for _, name := range []string{"python3", "python"} {
			if path, err := f.lookPath(name); err == nil {
				pythons = append(pythons, path)
			}
		}
	}
	var all []Candidate
	for _, python := range unique(pythons) {
		// Not through symbolic links: the root of an environment is where its
		// interpreter appears, not where it leads to.
		sites := siteFolders(filepath.Dir(filepath.Dir(python)))
		here := inSites(sites, python, majors)
		if len(here) == 0 {
			if asked, err := f.pythonSites(python); err == nil {
				sites = append(sites, asked...)
				here = inSites(asked, python, majors)
			}
		}
		if len(here) == 0 {
			for _, site := range unique(sites) {
				path := filepath.Join(site, ".nixl_cu"+majors[0]+".mesonpy.libs", libNames[0])
				here = append(here, Candidate{Path: path, Origin: OriginPython, Note: python})
			}
		}
		all = append(all, here...)
	}
	return all
}

func inSites(sites []string, python string, majors []string) []Candidate {
	var found []Candidate
	for _, site := range unique(sites) {
		for _, dir := range wheelFolders(site, majors) {
			for _, name := range libNames {
				if path := filepath.Join(dir, name); isFile(path) {
					found = append(found, Candidate{Path: path, Origin: OriginPython, Exists: true, Note: python})
				}
			}
		}
	}
	return found
}

// askPython asks an interpreter for its site-packages folders. It imports
// nothing of what is installed there: importing nixl would import torch.
func askPython(python string) ([]string, error) {
	const script = `import site,sysconfig
for p in [sysconfig.get_path("purelib"),sysconfig.get_path("platlib"),*site.getsitepackages()]: print(p)`
	ctx, cancel := context.WithTimeout(context.Background(), pythonTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-I", "-c", script)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return unique(strings.Fields(string(out))), nil
}

func systemFolders() []string {
	arch := multiarch()
	return []string{
		"/opt/nvidia/nvda_nixl/lib/" + arch, "/opt/nvidia/nvda_nixl/lib64", "/usr/local/nixl/lib/" + arch,
		"/usr/local/nixl/lib", "/usr/local/lib", "/usr/local/lib/" + arch, "/usr/lib/" + arch,
	}
}

func multiarch() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64-linux-gnu"
	case "arm64":
		return "aarch64-linux-gnu"
	default:
		return runtime.GOARCH + "-linux-gnu"
	}
}

// cudaDriverMajor asks the CUDA driver for the version it supports. It works
// without cuInit and touches no device.
func cudaDriverMajor() int {
	driver, err := dl.Open("libcuda.so.1", dl.Lazy)
	if err != nil {
		return 0
	}
	return driverMajorOf(driver)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
