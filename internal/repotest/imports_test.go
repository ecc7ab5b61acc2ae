package repotest

import (
	"slices"
	"strings"
	"testing"
)

// edges says what each package may import of this module. "internal" stands
// for every package below internal/ but simengine. A package without a row, or
// an import that its row does not name, fails the test: decide where it
// belongs (ARCHITECTURE.md, "Packages"), then write it down here.
//
// The direction: cmd → mpserver → the leaves → internal, and connector beside
// mpserver. The leaves know nothing of each other.
var edges = map[string][]string{
	"cmd/lmcache-go": {"mpserver", "l1cache", "connector", "cuda", "nixl", "internal", "internal/simengine"}, // lmcache-go engine

	"mpserver": {
		"l1cache", "mpserver/wire", "mpserver/hash", "mpserver/torchpickle", "mpserver/httpapi", "mpserver/metrics",
		"cuda", "nixl", "csrc", "internal",
	},

	"l1cache":              {"internal"},
	"mpserver/wire":        {"internal"},
	"mpserver/hash":        {"internal"},
	"mpserver/torchpickle": {"internal"},
	"mpserver/httpapi":     {"internal"},
	"mpserver/metrics":     {"internal"},
	"csrc":                 {"internal"},
	"cuda":                 {"csrc", "internal"},
	"nixl":                 {"internal"},

	"connector":                {"mpserver/wire", "mpserver/hash", "mpserver/torchpickle", "cuda", "internal"},
	"connector/pd":             {"connector", "nixl", "cuda", "internal"},
	"connector/multi":          {"connector"},
	"connector/multi/nixlpull": {"connector", "connector/multi", "connector/pd"},

	"bench":       {"connector", "mpserver", "mpserver/wire", "mpserver/hash", "mpserver/torchpickle", "l1cache", "internal"},
	"conformance": {"connector", "connector/pd", "nixl", "mpserver", "mpserver/wire", "mpserver/hash", "l1cache", "internal"},
	"gputest":     {"connector", "mpserver/wire", "internal"},
}

// internalEdges are the exceptions to "internal packages import only internal packages".
var internalEdges = map[string][]string{
	"internal/cudatest":  {"cuda", "internal"},
	"internal/device":    {"cuda", "csrc", "internal"},
	"internal/demo":      {"nixl", "internal", "internal/simengine"},
	"internal/simengine": {"connector", "connector/pd", "connector/multi", "connector/multi/nixlpull", "nixl", "mpserver/wire", "internal"},
}

// testEdges may be imported by test files beyond the row of their package.
var testEdges = map[string][]string{
	"connector":     {"mpserver", "l1cache"},
	"connector/pd":  {"mpserver"},
	"internal/demo": {"connector"},
	// The simulated engine is tested with a server in its process.
	"internal/simengine": {"mpserver"},
}

// externals says which packages may import which other modules; test files
// may import those in testExternals besides. A module without a row fails.
var externals = map[string][]string{
	"github.com/NVIDIA/go-nvml":          {"cuda"},
	"github.com/VictoriaMetrics/metrics": {"mpserver", "mpserver/metrics"},
	"github.com/hashicorp/golang-lru/v2": {"mpserver", "mpserver/hash"},
	"github.com/pebbe/zmq4":              {"bench", "conformance"}, // the real libzmq, as a peer
	"github.com/spf13/pflag":             {"cmd/lmcache-go"},
	"github.com/zeebo/blake3":            {"mpserver/hash"},
	"golang.org/x/sys":                   {"l1cache", "mpserver", "connector", "cuda", "nixl", "internal", "cmd/lmcache-go"},
}

var testExternals = []string{"github.com/stretchr/testify", "go.uber.org/goleak", "golang.org/x/sys", "github.com/pebbe/zmq4"}

// cgo lists who may say import "C", the packages below them included.
var cgo = []string{"cuda", "nixl", "internal/dl", "internal/fakecuda"}

// families are packages whose subpackages share their row and may import each other.
var families = []string{"bench", "conformance", "cuda", "nixl"}

