package nixldoctor

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lmcache-go/lmcache-go/internal/dl"
)

// Missing is a library that another needs and the loader would not find.
type Missing struct {
	Name string `json:"name"`
	// For is the file that needs it.
	For string `json:"for"`
}

// resolver walks the needs of libraries as the loader does, without loading
// them: through the folders that a file names itself, then the system's.
type resolver struct {
	// system tells whether the loader finds a name by itself.
	system func(name string) bool
	known  map[string]bool
}

func newResolver() *resolver {
	return &resolver{known: map[string]bool{}, system: func(name string) bool {
		// Only names that nothing else explains come here: drivers, CUDA, the
		// C library. Loading is the one sure answer.
		lib, err := dl.Open(name, dl.Lazy)
		if err != nil {
			return false
		}
		_ = lib.Close() // a library that will not close stays
		return true
	}}
}

// missing lists what the loader would not find for a file.
func (r *resolver) missing(path string) ([]Missing, error) {
	seen := map[string]bool{}
	var lacks []Missing
	var walk func(path string, inherited []string) error
	walk = func(path string, inherited []string) error {
		if seen[path] {
			return nil
		}
		seen[path] = true
		needs, dirs, err := needsOf(path)
		if err != nil {
			return err
		}
		dirs = append(dirs, inherited...)
		for _, name := range needs {
			if at := search(name, dirs); at != "" {
				// A broken library behind it shows when it is loaded.
				_ = walk(at, dirs)
				continue
			}
			found, ok := r.known[name]
			if !ok {
				found = r.system(name)
				r.known[name] = found
			}
			if !found && !slices.ContainsFunc(lacks, func(m Missing) bool { return m.Name == name }) {
				lacks = append(lacks, Missing{name, filepath.Base(path)})
			}
		}
		return nil
	}
	err := walk(path, nil)
	return lacks, err
}

// needsOf reads what a file needs and where it says to look.
func needsOf(path string) (needs, dirs []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	if needs, err = f.ImportedLibraries(); err != nil {
		return nil, nil, err
	}
	origin := filepath.Dir(path)
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		list, err := f.DynString(tag)
		if err != nil {
			continue
		}
		for _, entry := range list {
			for _, dir := range strings.Split(entry, ":") {
				dir = strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin).Replace(dir)
				dirs = append(dirs, filepath.Clean(dir))
			}
		}
	}
	return needs, dirs, nil
}

func search(name string, dirs []string) string {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return ""
}
