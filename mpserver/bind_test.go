package mpserver

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBindAddress(t *testing.T) {
	f := func(host, want string) {
		t.Helper()
		if got := BindAddress(host); got != want {
			t.Errorf("BindAddress(%s) = %s, want %s", host, got, want)
		}
	}
	f("localhost", "127.0.0.1")
	f("*", "0.0.0.0")
	f("127.0.0.1", "127.0.0.1")
	f("::1", "::1")
	f("[::1]", "::1")
	f("no-such-host.invalid", "no-such-host.invalid")
	ifaces, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range ifaces {
		if i.Flags&net.FlagLoopback != 0 {
			if got := BindAddress(i.Name); strings.Count(got, ".") == 3 {
				f(i.Name, "127.0.0.1")
			}
		}
	}
}
