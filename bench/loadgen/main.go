package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

func main() {
	os.Exit(realMain(os.Args[1:], os.Stdout, os.Stderr))
}

// realMain is main with its surroundings as arguments. It exits 1 when an
// operation failed or bytes differed, 2 on wrong flags.
func realMain(args []string, stdout, stderr io.Writer) int {
	c, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "loadgen:", err)
		return 2
	}
	if c.report != "" || c.sink {
		work := func() error { return report(stdout, c.report) }
		if c.sink {
			work = func() error { return serveSink(c, stdout) }
		}
		if err := work(); err != nil {
			fmt.Fprintln(stderr, "loadgen:", err)
			return 1
		}
		return 0
	}
	debug.SetGCPercent(400)
	r := runOnce(c)
	if c.jsonOut {
		b, err := json.Marshal(r)
		if err != nil {
			fmt.Fprintln(stderr, "loadgen:", err)
			return 1
		}
		fmt.Fprintf(stdout, "%s\n", b)
	} else if len(r.Errors) == 0 {
		r.print(stdout)
	}
	for _, e := range r.Errors {
		fmt.Fprintln(stderr, "loadgen:", e)
	}
	if len(r.Errors) > 0 || r.Counters["verify_failed"] > 0 {
		return 1
	}
	return 0
}
