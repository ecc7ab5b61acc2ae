//go:build !linux || !cgo

package cudatest

import (
	"testing"

	"github.com/lmcache-go/lmcache-go/cuda"
)

// Driver is the real driver; this build has no fake.
func Driver(t testing.TB) *cuda.Driver {
	t.Helper()
	return realDriver(t)
}

func load() (*cuda.Driver, error) { return cuda.Load(cuda.LoadOptions{}) }
