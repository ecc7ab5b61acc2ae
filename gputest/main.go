package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"
)

// options are the flags.
type options struct {
	server, python, device string
	serverArgs             string
	jsonPath, logPath      string
	l1GB                   float64
	quick                  bool
	only                   string
	gpus                   int
	limit                  time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.server, "server", "bin/lmcache-go", "the server's binary")
	flag.StringVar(&o.serverArgs, "server-args", "", "more flags for the server, separated by spaces")
	flag.StringVar(&o.python, "python", "python3", "a Python with torch")
	flag.StringVar(&o.device, "device", "cuda", "cuda, or cpu to try gputest itself on shared memory")
	flag.StringVar(&o.jsonPath, "json", "", "where the report goes as JSON")
	flag.StringVar(&o.logPath, "log", "", "where the server's log goes (default: a temporary file, shown at a failure)")
	flag.Float64Var(&o.l1GB, "l1-gb", 12, "the server's --l1-size-gb")
	flag.BoolVar(&o.quick, "quick", false, "small caches, no measurements")
	flag.StringVar(&o.only, "only", "", "groups of cases, separated by commas: bytes, share, kill, speed, loss, gpus")
	flag.IntVar(&o.gpus, "gpus", 1, "GPUs to use; from 2 on also engines on two of them at once")
	flag.DurationVar(&o.limit, "limit", 8*time.Minute, "when to give up")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	code := run(ctx, &o, os.Stdout)
	cancel()
	stop()
	os.Exit(code)
}

// run is the whole program but for the exit: 0 when every case passed.
func run(ctx context.Context, o *options, w io.Writer) int {
	h, err := start(ctx, o, w)
	if err != nil {
		fmt.Fprintf(os.Stderr, "gputest: %v\n", err)
		return 1
	}
	defer h.close()
	groups := []struct {
		name string
		run  func(context.Context, *harness)
	}{
		{"bytes", bytesCases}, {"share", shareCases}, {"kill", killCase}, {"speed", speedCases}, {"loss", lossCase}, {"gpus", gpusCase},
	}
	for _, g := range groups {
		if o.only != "" && !strings.Contains(","+o.only+",", ","+g.name+",") {
			continue
		}
		g.run(ctx, h)
	}
	h.finish()
	return h.report.print(w, o.jsonPath)
}
