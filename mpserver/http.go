package mpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"

	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
)

// httpServer is the HTTP surface of a server.
type httpServer struct {
	ln  net.Listener
	srv *http.Server
}

// listenHTTP binds the HTTP port; connections wait until serve runs, which is
// when the request socket answers too.
func listenHTTP(s *Server) (*httpServer, error) {
	addr := net.JoinHostPort(s.opt.HTTPHost, strconv.Itoa(s.opt.HTTPPort))
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("bind http://%s: another process listens there: stop it or choose another --http-port: %w", addr, err)
		}
		return nil, fmt.Errorf("bind http://%s: check --http-host and --http-port: %w", addr, err)
	}
	h := httpapi.NewHandler(surface{s}, httpapi.Options{Version: s.opt.Version, Commit: s.opt.Commit, OnPanic: s.met.Panicked, Logger: s.log, LogLevel: s.opt.LogLevel})
	return &httpServer{ln: ln, srv: httpapi.NewServer(h, s.log)}, nil
}

func (h *httpServer) addr() string { return h.ln.Addr().String() }

func (h *httpServer) serve(<-chan struct{}) { _ = h.srv.Serve(h.ln) }

// shutdown stops listening and waits for requests in progress until ctx ends.
func (h *httpServer) shutdown(ctx context.Context) error {
	if err := h.srv.Shutdown(ctx); err != nil {
		return errors.Join(err, h.srv.Close())
	}
	_ = h.ln.Close() // it was never served, or Shutdown has closed it
	return nil
}

// surface is what HTTP sees of a server.
type surface struct{ s *Server }

func (f surface) Health() (bool, string) { return f.s.Health() }
func (f surface) Status() any            { return f.s.Status() }
func (f surface) ClearL1(force bool)     { f.s.clear(force, "http") }
func (f surface) Checksums(ctx context.Context, q *httpapi.ChecksumRequest) ([][]string, error) {
	return f.s.Checksums(ctx, q)
}

func (f surface) WriteMetrics(w io.Writer) {
	_, _ = f.s.met.WriteTo(w) // a scraper that hangs up misses the rest
}
