package nixl

import (
	"unsafe"

	"github.com/lmcache-go/lmcache-go/internal/dl"
)

// driverMajorOf calls cuDriverGetVersion, which answers 1000·major + 10·minor.
// The driver library is left open: closing it under a program that uses CUDA
// gains nothing.
func driverMajorOf(driver *dl.Library) int {
	get, err := driver.Symbol("cuDriverGetVersion")
	if err != nil {
		return 0
	}
	word, err := MapBuffer(1, MapOptions{})
	if err != nil {
		return 0
	}
	defer word.Close() //nolint:errcheck // nothing was registered, it cannot fail
	version := (*int32)(unsafe.Pointer(&word.Bytes()[0]))
	if r, err := dl.Call(get, word.Addr()); err != nil || int32(r) != 0 {
		return 0
	}
	return int(*version) / 1000
}
