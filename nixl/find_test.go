package nixl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree makes files below a temporary folder and returns it.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, f := range files {
		path := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFindOrder(t *testing.T) {
	const wheel13 = "lib/python3.11/site-packages/.nixl_cu13.mesonpy.libs/libnixl_capi.so"
	const wheel12 = "lib/python3.11/site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so"
	venv := tree(t, "bin/python", wheel13, wheel12)
	other := tree(t, "bin/python3", "lib/python3.12/dist-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so")
	bare := tree(t, "bin/python3")
	system := tree(t, "libnixl_capi.so.0")
	direct := tree(t, "libnixl_capi.so")
	asked := 0
	f := func(name string, env map[string]string, o LoadOptions, path string, driver int, want ...string) {
		t.Helper()
		asked = 0
		fd := &finder{
			getenv:      func(k string) string { return env[k] },
			pythonSites: func(string) ([]string, error) { asked++; return nil, errors.New("no such module") },
			lookPath: func(string) (string, error) {
				if path == "" {
					return "", os.ErrNotExist
				}
				return path, nil
			},
			driverMajor: func() int { return driver }, systemFolder: []string{system},
		}
		var got []string
		for _, c := range fd.find(o) {
			if c.Exists && filepath.IsAbs(c.Path) {
				got = append(got, c.Path)
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: found\n%v, want\n%v", name, got, want)
		}
	}
	sys := filepath.Join(system, "libnixl_capi.so.0")
	py := filepath.Join(venv, "bin/python")
	f("nothing but the system", nil, LoadOptions{}, "", 0, sys)
	f("active environment, 13 first", map[string]string{"VIRTUAL_ENV": venv}, LoadOptions{}, "", 0, filepath.Join(venv, wheel13), filepath.Join(venv, wheel12), sys)
	f("driver of 12", map[string]string{"VIRTUAL_ENV": venv}, LoadOptions{}, "", 12, filepath.Join(venv, wheel12), filepath.Join(venv, wheel13), sys)
	f("option beats driver", map[string]string{"VIRTUAL_ENV": venv}, LoadOptions{CUDAMajor: 13}, "", 12, filepath.Join(venv, wheel13), filepath.Join(venv, wheel12), sys)
	f("python on PATH", nil, LoadOptions{}, filepath.Join(other, "bin/python3"), 13, filepath.Join(other, "lib/python3.12/dist-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so"), sys)
	f("python option", map[string]string{"VIRTUAL_ENV": other}, LoadOptions{Python: py}, "", 0, filepath.Join(venv, wheel13), filepath.Join(venv, wheel12), sys)
	if asked != 0 {
		t.Errorf("an interpreter was started although the folders told all")
	}
	f("no python", map[string]string{"VIRTUAL_ENV": venv}, LoadOptions{NoPython: true}, "", 0, sys)
	f("python without NIXL", nil, LoadOptions{}, filepath.Join(bare, "bin/python3"), 0, sys)
	if asked != 1 {
		t.Errorf("the interpreter was asked %d times, want once", asked)
	}
	f("NIXL_LIB_DIR alone", map[string]string{EnvLibDir: direct, "VIRTUAL_ENV": venv}, LoadOptions{}, "", 0, filepath.Join(direct, "libnixl_capi.so"))
	f("option alone", map[string]string{EnvLibDir: direct}, LoadOptions{Path: venv}, "", 0, filepath.Join(venv, wheel13), filepath.Join(venv, wheel12))
	f("site-packages", nil, LoadOptions{Path: filepath.Join(venv, "lib/python3.11/site-packages"), CUDAMajor: 12}, "", 0, filepath.Join(venv, wheel12), filepath.Join(venv, wheel13))
	f("a file", nil, LoadOptions{Path: filepath.Join(direct, "libnixl_capi.so")}, "", 0, filepath.Join(direct, "libnixl_capi.so"))
	f("a folder without", map[string]string{EnvLibDir: bare, "VIRTUAL_ENV": venv}, LoadOptions{}, "", 0)
}

func TestLoadErrorListsEveryPlace(t *testing.T) {
	root := tree(t, "libnixl_capi.so") // an empty file is no library
	_, err := load(place(root, OriginEnv, EnvLibDir, []string{"13"}), false)
	var e *LoadError
	if !errors.Is(err, ErrLibraryNotFound) || !errors.As(err, &e) || len(e.Attempts) != 1 {
		t.Fatalf("load = %v, want ErrLibraryNotFound with one attempt", err)
	}
	for _, part := range []string{filepath.Join(root, "libnixl_capi.so"), "env", "file too short", "pip install nixl-cu13", EnvLibDir} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in the error:\n%v", part, err)
		}
	}
	nowhere := filepath.Join(root, "none")
	if _, err := load(place(nowhere, OriginOption, "", []string{"13"}), false); !errors.Is(err, ErrLibraryNotFound) || !strings.Contains(err.Error(), nowhere) {
		t.Errorf("load of a missing path = %v", err)
	}
}

func TestWheelNames(t *testing.T) {
	root := tree(t, ".nixl_cu13.mesonpy.libs/libnixl_capi.so", "nixl_cu13.libs/libucp-b39b3ed9.so.0.0.0", "nixl_cu13-1.5.1.dist-info/METADATA")
	lib := filepath.Join(root, ".nixl_cu13.mesonpy.libs/libnixl_capi.so")
	if got := bundledUCX(lib); got != "libucp-b39b3ed9" {
		t.Errorf("bundledUCX = %q", got)
	}
	if got := wheelVersion(lib); got != "1.5.1" {
		t.Errorf("wheelVersion = %q", got)
	}
	if got := bundledUCX("/usr/lib/libnixl_capi.so"); got != "" {
		t.Errorf("bundledUCX outside a wheel = %q", got)
	}
}
