package vllm

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// buildDir holds the binary that the tests built; removed by TestMain.
var buildDir string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if buildDir != "" {
			_ = os.RemoveAll(buildDir)
		}
		os.Exit(code)
	}))
}

// python returns the interpreter with vLLM, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("LMCACHE_GO_VLLM_PYTHON")
	if path == "" {
		t.Skip(`needs vLLM: LMCACHE_GO_VLLM_PYTHON="$(conformance/vllm/env.sh)/bin/python", or scripts/test.sh vllm`)
	}
	return path
}

// referenceProgram returns the real server, or skips the test.
func referenceProgram(t *testing.T) string {
	t.Helper()
	path := os.Getenv("LMCACHE_GO_PYTHON")
	if path == "" {
		t.Skip(`needs the real server: LMCACHE_GO_PYTHON="$(conformance/refenv.sh)/bin/python", or scripts/test.sh vllm`)
	}
	return filepath.Join(filepath.Dir(path), "lmcache")
}

// serverBinary returns the lmcache-go binary, which it builds at its first call
// unless LMCACHE_GO_BIN names one.
func serverBinary(t *testing.T) string {
	t.Helper()
	path, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildOnce = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("LMCACHE_GO_BIN"); path != "" {
		return filepath.Abs(path)
	}
	dir, err := os.MkdirTemp("", "lmcache-go-vllm-")
	if err != nil {
		return "", err
	}
	buildDir = dir
	path := filepath.Join(dir, "lmcache-go")
	args := []string{"build", "-o", path}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(context.Background(), "go", append(args, "../../cmd/lmcache-go")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New("go build cmd/lmcache-go: " + string(out))
	}
	return path, nil
})
