//go:build linux && cgo

package cudatest

import (
	"os"
	"testing"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/fakecuda"
)

// Driver is the real driver or, without [Env], the fake, which ends with the
// test.
func Driver(t testing.TB) *cuda.Driver {
	t.Helper()
	if GPU() {
		return realDriver(t)
	}
	d, _ := Fake(t, fakecuda.Options{})
	return d
}

// Fake is a driver on a fake of its own, which ends with the test and must have
// no live object then but what streams hold that wait for ever.
func Fake(t testing.TB, o fakecuda.Options) (*cuda.Driver, *fakecuda.Fake) {
	t.Helper()
	if GPU() {
		t.Skip("this test is for the fake driver; unset " + Env)
	}
	f := fakecuda.New(o)
	t.Cleanup(f.Close)
	d, err := cuda.Load(cuda.LoadOptions{Symbol: f.Symbol})
	if err != nil {
		t.Fatal(err)
	}
	return d, f
}

// Clean checks that nothing is left of a fake.
func Clean(t testing.TB, f *fakecuda.Fake) {
	t.Helper()
	if live := f.Live(); live != (fakecuda.Live{}) {
		t.Errorf("left behind: %+v", live)
	}
}

// load is the exporter's driver. The fake of a child process ends with it.
func load() (*cuda.Driver, error) {
	if os.Getenv(Env) == "1" {
		return cuda.Load(cuda.LoadOptions{})
	}
	return cuda.Load(cuda.LoadOptions{Symbol: fakecuda.New(fakecuda.Options{}).Symbol})
}
