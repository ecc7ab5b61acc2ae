package simengine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/lmcache-go/lmcache-go/connector"
)

const stopLimit = 5 * time.Second

// Main is `lmcache-go engine`: it serves until SIGTERM or SIGINT and returns
// the exit status, 2 for a command line that cannot be read.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return run(ctx, args, stdout, stderr)
}

// settings of the command line.
type settings struct {
	host string
	port int
	o    Options
}

// parse reads a command line like that of `vllm serve`.
func parse(args []string, stderr io.Writer) (s settings, err error) {
	f := flag.NewFlagSet("lmcache-go engine", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintf(stderr, "usage: lmcache-go engine [serve] MODEL [flags]\n\nA simulated vLLM: no model, KV and answers by rule.\n\n")
		f.PrintDefaults()
	}
	f.StringVar(&s.host, "host", "127.0.0.1", "address of the HTTP surface")
	f.IntVar(&s.port, "port", 8000, "port of the HTTP surface; 0 asks the kernel")
	f.IntVar(&s.o.BlockTokens, "block-size", 16, "tokens of a block")
	f.IntVar(&s.o.Blocks, "num-gpu-blocks-override", 1024, "blocks of the KV pool")
	f.IntVar(&s.o.Layers, "layers", 2, "layers")
	f.IntVar(&s.o.Heads, "kv-heads", 2, "KV heads")
	f.IntVar(&s.o.HeadSize, "head-size", 8, "elements of a head")
	f.IntVar(&s.o.MaxModelTokens, "max-model-len", 0, "tokens of prompt and answer; 0: what the pool holds")
	f.IntVar(&s.o.MaxBatchTokens, "max-num-batched-tokens", 2048, "tokens of a step")
	f.IntVar(&s.o.MaxRunning, "max-num-seqs", 64, "requests at a time")
	f.DurationVar(&s.o.TokenCost, "token-cost", 100*time.Microsecond, "time that a computed token takes")
	f.StringVar(&s.o.ServedName, "served-model-name", "", "name that clients give; default: MODEL")
	f.BoolVar(&s.o.PromptTokensDetails, "enable-prompt-tokens-details", false, "tell cached tokens in usage")
	f.BoolVar(&s.o.NixlDirect, "nixl-direct", false, "with a peer of this kind on the same host, copy around NIXL")
	transfer := f.String("kv-transfer-config", "", "JSON as vLLM takes it")
	if len(args) > 0 && args[0] == "serve" {
		args = args[1:]
	}
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		s.o.Model, args = args[0], args[1:]
	}
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if *transfer != "" {
		if s.o.Connector, err = connector.ParseTransferConfig([]byte(*transfer)); err != nil {
			return s, err
		}
	}
	return s, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "lmcache-go engine:", err)
		return 2
	}
	s.o.Getenv = os.Getenv
	s.o.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	if err := serve(ctx, s, stdout); err != nil {
		fmt.Fprintln(stderr, "lmcache-go engine:", err)
		return 1
	}
	return 0
}

// serve runs engine and HTTP surface until ctx ends.
func serve(ctx context.Context, s settings, stdout io.Writer) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(s.host, strconv.Itoa(s.port)))
	if err != nil {
		return fmt.Errorf("%w: choose another --port", err)
	}
	e, err := New(ctx, s.o)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	srv := &http.Server{Handler: NewHandler(e), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	fmt.Fprintf(stdout, "engine of %q serves http://%s\n", e.opts.Model, l.Addr())
	report(ctx, e)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	err = e.Close() // requests under way end, so that their handlers do
	err = errors.Join(err, srv.Shutdown(end))
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}
