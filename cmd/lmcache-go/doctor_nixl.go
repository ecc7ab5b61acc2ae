package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lmcache-go/lmcache-go/nixl/nixldoctor"
)

// doctorCommand looks at what the machine has: `lmcache-go doctor gpu`, `doctor nixl`.
func doctorCommand() command {
	return command{"doctor", "say what this machine has and lacks: doctor gpu, doctor nixl", runDoctor}
}

// runDoctor picks the patient by the first word.
func runDoctor(args []string, c console) int {
	return pick("doctor", args, c, map[string]func([]string, console) int{
		"gpu":  runDoctorGPU,
		"nixl": func(args []string, c console) int { return nixldoctor.Main(args, c.stdout, c.stderr) },
	})
}

// pick runs the one of some actions that the first word names. Each prints its
// own help.
func pick(cmd string, args []string, c console, actions map[string]func([]string, console) int) int {
	names := make([]string, 0, len(actions))
	for name := range actions {
		names = append(names, name)
	}
	slices.Sort(names)
	list := strings.Join(names, ", ")
	switch {
	case len(args) == 0:
		return usage(c, cmd, &usageError{"the following arguments are required: one of " + list})
	case args[0] == "-h" || args[0] == "--help":
		fmt.Fprintf(c.stdout, "usage: lmcache-go %s %s [flags]\n\n`lmcache-go %s %s --help` prints the flags.\n", cmd, list, cmd, list)
		return exitOK
	}
	if action, ok := actions[args[0]]; ok {
		return action(args[1:], c)
	}
	return usage(c, cmd, &usageError{fmt.Sprintf("argument action: invalid choice: '%s' (choose from '%s')", args[0], list)})
}
