package nixl

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/lmcache-go/lmcache-go/internal/dl"
	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// Library is a loaded NIXL. There is one in a process; it is never unloaded,
// since its plugins stay mapped and its threads may run.
type Library struct {
	c      *capi.Lib
	origin Origin
	posts  *gate // of goroutines inside the library's post
}

// Features are the optional abilities of a library.
type Features struct {
	// ExactStatus: failures of transfers carry the C++ library's code, so that
	// ErrRemoteDisconnected and its like are told apart from ErrBackend.
	ExactStatus bool
	// CustomParam: XferOptions.Custom has an effect.
	CustomParam bool
	// Views: memory can be prepared for transfers that a GPU starts.
	Views bool
	// Messages: errors carry the library's own text.
	Messages bool
}

// Attempt is one library that could not be loaded.
type Attempt struct {
	Candidate
	Err error
}

// LoadError is the error of [Load]: every place that was tried. It matches
// [ErrLibraryNotFound] when no library was there, and [ErrSymbolMissing] or
// [ErrIncompatible] when one was and could not be used.
type LoadError struct {
	Attempts []Attempt
	kind     error
}

// Error lists what was looked for where, one line a place.
func (e *LoadError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nixl: load: %v; looked for %s:", e.kind, libNames[0])
	for _, a := range e.Attempts {
		fmt.Fprintf(&b, "\n  %-6s %s: %v", a.Origin, a.Path, a.Err)
	}
	b.WriteString("\nremedy: pip install nixl-cu13 (or nixl-cu12) into the active Python environment, or set " + EnvLibDir)
	return b.String()
}

// Unwrap returns the sentinel and the reasons.
func (e *LoadError) Unwrap() []error {
	all := []error{e.kind}
	for _, a := range e.Attempts {
		all = append(all, a.Err)
	}
	return all
}

var errNoFile = errors.New("no such file")

var loaded struct {
	sync.Mutex
	lib *Library // guarded by the mutex
}

// Load loads NIXL, or returns the one that the process has. Where it is looked
// for is told at [Find]; a place that is named by option or environment is the
// only one tried. The error is a [*LoadError].
//
// The first Load of a process decides: a later one with a Path to another
// library fails with [ErrIncompatible], since two copies of UCX in one process
// disturb each other.
func Load(o LoadOptions) (*Library, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if lib := loaded.lib; lib != nil {
		if o.Path == "" {
			return lib, nil
		}
		for _, c := range Find(o) {
			if c.Exists && sameFile(c.Path, lib.Path()) {
				return lib, nil
			}
		}
		err := fmt.Errorf("this process has loaded %s: %w", lib.Path(), ErrIncompatible)
		return nil, &LoadError{kind: ErrIncompatible, Attempts: []Attempt{{Candidate{Path: o.Path, Origin: OriginOption}, err}}}
	}
	lib, err := load(Find(o), !o.NoDefaults)
	if err != nil {
		return nil, err
	}
	loaded.lib = lib
	return lib, nil
}

// load tries candidates in order.
func load(candidates []Candidate, defaults bool) (*Library, error) {
	failed := &LoadError{kind: ErrLibraryNotFound}
	for _, c := range candidates {
		lib, err := open(c, defaults)
		if err == nil {
			return lib, nil
		}
		failed.Attempts = append(failed.Attempts, Attempt{c, err})
		var missing *capi.MissingError
		switch {
		case errors.As(err, &missing):
			failed.kind = ErrSymbolMissing
		case errors.Is(err, ErrIncompatible) && errors.Is(failed.kind, ErrLibraryNotFound):
			failed.kind = ErrIncompatible
		}
	}
	return nil, failed
}

func open(c Candidate, defaults bool) (*Library, error) {
	if !c.Exists {
		return nil, errNoFile
	}
	lib, err := capi.Open(c.Path)
	var missing *capi.MissingError
	var loader *dl.Error
	switch {
	case errors.As(err, &missing):
		return nil, fmt.Errorf("%w; is it older than NIXL 1.5.1? missing: %s", err, strings.Join(missing.Symbols, " "))
	case errors.As(err, &loader), errors.Is(err, dl.ErrUnsupported):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrIncompatible, err)
	}
	if defaults {
		setDefaults(lib.Path())
	}
	// A blocking post occupies a thread; Go ends a program at 10 000 of them.
	posts := max(4, 2*runtime.GOMAXPROCS(0))
	return &Library{c: lib, origin: c.Origin, posts: newGate(posts)}, nil
}

// setDefaults prepares the C environment; see LoadOptions.NoDefaults. It is
// time enough after the C API is loaded: UCX comes with the first backend.
func setDefaults(path string) {
	dl.SetenvDefault("UCX_LOG_FILE", "stderr")
	dl.SetenvDefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
	if ucp := bundledUCX(path); ucp != "" {
		dl.SetenvDefault("NIXL_UCX_EXPECTED_SONAME", ucp)
	}
}

// bundledUCX returns the distinctive part of the name of the UCX library that
// a wheel brings, "libucp-b39b3ed9", and "" outside a wheel.
func bundledUCX(path string) string {
	site := filepath.Dir(filepath.Dir(path))
	m := wheelDir.FindStringSubmatch(filepath.Base(filepath.Dir(path)))
	if m == nil {
		return ""
	}
	match, _ := filepath.Glob(filepath.Join(site, "nixl_cu"+m[1]+".libs", "libucp-*.so*"))
	if len(match) != 1 {
		return ""
	}
	name, _, _ := strings.Cut(filepath.Base(match[0]), ".so")
	return name
}

var wheelDir = regexp.MustCompile(`^\.nixl_cu(\d+)\.mesonpy\.libs$`)

// Path is the file that the loader mapped.
func (l *Library) Path() string { return l.c.Path() }

// Origin tells how the library was found.
func (l *Library) Origin() Origin { return l.origin }

// Features tells what the library can do beyond the minimum.
func (l *Library) Features() Features {
	return Features{ExactStatus: l.c.ExactStatus, CustomParam: l.c.CustomParam, Views: l.c.Views, Messages: l.c.Major+l.c.Minor+l.c.Patch > 0}
}

// Version is the version of the C API, or of the wheel where the C API has
// none ("1.5.1"), or "" when neither is known.
func (l *Library) Version() string {
	if l.Features().Messages {
		return fmt.Sprintf("C API %d.%d.%d", l.c.Major, l.c.Minor, l.c.Patch)
	}
	return wheelVersion(l.Path())
}

func wheelVersion(path string) string {
	m := wheelDir.FindStringSubmatch(filepath.Base(filepath.Dir(path)))
	if m == nil {
		return ""
	}
	prefix := filepath.Join(filepath.Dir(filepath.Dir(path)), "nixl_cu"+m[1]+"-")
	match, _ := filepath.Glob(prefix + "*.dist-info")
	if len(match) != 1 {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(match[0], prefix), ".dist-info")
}

func sameFile(a, b string) bool {
	ra, errA := filepath.EvalSymlinks(a)
	rb, errB := filepath.EvalSymlinks(b)
	return errA == nil && errB == nil && ra == rb
}
