package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// tool is a command that asks a running server something and ends.
type tool struct {
	name, summary string // "kvcache clear"
	args          []positional
	rows          []row    // its own flags; those of every tool are added
	url           string   // default of --url, "" when it must be given
	required      []string // names of flags without a default
	run           func(ctx context.Context, t *call) error
}

// positional is an argument without a flag.
type positional struct {
	name, help string
	choices    []string // nil: anything
}

// groupTools is where every tool's own and common flags are listed.
const groupTools = "flags"

// commonRows is what every tool takes (lmcache 0.5.6, cli/commands/base.py), and
// two of ours.
func (t *tool) commonRows() []row {
	return []row{
		{name: "url", def: t.url, help: "the server's HTTP address"},
		{name: "timeout-seconds", kind: kindFloat, def: "10", help: "how long to wait for each answer", check: seconds},
		{name: "format", def: "terminal", choices: []string{"terminal", "json"}, help: "output for people or for programs"},
		{name: "json", kind: kindSwitch, help: "the same as --format json"},
		{name: "output", help: "also write the output to this file"},
		{name: "quiet", short: "-q", kind: kindSwitch, help: "print nothing; the exit code tells"},
	}
}

// call is one run of a tool.
type call struct {
	tool   *tool
	values map[string]value
	args   []string
	con    console
	server *client
}

func (c *call) get(name string) value { return c.values[name] }

// json reports whether the output is for programs.
func (c *call) json() bool { return c.get("json").on || c.get("format").text == "json" }

// emit writes the report where the flags say.
func (c *call) emit(r *report) error {
	if c.json() {
		text, err := r.json()
		if err != nil {
			return err
		}
		return c.print(text)
	}
	return c.print(r.terminal())
}

// print writes text where the flags say.
func (c *call) print(text string) error {
	if !c.get("quiet").on {
		if _, err := io.WriteString(c.con.stdout, text); err != nil {
			return fmt.Errorf("write to stdout: %w", err)
		}
	}
	if path := c.get("output").text; path != "" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return fmt.Errorf("--output: %w", err)
		}
	}
	return nil
}

// runTool parses the command line of t and runs it.
func runTool(t *tool, args []string, c console) int {
	rows := append(slices.Clone(t.rows), t.commonRows()...)
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "--help" }) {
		t.printHelp(c.stdout, rows)
		return exitOK
	}
	x, err := t.parse(rows, args)
	if err != nil {
		return usage(c, t.name, err)
	}
	for i := range rows {
		if text := rows[i].problem(x.values[rows[i].name]); text != "" {
			return usage(c, t.name, &usageError{text})
		}
	}
	x.con = c
	x.server = newClient(x.get("url").text, duration(x.get("timeout-seconds")))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := t.run(ctx, x); err != nil {
		if isUsage(err) {
			return usage(c, t.name, err)
		}
		fmt.Fprintln(c.stderr, err)
		return exitInvalid
	}
	return exitOK
}

func (t *tool) parse(rows []row, args []string) (*call, error) {
	set, positionals, err := parseLine(rows, len(t.args), args)
	if err != nil {
		return nil, err
	}
	for i, arg := range positionals {
		if p := t.args[i]; p.choices != nil && !slices.Contains(p.choices, arg) {
			return nil, &usageError{fmt.Sprintf("argument %s: invalid choice: '%s' (choose from %s)", p.name, arg, quoted(p.choices))}
		}
	}
	var missing []string
	for _, p := range t.args[len(positionals):] {
		missing = append(missing, p.name)
	}
	x := &call{tool: t, values: map[string]value{}, args: positionals}
	for i := range rows {
		r := &rows[i]
		v, ok := set[r.name]
		if !ok {
			v = r.defaultValue()
			if slices.Contains(t.required, r.name) {
				missing = append(missing, "--"+r.name)
			}
		}
		x.values[r.name] = v
	}
	if missing != nil {
		return nil, &usageError{"the following arguments are required: " + strings.Join(missing, ", ")}
	}
	return x, nil
}

func (t *tool) printHelp(w io.Writer, rows []row) {
	fmt.Fprintf(w, "usage: lmcache-go %s", t.name)
	for _, p := range t.args {
		fmt.Fprintf(w, " %s", p.shown())
	}
	fmt.Fprintf(w, " [flags]\n\n%s\n", t.summary)
	for _, p := range t.args {
		fmt.Fprintf(w, "\n  %s\n      %s\n", p.shown(), p.help)
	}
	fmt.Fprintf(w, "\n%s:\n", groupTools)
	for i := range rows {
		rows[i].printHelp(w)
	}
	fmt.Fprintf(w, "\nexit codes: 0, 1 the server refused or is not there, 2 usage\n")
}

func (p positional) shown() string {
	if p.choices != nil {
		return "{" + strings.Join(p.choices, ",") + "}"
	}
	return strings.ToUpper(p.name)
}

// toolCommand is a command with one tool.
func toolCommand(build func() *tool) command {
	t := build()
	return command{t.name, t.summary, func(args []string, c console) int { return runTool(t, args, c) }}
}

// toolGroup is a command whose first argument names the tool. Without one the
// reference ends with the code none.
func toolGroup(name, summary string, none int, tools ...*tool) command {
	return command{name, summary, func(args []string, c console) int {
		names := make([]string, len(tools))
		for i, t := range tools {
			names[i] = strings.TrimPrefix(t.name, name+" ")
			if len(args) > 0 && args[0] == names[i] {
				return runTool(t, args[1:], c)
			}
		}
		switch {
		case len(args) == 0:
			err := &usageError{"the following arguments are required: one of " + quoted(names)}
			return min(none, usage(c, name, err))
		case args[0] == "-h" || args[0] == "--help":
			fmt.Fprintf(c.stdout, "usage: lmcache-go %s {%s} [flags]\n\n%s\n\n", name, strings.Join(names, ","), summary)
			for i, t := range tools {
				fmt.Fprintf(c.stdout, "  %-9s %s\n", names[i], t.summary)
			}
			return exitOK
		}
		return usage(c, name, &usageError{fmt.Sprintf("argument action: invalid choice: '%s' (choose from %s)", args[0], quoted(names))})
	}}
}

// elapsed is milliseconds with two decimals.
func elapsed(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
