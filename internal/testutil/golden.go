package testutil

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files (make golden); look at the diff")

// Golden compares got with the file testdata/name of the package under test.
// With -update it writes the file instead.
func Golden(t testing.TB, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", filepath.FromSlash(name))
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: make golden writes it", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (make golden rewrites it)\ngot:\n%s\nwant:\n%s", path, clip(got), clip(want))
	}
}

// clip keeps a failure message readable.
func clip(b []byte) []byte {
	const limit = 4096
	if len(b) <= limit {
		return b
	}
	return append(b[:limit:limit], "..."...)
}
