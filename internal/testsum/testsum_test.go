package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func counted(t *testing.T, lines ...string) (*tally, string) {
	t.Helper()
	got, out := &tally{}, &bytes.Buffer{}
	if err := newCounter(got, out).read(strings.NewReader(strings.Join(lines, "\n") + "\n")); err != nil {
		t.Fatal(err)
	}
	return got, out.String()
}

func TestCountsTestsAndReasons(t *testing.T) {
	got, out := counted(t,
		`{"Action":"start","Package":"p"}`,
		`{"Action":"run","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:5: needs a GPU\n"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"noise of a test that passes\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestB"}`,
		`{"Action":"output","Package":"p","Test":"TestC/x","Output":"    a_test.go:9: got 1, want 2\n"}`,
		`{"Action":"fail","Package":"p","Test":"TestC/x"}`,
		`{"Action":"fail","Package":"p","Test":"TestC"}`,
		`{"Action":"fail","Package":"p","Elapsed":1.5}`,
		`{"Action":"skip","Package":"no-tests"}`,
	)
	if got.Passed != 1 || got.Failed != 2 {
		t.Errorf("got %d passed, %d failed, want 1 and 2", got.Passed, got.Failed)
	}
	if want := []skip{{"p TestA", "needs a GPU"}}; !slices.Equal(got.Skipped, want) {
		t.Errorf("got skips %v, want %v", got.Skipped, want)
	}
	if !strings.Contains(out, "got 1, want 2") || strings.Contains(out, "noise") {
		t.Errorf("want the output of the failed test alone, got:\n%s", out)
	}
}

func TestPackageThatFailsWithoutATest(t *testing.T) {
	for _, lines := range [][]string{
		{ // does not build
			`{"ImportPath":"p","Action":"build-output","Output":"./a.go:3:1: syntax error\n"}`,
			`{"ImportPath":"p","Action":"build-fail"}`,
			`{"Action":"fail","Package":"p","FailedBuild":"p"}`,
		},
		{ // crashes inside a test
			`{"Action":"run","Package":"p","Test":"TestA"}`,
			`{"Action":"output","Package":"p","Test":"TestA","Output":"fatal: syntax error of fate\n"}`,
			`{"Action":"fail","Package":"p"}`,
		},
	} {
		got, out := counted(t, lines...)
		if got.Failed != 1 || !strings.Contains(out, "syntax error") {
			t.Errorf("got %d failed, want 1 with its output:\n%s", got.Failed, out)
		}
	}
}

func TestStagesAddUp(t *testing.T) {
	dir, out := t.TempDir(), &bytes.Buffer{}
	good, bad := filepath.Join(dir, "good.json"), filepath.Join(dir, "bad.json")
	if err := command([]string{"run", "-name", "good", "-o", good, "-plain", "--", "true"}, out); err != nil {
		t.Fatal(err)
	}
	if err := command([]string{"total", good}, out); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "\n1 passed, 0 failed, 0 skipped\n") {
		t.Errorf("got %q", out)
	}
	if err := command([]string{"run", "-name", "bad", "-o", bad, "-plain", "--", "false"}, out); !errors.Is(err, errFailed) {
		t.Errorf("got %v, want errFailed", err)
	}
	if err := command([]string{"total", good, bad}, out); !errors.Is(err, errFailed) {
		t.Errorf("got %v, want errFailed", err)
	}
	if !strings.HasSuffix(out.String(), "\n1 passed, 1 failed, 0 skipped\n") {
		t.Errorf("got %q", out)
	}
}

// A go test that dies before its first event must not count as a clean run.
func TestCommandThatFailsInSilence(t *testing.T) {
	got, err := runStage("race", []string{"false"}, false, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Failed != 1 {
		data, _ := json.Marshal(got)
		t.Errorf("got %s, want one failure", data)
	}
	if _, err := runStage("race", []string{filepath.Join(t.TempDir(), "absent")}, false, &bytes.Buffer{}); err == nil {
		t.Error("a command that does not exist must be an error")
	}
	if err := command([]string{"total"}, &bytes.Buffer{}); err == nil {
		t.Error("a total of nothing must be an error")
	}
}
