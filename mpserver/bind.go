package mpserver

import (
	"context"
	"net"
	"strings"
	"time"
)

// BindAddress turns a --host into an address that libzmq binds to. By itself
// libzmq takes addresses, interfaces and "*", but no names, not even localhost
// (the reference's Python binding resolves that one). A name that cannot be
// resolved is returned as it is.
func BindAddress(host string) string {
	switch {
	case host == "localhost":
		return "127.0.0.1"
	case host == "*":
		return "0.0.0.0"
	case net.ParseIP(strings.Trim(host, "[]")) != nil:
		return strings.Trim(host, "[]")
	}
	if iface, err := net.InterfaceByName(host); err == nil {
		if addrs, err := iface.Addrs(); err == nil {
			for _, a := range addrs {
				if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
					return n.IP.String()
				}
			}
		}
		return host
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	for _, network := range []string{"ip4", "ip6"} {
		if ips, err := net.DefaultResolver.LookupNetIP(ctx, network, host); err == nil && len(ips) > 0 {
			return ips[0].Unmap().String()
		}
	}
	return host
}

// resolveTimeout bounds the start on a machine whose resolver does not answer.
const resolveTimeout = 2 * time.Second
