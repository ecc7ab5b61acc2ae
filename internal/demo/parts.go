package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// What the demo installs where it finds nothing: the versions of
// conformance/refenv-constraints.txt.
const (
	routerVersion = "0.1.17"
	nixlVersion   = "1.5.1"
)

const (
	// pythonEnv names an interpreter whose environment has both.
	pythonEnv = "LMCACHE_GO_PYTHON"
	askLimit  = 20 * time.Second
	// pipLimit bounds an installation of about 130 MB.
	pipLimit = 5 * time.Minute
)

// Kinds of routers.
const (
	routerAuto    = "auto"
	routerReal    = "real"
	routerStandIn = "stand-in"
)

// parts are what the demo needs from others.
type parts struct {
	router  string // executable; "" for the stand-in
	nixlDir string // NIXL_LIB_DIR for engines; "" leaves it to them
	nixl    string // the library, for people
}

// finder looks for parts.
type finder struct {
	getenv func(string) string
	out    io.Writer
	// run runs a command and returns its output.
	run func(ctx context.Context, argv ...string) (string, error)
	// cache is the folder for environments.
	cache string
}

func newFinder(out io.Writer) *finder {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	return &finder{getenv: os.Getenv, out: out, run: runCommand, cache: filepath.Join(cache, "lmcache-go")}
}

func runCommand(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// environments are the roots of Python environments that may have what is
// needed, the demo's own last.
func (f *finder) environments() []string {
	var out []string
	if python := f.getenv(pythonEnv); python != "" {
		out = append(out, filepath.Dir(filepath.Dir(python)))
	}
	if dir := f.getenv("REFENV"); dir != "" {
		out = append(out, dir)
	}
	return append(out, filepath.Join(f.cache, "refenv"), f.own())
}

func (f *finder) own() string {
	return filepath.Join(f.cache, "demoenv-"+routerVersion+"-"+nixlVersion)
}

// routerIn returns the router of an environment, "" when it has none of the
// wanted version.
func (f *finder) routerIn(ctx context.Context, env string) string {
	path := filepath.Join(env, "bin", "vllm-router")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	out, err := f.run(ctx, filepath.Join(env, "bin", "python"), "-c", "import importlib.metadata as m; print(m.version('vllm-router'))")
	if err != nil || strings.TrimSpace(out) != routerVersion {
		return ""
	}
	return path
}

// errNoPython says that there is nothing to make an environment with.
var errNoPython = errors.New("no python3 on PATH")

// make builds the demo's own environment. It is complete once the router is in
// it; what a run that was cut short has left is thrown away.
func (f *finder) make(ctx context.Context, kind string) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return errNoPython
	}
	dir := f.own()
	fmt.Fprintf(f.out, "making %s (vllm-router %s, NIXL %s: about 130 MB, once)\n", dir, routerVersion, nixlVersion)
	ctx, cancel := context.WithTimeout(ctx, pipLimit)
	defer cancel()
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	pip := filepath.Join(dir, "bin", "pip")
	steps := [][]string{
		{python, "-m", "venv", dir},
		// Only the library is used of NIXL's wheel: torch and numpy stay away.
		{pip, "install", "-q", "--disable-pip-version-check", "--no-deps", "nixl-cu12==" + nixlVersion},
	}
	if kind != routerStandIn {
		steps = append(steps, []string{pip, "install", "-q", "--disable-pip-version-check", "vllm-router==" + routerVersion})
	}
	for _, argv := range steps {
		if out, err := f.run(ctx, argv...); err != nil {
			return errors.Join(fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, tail(out)), os.RemoveAll(dir))
		}
	}
	return nil
}

// find looks for router and NIXL; what is missing is installed unless the
// stand-in is wanted and NIXL is there.
func (f *finder) find(ctx context.Context, kind string) (parts, error) {
	var p parts
	look := func() {
		for _, env := range f.environments() {
			if p.router == "" && kind != routerStandIn {
				p.router = f.routerIn(ctx, env)
			}
			if p.nixl == "" {
				f.findNIXL(&p, env)
			}
		}
	}
	f.findNIXL(&p, "")
	look()
	if p.nixl == "" || p.router == "" && kind != routerStandIn {
		err := f.make(ctx, kind)
		look()
		switch {
		case p.router != "" || kind == routerStandIn:
		case kind == routerReal:
			return p, fmt.Errorf("vllm-router %s cannot be had: %w", routerVersion, err)
		default:
			fmt.Fprintf(f.out, "no vllm-router here (%v): a stand-in that sends the same requests takes its place\n", err)
		}
	}
	if p.nixl == "" {
		return p, fmt.Errorf("NIXL is missing, without which no KV moves between engines.\n"+
			"Get it with `pip install --no-deps nixl-cu12==%s` and set %s to the environment, or to the folder of libnixl_capi.so;\n"+
			"`lmcache-go doctor nixl` tells where it is looked for", nixlVersion, nixl.EnvLibDir)
	}
	return p, nil
}

// findNIXL looks where the engines will look by themselves, or in an
// environment.
func (f *finder) findNIXL(p *parts, env string) {
	o := nixl.LoadOptions{Path: env}
	for _, c := range nixl.Find(o) {
		if c.Exists && filepath.IsAbs(c.Path) {
			p.nixl, p.nixlDir = c.Path, env
			return
		}
	}
}
