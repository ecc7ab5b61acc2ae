package repotest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A module that vendors ours builds with `go build` alone: no make, no
// generated file, nothing outside the folders of the Go packages.
func TestVendoredByAnotherModule(t *testing.T) {
	list := packages(t)
	pure, all := make([]string, 0, 4), make([]string, 0, len(list))
	for _, p := range list {
		path, _ := rel(p.ImportPath)
		switch {
		case p.Name == "main", strings.Contains("/"+path+"/", "/internal/"), len(p.GoFiles)+len(p.CgoFiles) == 0,
			path == "conformance", strings.HasPrefix(path, "bench"):
			continue
		}
		all = append(all, p.ImportPath)
		switch path {
		case "l1cache", "mpserver/wire", "mpserver/hash", "mpserver/torchpickle":
			pure = append(pure, p.ImportPath)
		}
	}
	if len(pure) != 4 || len(all) <= len(pure) {
		t.Fatalf("importable packages not found: %v without cgo, of %v", pure, all)
	}
	t.Run("pure", func(t *testing.T) { buildScratch(t, pure, "CGO_ENABLED=0") })
	t.Run("all", func(t *testing.T) { buildScratch(t, all, "CGO_ENABLED=1") })
}

// buildScratch makes a module that imports paths, vendors and builds it,
// without a network: all it needs is in the module cache, since we built too.
func buildScratch(t *testing.T, paths []string, cgo string) {
	t.Helper()
	top, dir := root(t), t.TempDir()

	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(top, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	// Our requirements as they stand, so that no version has to be looked up.
	scratch := strings.Replace(string(mod), "module "+module, "module example.com/scratch", 1)
	scratch += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %q\n", module, module, top)

	program := &strings.Builder{}
	program.WriteString("package main\n\nimport (\n")
	for _, path := range paths {
		fmt.Fprintf(program, "\t_ %q\n", path)
	}
	program.WriteString(")\n\nfunc main() {}\n")

	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", scratch)
	write("go.sum", string(sum))
	write("main.go", program.String())

	offline := []string{cgo, "GOWORK=off", "GOPROXY=off", "GOSUMDB=off"}
	command(t, dir, append(offline, "GOFLAGS=-mod=mod"), "go", "mod", "vendor")
	// The vendored copy alone must do.
	if vendored := filepath.Join(dir, "vendor", module); !isDir(vendored) {
		t.Fatalf("%s is not there", vendored)
	}
	command(t, dir, append(offline, "GOFLAGS=-mod=vendor -trimpath"), "go", "build", "-o", "scratch", ".")
	command(t, dir, nil, filepath.Join(dir, "scratch"))
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
