package main

import (
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

func TestCheckPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	busy := l.Addr().(*net.TCPAddr).Port
	free := testutil.FreePort(t)
	h := fakeMachine(0, 0)
	f := func(host string, port int, httpHost string, httpPort int, want ...string) {
		t.Helper()
		got := flatten(h.checkPorts(host, port, httpHost, httpPort))
		if len(got) != len(want) {
			t.Errorf("%s:%d %s:%d: got %v, want %v", host, port, httpHost, httpPort, got, want)
			return
		}
		for i := range want {
			require.Contains(t, got[i].Error(), want[i])
		}
	}
	const lo = "127.0.0.1"
	f("localhost", free, lo, 0)
	f(lo, 0, lo, -1)
	f("*", 0, lo, 0)
	f("0.0.0.0", free, lo, 0)
	f("localhost", busy, lo, 0, "is busy: another process listens there: stop it or choose another --port")
	f("*", busy, lo, 0, "is busy")
	f(lo, busy, lo, busy, "--port", "--http-port")
	f(lo, free, lo, free, "--http-port and --port are both")
	f("0.0.0.0", free, lo, free, "--http-port and --port are both")
	f("203.0.113.1", free, lo, 0, "--host 203.0.113.1 is not an address of this machine")
	f(lo, 0, "203.0.113.1", free, "--http-host 203.0.113.1 is not an address of this machine")
	f("tcp://x", free, lo, 0)  // the row refuses it
	f("localhost", -5, lo, -1) // likewise

	// Nothing stays bound.
	again, err := net.Listen("tcp", net.JoinHostPort(lo, strconv.Itoa(free)))
	require.NoError(t, err)
	again.Close()

	h.listener = func(int) (process, bool) { return process{42, "nginx"}, true }
	f(lo, 0, lo, busy, "is busy: nginx (pid 42) listens there: stop it or choose another --http-port")
}

// TestPortOwner: this process listens, and is found.
func TestPortOwner(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	if listeningInode(port) == "" {
		l.Close()
		t.Skip("this kernel has no /proc/net/tcp")
	}
	p, ok := portOwner(port)
	require.True(t, ok)
	require.Equal(t, os.Getpid(), p.pid)
	require.NotEmpty(t, p.name)
	l.Close()
	_, ok = portOwner(port)
	require.False(t, ok)
}
