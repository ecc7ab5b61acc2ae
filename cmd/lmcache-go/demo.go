package main

import "github.com/lmcache-go/lmcache-go/internal/demo"

// demoCommand shows whole deployments: `lmcache-go demo pd`.
func demoCommand() command {
	return command{"demo", "run a whole deployment on this machine and verify it: demo pd", func(args []string, c console) int {
		return demo.Main(args, c.stdout, c.stderr)
	}}
}
