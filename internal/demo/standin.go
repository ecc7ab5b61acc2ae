package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/demo/router"
)

// urls is a flag that may be repeated.
type urls []string

func (u *urls) String() string     { return fmt.Sprint(*u) }
func (u *urls) Set(s string) error { *u = append(*u, s); return nil }

// standIn is `lmcache-go demo router`, with vllm-router's flags.
func standIn(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("lmcache-go demo router", flag.ContinueOnError)
	f.SetOutput(stderr)
	var prefill, decode urls
	f.Var(&prefill, "prefill", "url of a prefill engine; may be repeated")
	f.Var(&decode, "decode", "url of a decode engine; may be repeated")
	host := f.String("host", "127.0.0.1", "address to listen at")
	port := f.Int("port", 30000, "port to listen at; 0 asks the kernel")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	}
	r, err := router.New(router.Options{Prefill: prefill, Decode: decode, Logger: slog.New(slog.NewTextHandler(stderr, nil))})
	if err != nil {
		fmt.Fprintln(stderr, "lmcache-go demo router:", err)
		return exitUsage
	}
	if err := serve(ctx, r, net.JoinHostPort(*host, strconv.Itoa(*port)), stdout); err != nil {
		fmt.Fprintln(stderr, "lmcache-go demo router:", err)
		return exitFailed
	}
	return exitOK
}

func serve(ctx context.Context, h http.Handler, addr string, stdout io.Writer) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	fmt.Fprintf(stdout, "router serves http://%s\n", l.Addr())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit/2)
	defer cancel()
	err = s.Shutdown(end)
	if err != nil {
		err = errors.Join(err, s.Close())
	}
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}