// family is the top of a package that has one: "nixl" for "nixl/internal/capi".
func family(path string) (string, bool) {
	top, _, _ := strings.Cut(path, "/")
	return top, slices.Contains(families, top)
}

// under tells whether the package at path is named by one of rows.
func under(path string, rows []string) bool {
	top, isFamily := family(path)
	return slices.ContainsFunc(rows, func(row string) bool {
		if row == "internal" {
			return strings.HasPrefix(path, "internal/") && path != "internal/simengine"
		}
		return path == row || isFamily && row == top
	})
}

// allowed is the row of a package; ok is false when it has none.
func allowed(path string) (row []string, ok bool) {
	if strings.HasPrefix(path, "internal/") {
		if row, ok = internalEdges[path]; ok {
			return row, true
		}
		return []string{"internal"}, true
	}
	if top, ok := family(path); ok {
		return append(slices.Clone(edges[top]), top), true
	}
	row, ok = edges[path]
	return row, ok
}

// violations lists what is wrong with the imports of one package.
func violations(p pkg) []string {
	path, _ := rel(p.ImportPath)
	row, ok := allowed(path)
	if !ok {
		return []string{path + " has no row in edges"}
	}
	var bad []string
	check := func(imports, row []string, test bool) {
		for _, imported := range imports {
			if imported == "C" {
				if !moduleIn(path, cgo) {
					bad = append(bad, path+` imports "C"`)
				}
				continue
			}
			if inside, ok := rel(imported); ok {
				if inside != path && !under(inside, row) {
					bad = append(bad, path+" imports "+inside)
				}
				continue
			}
			if !strings.Contains(strings.SplitN(imported, "/", 2)[0], ".") {
				continue // the standard library
			}
			if test && moduleIn(imported, testExternals) {
				continue
			}
			if !externalAllowed(path, imported) {
				bad = append(bad, path+" imports "+imported)
			}
		}
	}
	check(p.Imports, row, false)
	testRow := append(slices.Clone(row), testEdges[path]...)
	check(p.TestImports, testRow, true)
	check(p.XTestImports, testRow, true)
	return bad
}

func moduleIn(imported string, modules []string) bool {
	return slices.ContainsFunc(modules, func(m string) bool {
		return imported == m || strings.HasPrefix(imported, m+"/")
	})
}

func externalAllowed(path, imported string) bool {
	for m, row := range externals {
		if moduleIn(imported, []string{m}) && under(path, row) {
			return true
		}
	}
	return false
}

func TestImportDirections(t *testing.T) {
	all := packages(t)
	if len(all) < 10 {
		t.Fatalf("go list found %d packages: too few to be the whole module", len(all))
	}
	for _, p := range all {
		for _, v := range violations(p) {
			t.Error(v)
		}
	}
}

// The rules catch what they are there for.
func TestImportRulesBite(t *testing.T) {
	f := func(path, imported string, want bool) {
		t.Helper()
		got := violations(pkg{ImportPath: module + "/" + path, Imports: []string{imported}})
		if (len(got) > 0) != want {
			t.Errorf("%s importing %s: got %v, want a violation: %v", path, imported, got, want)
		}
	}
	f("mpserver", module+"/l1cache", false)
	f("mpserver", module+"/internal/torchdtype", false)
	f("mpserver", "github.com/pebbe/zmq4", true)
	f("mpserver", "C", true)
	f("cuda", "C", false)
	f("l1cache", module+"/mpserver", true)
	f("l1cache", module+"/mpserver/wire", true)
	f("l1cache", "C", true)
	f("l1cache", "github.com/pebbe/zmq4", true)
	f("mpserver/wire", "example.com/codec", true)
	f("mpserver/wire", "encoding/binary", false)
	f("mpserver", module+"/internal/simengine", true)
	f("internal/testutil", module+"/mpserver", true)
	f("internal/simengine", module+"/connector", false)
	f("somewhere/new", "fmt", true)
	f("bench/load", module+"/connector", false)
	f("nixl", module+"/nixl/internal/capi", false)
	f("nixl/internal/capi", "C", false)
	f("l1cache", module+"/nixl", true)
}
