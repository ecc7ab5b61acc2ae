package main

import "github.com/lmcache-go/lmcache-go/nixl/nixlbench"

// nixlCommand is everything around package nixl: `lmcache-go nixl bench`.
func nixlCommand() command {
	return command{"nixl", "measure transfers through NIXL: nixl bench", runNIXL}
}

func runNIXL(args []string, c console) int {
	return pick("nixl", args, c, map[string]func([]string, console) int{
		"bench": func(args []string, c console) int { return nixlbench.Main(args, c.stdout, c.stderr) },
	})
}
