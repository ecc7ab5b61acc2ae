package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/bytesize"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1 // a check failed, or the deployment could not be started
	exitUsage  = 2
)

// settings of the command line.
type settings struct {
	keep     bool
	kill     string
	load     bool
	router   string
	logs     string
	requests int
	parallel int
}

// Main is `lmcache-go demo`: `pd`, or `router` for the stand-in alone.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(args) > 0 {
		switch args[0] {
		case "pd":
			return pd(ctx, args[1:], stdout, stderr)
		case "router":
			return standIn(ctx, args[1:], stdout, stderr)
		case "-h", "--help":
			fmt.Fprintln(stdout, usageText)
			return exitOK
		}
	}
	fmt.Fprintln(stderr, usageText)
	return exitUsage
}

const usageText = `usage: lmcache-go demo pd [flags]      disaggregated prefill on this machine, verified step by step
       lmcache-go demo router [flags]  the stand-in for vllm-router alone

` + "`lmcache-go demo pd --help` prints the flags."

func parse(args []string, stderr io.Writer) (s settings, err error) {
	f := flag.NewFlagSet("lmcache-go demo pd", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.BoolVar(&s.keep, "keep", false, "leave the deployment up after the checks, until ^C")
	f.StringVar(&s.kill, "kill", "", "show what a user sees when a part dies: prefill, decode, server or router")
	f.BoolVar(&s.load, "load", false, "measure requests/s and latency of many requests at once, with LMCache and without")
	f.StringVar(&s.router, "router", routerAuto, "auto: the real vllm-router, or a stand-in where it cannot be had; real, stand-in")
	f.StringVar(&s.logs, "logs", "", "folder of logs; default: a new one below the system's for temporary files, removed when all is well")
	f.IntVar(&s.requests, "requests", 256, "with --load: requests")
	f.IntVar(&s.parallel, "parallel", 64, "with --load: requests at a time")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	case s.kill != "" && scenarios[s.kill].run == nil:
		err = fmt.Errorf("--kill %q: choose prefill, decode, server or router", s.kill)
	case s.router != routerAuto && s.router != routerReal && s.router != routerStandIn:
		err = fmt.Errorf("--router %q: choose auto, real or stand-in", s.router)
	case s.requests < 1 || s.parallel < 1:
		err = errors.New("--requests and --parallel must be at least 1")
	}
	return s, err
}

func pd(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "lmcache-go demo pd:", err)
		return exitUsage
	}
	made := s.logs == ""
	if made {
		s.logs, err = os.MkdirTemp("", "lmcache-go-demo-")
	} else {
		err = os.MkdirAll(s.logs, 0o750)
	}
	if err == nil {
		var p parts
		if p, err = newFinder(stdout).find(ctx, s.router); err == nil {
			err = runDemo(ctx, s, p, stdout)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "\nlmcache-go demo pd: %v\nThe logs of all processes are in %s\n", err, s.logs)
		return exitFailed
	}
	if made {
		err = os.RemoveAll(s.logs)
	} else {
		fmt.Fprintf(stdout, "logs: %s\n", s.logs)
	}
	if err != nil {
		fmt.Fprintln(stderr, "lmcache-go demo pd:", err)
	}
	return exitOK
}

// errChecks says that something was not as it should be.
var errChecks = errors.New("checks failed")

func runDemo(ctx context.Context, s settings, p parts, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if s.load {
		return runLoad(ctx, s, self, p, out)
	}
	t := &topology{dir: s.logs, self: self, parts: p, shape: verifyShape}
	if s.kill != "" {
		t.shape.lease, t.shape.heartbeat = scenarios[s.kill].lease, scenarios[s.kill].heartbeat
	}
	defer t.stop()
	begin := time.Now()
	if err := t.start(ctx); err != nil {
		return err
	}
	t.describe(out, time.Since(begin))
	single, err := newSingle(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = single.Close() }() // it holds nothing but its own memory
	v := &verifier{report: &report{out: out}, t: t, c: newClient(), single: single}
	defer v.c.close()
	if s.kill != "" {
		v.section("What a user sees when " + scenarios[s.kill].title)
		scenarios[s.kill].run(ctx, v)
	} else {
		v.all(ctx)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.keep {
		t.keep(ctx, out)
	}
	if v.failed > 0 {
		return fmt.Errorf("%w: %d", errChecks, v.failed)
	}
	fmt.Fprintf(out, "\nall checks passed in %s\n", time.Since(begin).Round(time.Second/10))
	return nil
}

// describe tells what runs where.
func (t *topology) describe(out io.Writer, took time.Duration) {
	router := "the stand-in"
	if t.parts.router != "" {
		router = "vllm-router " + routerVersion
	}
	fmt.Fprintf(out, "Disaggregated prefill on this machine, up after %s:\n", took.Round(time.Second/10))
	if !t.shape.noLMCache {
		fmt.Fprintf(out, "  prefiller's LMCache server  tcp://127.0.0.1:%d  %s/status\n", t.prefillPort, t.prefillServerHTTP)
	}
	fmt.Fprintf(out, "  prefill engine              %s  side channel 127.0.0.1:%d, %d blocks of %d tokens\n", t.prefillURL, t.sidePrefill, t.shape.prefillBlocks, blockTokens)
	if !t.shape.noLMCache {
		fmt.Fprintf(out, "  decoder's LMCache server    tcp://127.0.0.1:%d  %s/status\n", t.decodePort, t.decodeServerHTTP)
	}
	fmt.Fprintf(out, "  decode engine               %s  side channel 127.0.0.1:%d, %d blocks\n", t.decodeURL, t.sideDecode, t.shape.decodeBlocks)
	fmt.Fprintf(out, "  router                      %s  %s\n", t.routerURL, router)
	fmt.Fprintf(out, "  NIXL                        %s\n", t.parts.nixl)
	fmt.Fprintf(out, "  KV                          %s a token\n", bytesize.Format(int64(t.shape.layers*pageBytes/blockTokens)))
}

// keep waits for ^C.
func (t *topology) keep(ctx context.Context, out io.Writer) {
	fmt.Fprintf(out, `
The deployment stays up. Send it requests:
  curl -s %s/v1/completions -H "Content-Type: application/json" \
      -d '{"model":"%s","prompt":"The capital of France is","max_tokens":16}'
Logs are in %s
^C, or kill %d, ends it.
`, t.routerURL, modelName, t.dir, os.Getpid())
	<-ctx.Done()
}
