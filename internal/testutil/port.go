package testutil

import (
	"net"
	"testing"
)

// FreePort returns a TCP port of 127.0.0.1 that nobody listens on. It is for
// child processes that cannot be asked which port the kernel gave them; code
// in the same process listens on port 0. Another process may take the port in
// between, so a caller should try again with a new one when a bind fails.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
