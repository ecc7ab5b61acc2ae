package nixlbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmcache-go/lmcache-go/nixl"
)

func TestMain(m *testing.M) {
	self = func(ctx context.Context, args ...string) *exec.Cmd {
		exe, err := os.Executable()
		if err != nil {
			panic(err)
		}
		return exec.CommandContext(ctx, exe, append([]string{"bench-child"}, args...)...)
	}
	// This binary is the program that the bench starts again.
	if len(os.Args) > 1 && os.Args[1] == "bench-child" {
		os.Exit(Main(os.Args[2:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// needNIXL returns flags under which the bench finds the library.
func needNIXL(t *testing.T) []string {
	t.Helper()
	for _, c := range nixl.Find(nixl.LoadOptions{Python: os.Getenv("LMCACHE_GO_PYTHON")}) {
		if c.Exists && filepath.IsAbs(c.Path) {
			return []string{"--lib", c.Path}
		}
	}
	t.Skip("no NIXL library: set LMCACHE_GO_PYTHON or NIXL_LIB_DIR")
	return nil
}

var quick = []string{"--sizes", "4KiB", "--batches", "1,64", "--buffer", "16MiB", "--time", "1ms", "--rounds", "1", "--layout", "both"}

func TestBench(t *testing.T) {
	args := append(needNIXL(t), quick...)
	compare := "raw,default"
	if _, err := exec.LookPath("cc"); err == nil {
		compare += ",c"
	}
	if os.Getenv("LMCACHE_GO_PYTHON") != "" {
		compare += ",python"
	}
	var out, errw bytes.Buffer
	if code := Main(append(args, "--json", "-", "--compare", compare), &out, &errw); code != 0 {
		t.Fatalf("exit %d\n%s\n%s", code, &out, &errw)
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	// Two operations, two batches, of which the larger in two layouts.
	if len(r.Rows) != 2*3 || len(r.Lanes) != 2 {
		t.Errorf("%d rows, %d lanes", len(r.Rows), len(r.Lanes))
	}
	for _, row := range r.Rows {
		if !row.Verified || len(row.By) != 1+len(strings.Split(compare, ",")) {
			t.Errorf("row %+v", row)
		}
		want := row.Count
		if row.Layout == "merged" {
			want = 1
		}
		if got := row.By["go"].Descs; got != want {
			t.Errorf("%s %s × %d: %d descriptors, want %d", row.Layout, formatSize(row.Bytes), row.Count, got, want)
		}
		for name, m := range row.By {
			if m.GBps <= 0 || m.Wall <= 0 || m.CPU <= 0 {
				t.Errorf("%s: %+v", name, m)
			}
		}
	}

	file := filepath.Join(t.TempDir(), "out.json")
	out.Reset()
	if code := Main(append(args, "--json", file, "--ops", "write", "--verify=false"), &out, &errw); code != 0 {
		t.Fatalf("exit %d\n%s\n%s", code, &out, &errw)
	}
	if _, err := os.Stat(file); err != nil || !strings.Contains(out.String(), "WRITE") || strings.Contains(out.String(), "\nREAD  scattered") {
		t.Errorf("%v, table:\n%s", err, &out)
	}
}

// Initiator and target that meet over a socket, as on two hosts.
func TestBenchAcrossSocket(t *testing.T) {
	args := needNIXL(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := self(ctx, append(args, "--serve", "127.0.0.1:0", "--buffer", "16MiB")...)
	pipe, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(pipe)
	line, err := said.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan struct{})
	go func() { defer close(drained); _, _ = io.Copy(io.Discard, said) }()
	address := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	var out, errw bytes.Buffer
	if code := Main(append(append(args, quick...), "--connect", address, "--ops", "read"), &out, &errw); code != 0 {
		t.Errorf("exit %d\n%s\n%s", code, &out, &errw)
	}
	cancel()
	<-drained
	_ = server.Wait()
}

func TestCommandLine(t *testing.T) {
	f := func(want int, parts []string, args ...string) {
		t.Helper()
		var out, errw bytes.Buffer
		if code := Main(args, &out, &errw); code != want {
			t.Errorf("%v: exit %d, want %d", args, code, want)
		}
		for _, p := range parts {
			if said := out.String() + errw.String(); !strings.Contains(said, p) {
				t.Errorf("%v: %q is not in:\n%s", args, p, said)
			}
		}
	}
	f(0, []string{"nixlbench", "--serve"}, "--help")
	f(2, nil, "--no-such-flag")
	f(2, nil, "word")
	f(2, []string{"dram or vram", "batch \"x\"", "\"9Q\"", "neither READ nor WRITE", "none of scattered", "knows c, python"},
		"--mem", "disk", "--batches", "1,x", "--sizes", "9Q", "--ops", "move", "--layout", "odd", "--compare", "rust")
	f(1, []string{"no such file"}, "--lib", filepath.Join(t.TempDir(), "none"))
}

func TestCases(t *testing.T) {
	o := &options{sizes: "4KiB,1MiB", batches: "1,16", ops: "READ", layout: "both", buffer: "8MiB", mem: "dram", rounds: 1, time: 1}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	list, left := o.cases()
	// 1 MiB × 16 fits in neither layout.
	if len(list) != 4 || left != 2 {
		t.Errorf("%d cases, %d left out: %+v", len(list), left, list)
	}
	for _, c := range list {
		if c.Span() > 8<<20 {
			t.Errorf("%+v does not fit", c)
		}
	}
}

func TestSizes(t *testing.T) {
	f := func(s string, want int) {
		t.Helper()
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	f("4KiB", 4096)
	f("1 GiB", 1<<30)
	f("8", 8)
	f("16B", 16)
	for _, bad := range []string{"", "x", "-1", "4KB", "0"} {
		if _, err := parseSize(bad); err == nil {
			t.Errorf("parseSize(%q): no error", bad)
		}
	}
	if got := formatSize(3 << 20); got != "3 MiB" {
		t.Errorf("formatSize = %q", got)
	}
}
