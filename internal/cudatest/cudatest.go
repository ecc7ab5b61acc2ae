// Package cudatest lets one test run against the fake driver and against a real
// GPU: [Driver] gives one or the other, and an [Exporter] is a second process
// that owns device memory and events, as an engine does.
//
// LMCACHE_GO_GPU_TEST=1 asks for the real driver. The TestMain of a package
// that starts exporters calls [Main].
package cudatest

import (
	"os"
	"testing"

	"github.com/lmcache-go/lmcache-go/cuda"
)

// Env asks for the real driver.
const Env = "LMCACHE_GO_GPU_TEST"

// childEnv makes the test binary an exporter.
const childEnv = "LMCACHE_GO_CUDA_EXPORTER"

// GPU says whether tests run on a real one.
func GPU() bool { return os.Getenv(Env) == "1" }

// NeedGPU skips a test that has to measure or ask real hardware.
func NeedGPU(t testing.TB) {
	t.Helper()
	if !GPU() {
		t.Skip("needs an NVIDIA GPU: set " + Env + "=1 on a machine that has one")
	}
}

// Main runs the tests, or the exporter if this process was started as one.
func Main(m *testing.M, run func(m *testing.M)) {
	if os.Getenv(childEnv) != "" {
		os.Exit(export(os.Stdin, os.Stdout)) //nolint:forbidigo // this is a main
	}
	run(m)
}

// realDriver is what it says; without a GPU the test is skipped.
func realDriver(t testing.TB) *cuda.Driver {
	t.Helper()
	NeedGPU(t)
	d, err := cuda.Load(cuda.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}
