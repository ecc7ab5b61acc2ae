package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrEndpoint is returned for an endpoint that is not written as ZeroMQ writes them.
var ErrEndpoint = errors.New("zmtp: not an endpoint: write tcp://HOST:PORT or ipc://PATH")

// listenLimit bounds the resolving of a name.
const listenLimit = 2 * time.Second

// listen opens a listener for an endpoint as ZeroMQ writes it: tcp://HOST:PORT,
// where HOST is an address, a name, an interface, or "*" for all, and PORT a
// number, or 0 or "*" for one of the kernel's choice; ipc://PATH, or ipc://@NAME
// in the abstract namespace. It returns the endpoint that was bound.
func listen(endpoint string, keepAlive net.KeepAliveConfig) (net.Listener, string, error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok || rest == "" {
		return nil, "", fmt.Errorf("%w: %q", ErrEndpoint, endpoint)
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	lc.SetMultipathTCP(false) // peers are on this host, or in its rack
	ctx, cancel := context.WithTimeout(context.Background(), listenLimit)
	defer cancel()
	switch scheme {
	case "tcp":
		network, address, err := tcpAddress(ctx, rest)
		if err != nil {
			return nil, "", fmt.Errorf("%w: %q: %w", ErrEndpoint, endpoint, err)
		}
		l, err := lc.Listen(ctx, network, address)
		if err != nil {
			return nil, "", err
		}
		return l, "tcp://" + l.Addr().String(), nil
	case "ipc":
		if !strings.HasPrefix(rest, "@") {
			removeStale(rest)
		}
		l, err := lc.Listen(ctx, "unix", rest)
		if err != nil {
			return nil, "", err
		}
		return l, endpoint, nil
	}
	return nil, "", fmt.Errorf("%w: %q", ErrEndpoint, endpoint)
}

// tcpAddress is what the net package wants.
func tcpAddress(ctx context.Context, hostPort string) (network, address string, err error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return "", "", err
	}
	if port == "*" {
		port = "0"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", "", fmt.Errorf("%q is no port", port)
	}
	if host == "*" {
		host = "0.0.0.0"
	}
	if ip := net.ParseIP(host); ip == nil && !strings.Contains(host, ":") {
		if host, err = resolve(ctx, host); err != nil {
			return "", "", err
		}
	}
	network = "tcp"
	if ip := net.ParseIP(host); ip != nil && ip.To4() != nil {
		network = "tcp4"
	}
	return network, net.JoinHostPort(host, port), nil
}

// resolve turns the name of an interface or a host into an address, IPv4 first.
func resolve(ctx context.Context, name string) (string, error) {
	if iface, err := net.InterfaceByName(name); err == nil {
		addrs, err := iface.Addrs()
		if err != nil {
			return "", err
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
				return n.IP.String(), nil
			}
		}
		return "", fmt.Errorf("interface %s has no IPv4 address", name)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return "", err
	}
	for _, ip := range ips {
		if ip.Unmap().Is4() {
			return ip.Unmap().String(), nil
		}
	}
	return ips[0].String(), nil
}

// removeStale removes a socket file that nobody listens on any more.
func removeStale(path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return
	}
	d := net.Dialer{Timeout: time.Second}
	c, err := d.Dial("unix", path)
	if err == nil {
		_ = c.Close()
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path)
	}
}
