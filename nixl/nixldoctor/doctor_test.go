package nixldoctor

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmcache-go/lmcache-go/nixl"
)

func TestMain(m *testing.M) {
	self = func(ctx context.Context, args ...string) *exec.Cmd {
		exe, err := os.Executable()
		if err != nil {
			panic(err)
		}
		return exec.CommandContext(ctx, exe, append([]string{"doctor-child"}, args...)...)
	}
	// This binary is the program that the doctor starts again.
	if len(os.Args) > 1 && os.Args[1] == "doctor-child" {
		os.Exit(Main(os.Args[2:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// needNIXL returns flags under which the doctor finds the library.
func needNIXL(t *testing.T) []string {
	t.Helper()
	python := os.Getenv("LMCACHE_GO_PYTHON")
	for _, c := range nixl.Find(nixl.LoadOptions{Python: python}) {
		if c.Exists && filepath.IsAbs(c.Path) {
			return []string{"--lib", c.Path}
		}
	}
	t.Skip("no NIXL library: set LMCACHE_GO_PYTHON or NIXL_LIB_DIR")
	return nil
}

func TestDoctor(t *testing.T) {
	args := needNIXL(t)
	var out, errw bytes.Buffer
	if code := Main(append(args, "--json"), &out, &errw); code != 0 {
		t.Fatalf("exit %d\n%s\n%s", code, &out, &errw)
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	l := r.Library
	if l == nil || l.Path == "" || len(l.UCX) == 0 || len(l.Modules) == 0 {
		t.Fatalf("library: %+v", l)
	}
	byName := map[string]Plugin{}
	for _, p := range l.Plugins {
		byName[p.Name] = p
	}
	if p := byName["UCX"]; p.Err != "" || strings.Join(p.Mems, " ") != "DRAM VRAM" {
		t.Errorf("UCX: %+v", p)
	}
	for _, p := range l.Plugins {
		if p.Err != "" && len(p.Missing) == 0 && p.Name != "GUSLI" && p.Name != "AZURE_BLOB" {
			t.Errorf("%s cannot be loaded, and it is not said why: %s", p.Name, p.Err)
		}
	}
	if len(r.Pairs) == 0 || r.Pairs[0].Err != "" || r.Pairs[0].WriteGBps <= 0 || r.Pairs[0].ReadGBps <= 0 || len(r.Pairs[0].Lanes) != 2 {
		t.Errorf("host to host: %+v", r.Pairs)
	}

	out.Reset()
	if code := Main(append(args, "--no-probe"), &out, &errw); code != 0 {
		t.Fatalf("exit %d\n%s\n%s", code, &out, &errw)
	}
	for _, want := range []string{"Library", l.Path, "Plugins", "UCX modules", "RLIMIT_MEMLOCK", "NIXL works here."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the report:\n%s", want, &out)
		}
	}
}

// With UCX_TLS=tcp host memory is emulated, and the doctor says so.
func TestDoctorWarnsOfEmulation(t *testing.T) {
	args := needNIXL(t)
	t.Setenv("UCX_TLS", "tcp")
	var out, errw bytes.Buffer
	if code := Main(args, &out, &errw); code != 0 {
		t.Fatalf("exit %d\n%s\n%s", code, &out, &errw)
	}
	for _, want := range []string{"UCX_TLS=tcp", "via ", "tcp/lo", "WARNING: host ↔ host: READ goes over", "an emulation"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the report:\n%s", want, &out)
		}
	}
}

func TestDoctorWithoutLibrary(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "none")
	var out, errw bytes.Buffer
	if code := Main([]string{"--lib", nowhere}, &out, &errw); code != 1 {
		t.Errorf("exit %d, want 1", code)
	}
	for _, want := range []string{nowhere, "absent", "PROBLEM: no NIXL library", nixl.EnvLibDir} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the report:\n%s", want, &out)
		}
	}
	// A file that is no library: the loader's own words are there.
	bad := filepath.Join(t.TempDir(), "libnixl_capi.so")
	if err := os.WriteFile(bad, []byte("not a library, and long enough to be read as one would be: a hundred bytes and more of text, at least"), 0o600); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if code := Main([]string{"--lib", bad}, &out, &errw); code != 1 || !strings.Contains(out.String(), "invalid ELF header") {
		t.Errorf("exit %d, report:\n%s", code, &out)
	}
}

func TestCommandLine(t *testing.T) {
	var out, errw bytes.Buffer
	f := func(want int, args ...string) {
		t.Helper()
		if code := Main(args, &out, &errw); code != want {
			t.Errorf("%v: exit %d, want %d", args, code, want)
		}
	}
	f(0, "--help")
	f(2, "--no-such-flag")
	f(2, "word")
}

func TestMissing(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &resolver{known: map[string]bool{}, system: func(name string) bool { return !strings.HasPrefix(name, "libc.so") }}
	lacks, err := r.missing(exe)
	if err != nil || len(lacks) != 1 || lacks[0].Name != "libc.so.6" || lacks[0].For != filepath.Base(exe) {
		t.Errorf("missing = %+v, %v; want libc.so.6", lacks, err)
	}
	if _, err := r.missing(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there: no error")
	}
}
