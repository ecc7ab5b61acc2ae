//go:build linux && cgo

package dl_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/dl"
)

func openLibc(t *testing.T) *dl.Library {
	t.Helper()
	for _, name := range []string{"libc.so.6", "libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1"} {
		if lib, err := dl.Open(name, 0); err == nil {
			return lib
		}
	}
	t.Skip("no C library under a known name")
	return nil
}

func TestOpenSymbolCall(t *testing.T) {
	lib := openLibc(t)
	if path := lib.Path(); !strings.HasPrefix(path, "/") {
		t.Errorf("Path() = %q, want an absolute path", path)
	}
	getpid, err := lib.Symbol("getpid")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := dl.Call(getpid); err != nil || int(got) != os.Getpid() {
		t.Errorf("Call(getpid) = %d, %v, want %d", got, err, os.Getpid())
	}
	labs, err := lib.Symbol("labs")
	if err != nil {
		t.Fatal(err)
	}
	minus := -5
	if got, err := dl.Call(labs, uintptr(minus)); err != nil || got != 5 {
		t.Errorf("Call(labs, -5) = %d, %v, want 5", got, err)
	}
	if path, ok := dl.Owner(getpid); !ok || path == "" {
		t.Errorf("Owner(getpid) = %q, %v, want the C library", path, ok)
	}
	if err := lib.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := lib.Close(); err == nil {
		t.Error("second Close: no error")
	}
}

func TestCallRefusesTooManyArguments(t *testing.T) {
	lib := openLibc(t)
	getpid, err := lib.Symbol("getpid")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dl.Call(getpid, make([]uintptr, dl.MaxArgs+1)...); err == nil {
		t.Error("nine arguments: no error")
	}
}

func TestErrorsNameWhatWasAskedFor(t *testing.T) {
	f := func(name string, flags dl.Flags, want string) {
		t.Helper()
		_, err := dl.Open(name, flags)
		var loader *dl.Error
		if !errors.As(err, &loader) || loader.Name != name || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q) = %v, want a dl.Error that holds %q", name, err, want)
		}
	}
	f("libno-such-library.so.7", 0, "libno-such-library.so.7")
	f("/nowhere/lib.so", dl.Lazy, "/nowhere/lib.so")
	f("libresolv-not-loaded.so", dl.NoLoad, "libresolv-not-loaded.so")

	_, err := openLibc(t).Symbol("no_such_function")
	var loader *dl.Error
	if !errors.As(err, &loader) || loader.Op != "symbol" || loader.Name != "no_such_function" {
		t.Errorf("Symbol = %v, want a dl.Error about no_such_function", err)
	}
}

func TestSetenvDefault(t *testing.T) {
	lib := openLibc(t)
	getenv, err := lib.Symbol("getenv")
	if err != nil || getenv == nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("LMCACHE_GO_DL_TEST_%d", time.Now().UnixNano()) // -count runs it again in this process
	if !dl.SetenvDefault(name, "one") {
		t.Error("first SetenvDefault: not set")
	}
	if dl.SetenvDefault(name, "two") {
		t.Error("second SetenvDefault: set over a value")
	}
	if value, ok := os.LookupEnv(name); ok {
		t.Errorf("Go sees %q: children would inherit it", value)
	}
}
