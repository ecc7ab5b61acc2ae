package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Exit codes. The reference ends with 3 for a busy port and 143 after SIGTERM;
// nothing depends on either (server-surface 1.4, 3).
const (
	exitOK      = 0
	exitInvalid = 1 // invalid configuration, busy port, failure at run time
	exitUsage   = 2 // the command line cannot be read
)

// console is everything that a subcommand touches besides the network.
type console struct {
	stdout, stderr io.Writer
	// lookupEnv is os.LookupEnv.
	lookupEnv func(string) (string, bool)
	host      machine
}

func terminal() console {
	return console{stdout: os.Stdout, stderr: os.Stderr, lookupEnv: os.LookupEnv, host: thisMachine()}
}

// env returns a variable, "" when it is not set.
func (c console) env(name string) string {
	v, _ := c.lookupEnv(name)
	return v
}

// command is one subcommand.
type command struct {
	name, summary string
	run           func(args []string, c console) int
}

func commands() []command {
	return []command{
		{"server", "serve the MP protocol and its HTTP surface; --check only looks whether it could", runServer},
		toolCommand(pingTool),
		toolCommand(statusTool),
		toolCommand(describeTool),
		kvcacheCommand(),
		quotaCommand(),
		doctorCommand(),
		nixlCommand(),
		engineCommand(),
		demoCommand(),
		{"version", "print the version; --url asks a server for its own", runVersion},
		{"help", "print this list", runHelp},
	}
}

// run is the whole program but for the exit.
func run(args []string, c console) int {
	if len(args) == 0 {
		printCommands(c.stdout)
		return exitInvalid // as the reference
	}
	name := args[0]
	switch name {
	case "-h", "--help":
		name = "help"
	case "-V", "--version":
		name = "version"
	}
	all := commands()
	if i := slices.IndexFunc(all, func(cmd command) bool { return cmd.name == name }); i >= 0 {
		return all[i].run(args[1:], c)
	}
	names := make([]string, len(all))
	for i, cmd := range all {
		names[i] = "'" + cmd.name + "'"
	}
	return usage(c, "", &usageError{fmt.Sprintf("argument command: invalid choice: '%s' (choose from %s)", args[0], strings.Join(names, ", "))})
}

func printCommands(w io.Writer) {
	fmt.Fprintf(w, "usage: lmcache-go COMMAND [flags]\n\ncommands:\n")
	for _, cmd := range commands() {
		fmt.Fprintf(w, "  %-9s %s\n", cmd.name, cmd.summary)
	}
	fmt.Fprintf(w, "\n`lmcache-go COMMAND --help` prints the flags of one.\n")
}

func runHelp(args []string, c console) int {
	if len(args) > 0 && args[0] != "help" {
		all := commands()
		if i := slices.IndexFunc(all, func(cmd command) bool { return cmd.name == args[0] }); i >= 0 {
			return all[i].run(append(slices.Clone(args[1:]), "--help"), c)
		}
	}
	printCommands(c.stdout)
	return exitOK
}

// usageError is a command line that cannot be read; its text is argparse's.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// usage reports everything in a command line that cannot be read.
func usage(c console, cmd string, err error) int {
	prog := "lmcache-go"
	if cmd != "" {
		prog += " " + cmd
	}
	fmt.Fprintf(c.stderr, "usage: %s [flags]; see %s --help\n", prog, prog)
	for _, e := range flatten(err) {
		fmt.Fprintf(c.stderr, "%s: error: %v\n", prog, e)
	}
	return exitUsage
}

// invalid reports everything that is wrong with a configuration, a line each.
func invalid(c console, cmd string, err error) int {
	for _, e := range flatten(err) {
		fmt.Fprintf(c.stderr, "lmcache-go %s: error: %v\n", cmd, e)
	}
	return exitInvalid
}

// flatten lists the errors of an errors.Join, however nested.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	// Only a bare join is taken apart: one that is wrapped belongs to its sentence.
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range many.Unwrap() {
		out = append(out, flatten(e)...)
	}
	return out
}

// isUsage reports whether err is about the command line and not what it says.
func isUsage(err error) bool {
	var u *usageError
	return errors.As(err, &u)
}
