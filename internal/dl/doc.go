// Package dl loads shared libraries at run time: a thin cover over dlopen,
// dlsym and dlclose for packages that bind a library which may be absent.
//
// Libraries are always opened with RTLD_LOCAL, so that their symbols do not
// leak into others that the process loads. Handles are safe for concurrent
// use; closing one twice is an error.
//
// Without cgo, or on another system than Linux, every Open fails with
// [ErrUnsupported]; the package still compiles.
package dl

import "errors"

// ErrUnsupported is returned by every function of a build that cannot load
// libraries: built with CGO_ENABLED=0, or for a system other than Linux.
var ErrUnsupported = errors.New("this build cannot load shared libraries (it needs cgo and Linux)")

// Error is a refusal of the loader. Text is the loader's own, which names the
// library that was missing when it was a dependency and not the one asked for.
type Error struct {
	Op   string // "open", "symbol" or "close"
	Name string // library or symbol asked for
	Text string // what the loader said
}

// Error returns the loader's text, with the name in front where the loader
// left it out.
func (e *Error) Error() string {
	return e.Op + " " + e.Name + ": " + e.Text
}

// Flags choose how [Open] opens a library.
type Flags int

const (
	// Lazy resolves functions when they are first called. Without it a library
	// with a missing symbol fails at once, which is nearly always better.
	Lazy Flags = 1 << iota
	// NoLoad only finds a library that the process holds already.
	NoLoad
)
