package nixl_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The example programs check themselves.
func TestExamples(t *testing.T) {
	lib := needLib(t)
	for name, want := range map[string]string{
		"twoprocesses": "the peer agrees",
		"files":        "wrote and read back 4194304 bytes",
		"restart":      "the peer is gone: true\nits next start is reached",
	} {
		t.Run(name, func(t *testing.T) {
			exe := filepath.Join(t.TempDir(), name)
			if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "./examples/"+name).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			cmd := exec.CommandContext(t.Context(), exe)
			cmd.Env = append(os.Environ(), "NIXL_LIB_DIR="+lib.Path())
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// A program starts without NIXL, and says where it looked.
func TestWithoutLibrary(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "files")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "./examples/files").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	nowhere := filepath.Join(t.TempDir(), "none")
	cmd := exec.CommandContext(t.Context(), exe, filepath.Join(t.TempDir(), "kv"))
	cmd.Env = append(os.Environ(), "NIXL_LIB_DIR="+nowhere)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no NIXL library found") || !strings.Contains(string(out), nowhere) {
		t.Errorf("%v\n%s", err, out)
	}
}
