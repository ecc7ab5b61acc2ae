package main

import "github.com/lmcache-go/lmcache-go/internal/simengine"

// engineCommand is a simulated vLLM to try a server with.
func engineCommand() command {
	return command{"engine", "run a simulated vLLM that loads and stores through a server: engine serve MODEL", func(args []string, c console) int {
		return simengine.Main(args, c.stdout, c.stderr)
	}}
}
