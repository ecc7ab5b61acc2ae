package testutil

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorder is a testing.TB that notes failures and ends the goroutine on fatal ones.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(r)
}

func TestGolden(t *testing.T) {
	t.Chdir(t.TempDir())
	*update = true
	Golden(t, "sub/a.txt", []byte("one"))
	*update = false
	Golden(t, "sub/a.txt", []byte("one"))

	r := &recorder{TB: t}
	Golden(r, "sub/a.txt", []byte("two"))
	if len(r.failures) != 1 || !strings.Contains(r.failures[0], "two") {
		t.Errorf("got %q, want one failure that shows the text", r.failures)
	}
	if kept, err := os.ReadFile(filepath.Join("testdata", "sub", "a.txt")); err != nil || string(kept) != "one" {
		t.Errorf("got %q, %v: a comparison must not write", kept, err)
	}
}

func TestEventuallyAndReceive(t *testing.T) {
	n := 0
	Eventually(t, "three calls", func() bool { n++; return n == 3 })
	ch := make(chan int, 1)
	ch <- 7
	if got := Receive(t, "a value", ch); got != 7 {
		t.Errorf("got %d, want 7", got)
	}
	close(ch)
	r := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		Receive(r, "a value", ch)
	}()
	if len(r.failures) != 1 {
		t.Errorf("got %q, want one failure for a closed channel", r.failures)
	}
}

func TestFreePort(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", FreePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
}
