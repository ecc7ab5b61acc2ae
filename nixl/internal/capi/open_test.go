//go:build linux && cgo

package capi

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/internal/dl"
)

// buildFake compiles testdata/fake.c; hide lists symbols that it must not have.
func buildFake(t *testing.T, hide []string, flags ...string) string {
	t.Helper()
	return compile(t, "testdata/fake.c", hide, flags...)
}

// compile makes a shared library of a C file.
func compile(t *testing.T, source string, hide []string, flags ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler cc to build the fake library with")
	}
	dir := t.TempDir()
	lib, script := filepath.Join(dir, "libfake.so"), filepath.Join(dir, "map")
	text := "{ local: nothing_else;\n"
	for _, s := range hide {
		text += s + ";\n"
	}
	if err := os.WriteFile(script, []byte(text+"};\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-shared", "-fPIC", "-O1", "-o", lib, source, "-Wl,--version-script=" + script}, flags...)
	if out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return lib
}

// unversioned are the symbols that NIXL 1.5.1 does not have.
var unversioned = []string{"nixl_capi_get_version", "nixl_capi_last_error_message", "nixl_capi_mem_free"}

func TestOpenVersions(t *testing.T) {
	l, err := Open(buildFake(t, unversioned))
	if err != nil {
		t.Fatal(err)
	}
	if l.Major+l.Minor+l.Patch != 0 || l.ExactStatus || !l.CustomParam || !l.Views {
		t.Errorf("without a version: %+v", l)
	}
	l, err = Open(buildFake(t, nil, "-DVERSION=0,1,7"))
	if err != nil || l.Major != 0 || l.Minor != 1 || l.Patch != 7 {
		t.Errorf("version 0.1.7: %+v, %v", l, err)
	}
	_, err = Open(buildFake(t, nil, "-DVERSION=0,2,0"))
	var version *VersionError
	if !errors.As(err, &version) || version.Minor != 2 || !strings.Contains(err.Error(), "0.2.0") {
		t.Errorf("version 0.2: %v, want a VersionError", err)
	}
	if _, err = Open(buildFake(t, nil, "-DVERSION=1,0,0")); !errors.As(err, &version) {
		t.Errorf("version 1.0: %v, want a VersionError", err)
	}
	if _, err = Open(buildFake(t, unversioned, "-DSTUB")); err == nil || !strings.Contains(err.Error(), "stub") {
		t.Errorf("stub: %v", err)
	}
}

func TestOpenMissing(t *testing.T) {
	f := func(want, hide []string, flags ...string) {
		t.Helper()
		_, err := Open(buildFake(t, hide, flags...))
		var missing *MissingError
		if !errors.As(err, &missing) || !slices.Equal(missing.Symbols, want) {
			t.Errorf("without %v: %v, want a MissingError about %v", hide, err, want)
		}
	}
	two := []string{"nixl_capi_post_xfer_req", "nixl_capi_get_notifs"}
	f(two, append(slices.Clone(unversioned), two...))
	// What came with the version function must be there when that is.
	f([]string{"nixl_capi_mem_free"}, []string{"nixl_capi_mem_free"}, "-DVERSION=0,1,0")
	// Optional functions only switch features off.
	l, err := Open(buildFake(t, append(slices.Clone(unversioned), "nixl_capi_opt_args_set_custom_param", "nixl_capi_release_mem_view")))
	if err != nil || l.CustomParam || l.Views {
		t.Errorf("without optional functions: %+v, %v", l, err)
	}
}

