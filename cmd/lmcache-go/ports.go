package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

// checkPorts binds every port that the server will bind, all at once, and lets
// go again. It tells who is in the way.
func (h machine) checkPorts(host string, port int, httpHost string, httpPort int) error {
	var errs []error
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	for _, p := range []struct {
		flag, host string
		port       int
	}{{"port", host, port}, {"http-port", httpHost, httpPort}} {
		if p.port <= 0 || p.port > 65535 || checkHost(value{text: p.host}) != "" {
			continue // a free one, none at all, or refused already
		}
		addr := p.host
		if p.flag == "port" {
			addr = mpserver.BindAddress(addr) // as serve does for libzmq
		}
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(addr, strconv.Itoa(p.port)))
		if err == nil {
			held = append(held, l)
			continue
		}
		errs = append(errs, h.bindError(p.flag, p.host, p.port, err, p.flag == "http-port" && p.port == port && len(held) > 0))
	}
	return errors.Join(errs...)
}

// bindError says what to change.
func (h machine) bindError(flag, host string, port int, err error, own bool) error {
	hostFlag := "--host"
	if flag == "http-port" {
		hostFlag = "--http-host"
	}
	switch {
	case own:
		return fmt.Errorf("--http-port and --port are both %d: choose another --http-port", port)
	case errors.Is(err, syscall.EADDRINUSE):
		who := "another process"
		if p, ok := h.listener(port); ok {
			who = p.String()
		}
		return fmt.Errorf("--%s %d is busy: %s listens there: stop it or choose another --%s", flag, port, who, flag)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("--%s %d needs privileges: choose one from 1024 on", flag, port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s %s is not an address of this machine: use localhost, 0.0.0.0 or one that `ip addr` lists", hostFlag, host)
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return fmt.Errorf("%s %s cannot be resolved: give an address, or a name that this machine knows", hostFlag, host)
	}
	return fmt.Errorf("%s %s, --%s %d: %w", hostFlag, host, flag, port, err)
}
