package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/cuda"
)

// gpuReport is everything that `doctor gpu` found, in the order of the looks.
type gpuReport struct {
	Checks []gpuCheck `json:"checks"`
}

// gpuCheck is one look.
type gpuCheck struct {
	Name  string   `json:"name"`
	State gpuState `json:"state"`
	Text  string   `json:"text"`
	// Remedy is what to do about it, "" where all is well.
	Remedy string `json:"remedy,omitempty"`
}

// gpuState is how a look ended.
type gpuState string

const (
	gpuOK   gpuState = "ok"
	gpuNote gpuState = "note" // works; may not for everybody
	gpuFail gpuState = "fail"
)

func (r *gpuReport) add(name string, state gpuState, remedy, format string, args ...any) {
	r.Checks = append(r.Checks, gpuCheck{name, state, fmt.Sprintf(format, args...), remedy})
}

// outcome adds a check that is well unless err says otherwise. Errors of the driver
// bring their remedy along.
func (r *gpuReport) outcome(name string, err error, remedy, format string, args ...any) bool {
	if err == nil {
		r.add(name, gpuOK, "", format, args...)
		return true
	}
	var call *cuda.Error
	if errors.As(err, &call) && call.Remedy != "" {
		remedy = "" // it is in the text
	}
	r.add(name, gpuFail, remedy, "%v", err)
	return false
}

func (r *gpuReport) failed() bool {
	return slices.ContainsFunc(r.Checks, func(c gpuCheck) bool { return c.State == gpuFail })
}

func (r *gpuReport) print(w io.Writer) {
	for _, c := range r.Checks {
		fmt.Fprintf(w, "%-5s %-16s %s\n", c.State, c.Name, c.Text)
		if c.Remedy != "" {
			fmt.Fprintf(w, "%-5s %-16s → %s\n", "", "", c.Remedy)
		}
	}
	if r.failed() {
		fmt.Fprintf(w, "\nThe server cannot copy the KV of engines in GPU memory here; they can still copy themselves (lmcache.mp.mp_transfer_mode engine_driven).\n")
		return
	}
	fmt.Fprintf(w, "\nThe server can copy the KV of engines in GPU memory.\n")
}

const gpuUsage = `usage: lmcache-go doctor gpu [flags]

Plays an engine and a server with each other: a second process allocates GPU
memory and events, and this one opens them by CUDA IPC, as the server does with
an engine's KV cache. Says what is in the way. Ends with 1 when that fails.

To try two containers, run it with --export in the engine's and with --open
and what that printed in the server's.

flags:
`

// gpuTools are the outside of `doctor gpu`; tests have others.
type gpuTools struct {
	load func() (*cuda.Driver, error)
	// exporter starts a process that exports memory and events of a GPU.
	exporter func(ctx context.Context, uuid string) (t gpuToken, stop func(), err error)
	stdin    io.Reader
}

func runDoctorGPU(args []string, c console) int {
	return doctorGPU(args, c, gpuTools{
		load:     func() (*cuda.Driver, error) { return cuda.Load(cuda.LoadOptions{}) },
		exporter: startExporter, stdin: os.Stdin,
	})
}

func doctorGPU(args []string, c console, tools gpuTools) int {
	flags := flag.NewFlagSet("doctor gpu", flag.ContinueOnError)
	flags.SetOutput(c.stderr)
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		flags.SetOutput(c.stdout) // what was asked for is no error
	}
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), gpuUsage)
		flags.PrintDefaults()
	}
	asJSON := flags.Bool("json", false, "print the report as JSON")
	uuid := flags.String("uuid", "", "the GPU to try; default: all that CUDA shows")
	export := flags.Bool("export", false, "only play the engine: print a token for --open and wait until standard input ends")
	open := flags.String("open", "", "only play the server, with an engine in another container that printed this token")
	limit := flags.Duration("timeout", 30*time.Second, "the most that one look may take")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		return usage(c, "doctor gpu", &usageError{fmt.Sprintf("unexpected %q", flags.Arg(0))})
	}
	if *export {
		if err := exportGPU(tools, *uuid, c.stdout); err != nil {
			return invalid(c, "doctor gpu", err)
		}
		return exitOK
	}
	r := &gpuReport{}
	d := gpuDoctor{r: r, tools: tools, limit: *limit, c: c}
	if *open == "" {
		d.examine(*uuid)
	} else if t, err := parseGPUToken(*open); err != nil {
		return usage(c, "doctor gpu", &usageError{err.Error()})
	} else {
		d.openToken(t)
	}
	if *asJSON {
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			return invalid(c, "doctor gpu", err)
		}
	} else {
		r.print(c.stdout)
	}
	if r.failed() {
		return exitInvalid
	}
	return exitOK
}

// gpuDoctor makes the looks.
type gpuDoctor struct {
	r     *gpuReport
	tools gpuTools
	limit time.Duration
	c     console
}

var errGPUHangs = errors.New("the driver did not come back: look at dmesg and nvidia-smi for a GPU that hangs")

// within runs f, but not for longer than the limit: a broken driver hangs, and
// an event of a dead process never fires.
func (d *gpuDoctor) within(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	t := time.NewTimer(d.limit)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return errGPUHangs
	}
}

// driver loads the driver and looks at what it shows.
func (d *gpuDoctor) driver() *cuda.Driver {
	var drv *cuda.Driver
	err := d.within(func() (err error) {
		drv, err = d.tools.load()
		return err
	})
	if !d.r.outcome("driver", err, "", "%s", driverText(drv)) {
		return nil
	}
	d.visible(drv)
	return drv
}

func driverText(drv *cuda.Driver) string {
	if drv == nil {
		return ""
	}
	v := drv.Version()
	return fmt.Sprintf("%s, CUDA %d.%d", drv.Path(), v/1000, v%1000/10)
}

// visible compares what the machine has with what CUDA shows.
func (d *gpuDoctor) visible(drv *cuda.Driver) {
	setting, isSet := d.c.lookupEnv("CUDA_VISIBLE_DEVICES")
	shown := map[string]bool{}
	var lines []string
	for _, dev := range drv.Devices() {
		shown[dev.UUID] = true
		lines = append(lines, fmt.Sprintf("%s (%s)", dev.UUID, dev.Name))
	}
	env := "CUDA_VISIBLE_DEVICES is not set"
	if isSet {
		env = fmt.Sprintf("CUDA_VISIBLE_DEVICES=%q", setting)
	}
	if len(lines) == 0 {
		d.r.add("devices", gpuFail, "give this process the GPU: docker --gpus, the device plug-in's resource, and no empty CUDA_VISIBLE_DEVICES", "CUDA shows no GPU; %s", env)
		return
	}
	d.r.add("devices", gpuOK, "", "%s; %s", strings.Join(lines, ", "), env)
	all, err := d.c.host.gpus()
	if err != nil {
		d.r.add("inventory", gpuNote, "", "the machine's GPUs cannot be listed: %v", err)
		return
	}
	var hidden []string
	for _, g := range all {
		if !shown[g.UUID] {
			hidden = append(hidden, g.UUID)
		}
	}
	if len(hidden) > 0 {
		d.r.add("inventory", gpuNote, "an engine on one of those is refused: take CUDA_VISIBLE_DEVICES off the server", "the machine has GPUs that CUDA does not show here: %s; %s", strings.Join(hidden, ", "), env)
	}
}