// Both layouts of the agent configuration, as the library reads them.
func TestAgentConfigLayouts(t *testing.T) {
	f := func(portAt, portLen, syncAt int, hide []string, flags ...string) {
		t.Helper()
		path := buildFake(t, hide, flags...)
		l, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		c := AgentConfig{Progress: true, Listen: true, Telemetry: true, Sync: 2, Port: 0xABCD, ProgressDelay: 0x1122, ListenDelay: 0x3344}
		if _, cerr := l.CreateAgent("x", c); cerr != nil {
			t.Fatal(cerr)
		}
		handle, err := dl.Open(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		address, err := handle.Symbol("fake_config")
		if err != nil {
			t.Fatal(err)
		}
		got := unsafe.Slice((*byte)(address), 40)
		le := binary.LittleEndian
		port := uint64(le.Uint16(got[portAt:]))
		if portLen == 4 {
			port = uint64(le.Uint32(got[portAt:]))
		}
		if got[0] != 1 || got[1] != 1 || port != 0xABCD || le.Uint32(got[syncAt:]) != 2 || le.Uint64(got[16:]) != 0x1122 || le.Uint64(got[24:]) != 0x3344 || got[32] != 1 {
			t.Errorf("configuration % x", got)
		}
	}
	f(4, 4, 8, unversioned)
	f(2, 2, 4, nil, "-DVERSION=0,1,0")
}

// Status codes of C API 0.1 become those of 1.5.1 with the C++ code beside.
func TestNewerStatuses(t *testing.T) {
	f := func(code string, status, native int32, text string, hide []string, flags ...string) {
		t.Helper()
		l, err := Open(buildFake(t, hide, append(flags, "-DFAIL="+code)...))
		if err != nil {
			t.Fatal(err)
		}
		_, cerr := l.CreateAgent("x", AgentConfig{})
		if cerr == nil || cerr.Status != status || cerr.Native != native || cerr.Text != text {
			t.Errorf("code %s: %+v, want status %d, native %d, %q", code, cerr, status, native, text)
		}
	}
	newer := "-DVERSION=0,1,0"
	f("-13", Backend, -10, "the fake says no", nil, newer) // REMOTE_DISCONNECT
	f("-7", Backend, -1, "the fake says no", nil, newer)   // NOT_POSTED
	f("-14", Backend, -11, "the fake says no", nil, newer) // CANCELED
	f("-6", NotFound, 0, "the fake says no", nil, newer)
	f("-6", NotFound, 0, "", unversioned)
	f("-7", -7, 0, "", unversioned) // unknown to 1.5.1: as it is
}

// Calls on GPU memory bring a context along when the thread has none, and leave
// the thread as it was.
func TestCUDAContext(t *testing.T) {
	l, err := Open(buildFake(t, unversioned))
	if err != nil {
		t.Fatal(err)
	}
	path := compile(t, "testdata/fakecuda.c", nil)
	if err := l.bindCUDA(path); err != nil {
		t.Fatal(err)
	}
	driver, err := dl.Open(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	variable := func(name string) unsafe.Pointer {
		t.Helper()
		p, err := driver.Symbol(name)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	want := func(what string, counts map[string]int32) {
		t.Helper()
		for name, n := range counts {
			if got := *(*int32)(variable(name)); got != n {
				t.Errorf("%s: %s = %d, want %d", what, name, got, n)
			}
		}
	}
	want("bound", map[string]int32{"fake_init": 1, "fake_retained": 0})
	for range 2 {
		if err := l.EnableCUDA(3); err != nil {
			t.Fatal(err)
		}
	}
	want("enabled twice", map[string]int32{"fake_retained": 1, "fake_device": 103})
	var cuda *CUDAError
	if err := l.EnableCUDA(9); !errors.As(err, &cuda) || cuda.Result != 101 {
		t.Errorf("a device that is not there: %v", err)
	}
	hot := l.Hot(1)
	hot.Post(1, -1)
	want("host memory", map[string]int32{"fake_pushed": 0})
	hot.Post(1, 3)
	want("a thread without a context", map[string]int32{"fake_pushed": 1, "fake_popped": 1})
	hot.Post(1, 4)
	want("a device that is not ready", map[string]int32{"fake_pushed": 1})
	*(*uintptr)(variable("fake_current")) = 7
	hot.Post(1, 3)
	if cerr := l.Register(1, 1, 1, []Desc{{Addr: 1, Len: 1, Dev: 3}}, nil); cerr != nil {
		t.Error(cerr)
	}
	want("a thread with a context", map[string]int32{"fake_pushed": 1, "fake_popped": 1})
	*(*uintptr)(variable("fake_current")) = 0
	if cerr := l.Register(1, 1, 1, []Desc{{Addr: 1, Len: 1, Dev: 3}}, nil); cerr != nil {
		t.Error(cerr)
	}
	want("registering", map[string]int32{"fake_pushed": 2, "fake_popped": 2})
	if err := l.bindCUDA(buildFake(t, unversioned)); err == nil {
		t.Error("a library that is no driver: no error")
	}
}
