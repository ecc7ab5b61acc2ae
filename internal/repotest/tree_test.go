package repotest

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// machinePath finds absolute paths of a person's or a build machine: they mean
// nothing to anybody else. Written in pieces so that it does not find itself.
var machinePath = regexp.MustCompile(`(^|[\s"'=:(` + "`" + `])/(wo` + `rk|fa` + `rm|ro` + `ot|ho` + `me/[a-z]+|Us` + `ers/[A-Za-z]+|tmp/bash_` + `jobs)/`)

func TestNoMachinePaths(t *testing.T) {
	if !machinePath.MatchString(`dir := "/ho`+`me/ann/src"`) || machinePath.MatchString("https://example.com/home/of/x") {
		t.Fatal("the pattern does not find what it should")
	}
	for _, name := range tracked(t) {
		for i, line := range lines(t, name) {
			if machinePath.Match(line) {
				t.Errorf("%s:%d: path of a machine: %.120s", name, i+1, line)
			}
		}
	}
}

// longFiles are the Go files that may have more than 600 lines, with the reason.
var longFiles = map[string]string{}

func TestGoFilesAreShort(t *testing.T) {
	const limit = 600
	long := map[string]bool{}
	for _, name := range tracked(t) {
		if path.Ext(name) != ".go" {
			continue
		}
		if n := len(lines(t, name)); n > limit {
			long[name] = true
			if longFiles[name] == "" {
				t.Errorf("%s has %d lines: look for the second idea in it, or name the reason in longFiles", name, n)
			}
		}
	}
	for name := range longFiles {
		if !long[name] {
			t.Errorf("%s is not long any more: take it out of longFiles", name)
		}
	}
}

func TestNoLargeFiles(t *testing.T) {
	const limit = 1 << 20
	for _, name := range tracked(t) {
		info, err := os.Lstat(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > limit {
			t.Errorf("%s has %d bytes: make it when needed, or keep less of it", name, info.Size())
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// Links between our documents lead somewhere.
func TestLinksInDocuments(t *testing.T) {
	for _, name := range tracked(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		for i, line := range lines(t, name) {
			for _, m := range link.FindAllSubmatch(line, -1) {
				target := string(m[1])
				if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
					continue
				}
				if _, err := os.Stat(filepath.Join(root(t), path.Dir(name), target)); err != nil {
					t.Errorf("%s:%d: link to %s, which does not exist", name, i+1, target)
				}
			}
		}
	}
}

// lines reads a tracked text file; a binary one has none.
func lines(t *testing.T, name string) [][]byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	if len(data) == 0 || bytes.IndexByte(data, 0) >= 0 {
		return nil
	}
	return bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}
