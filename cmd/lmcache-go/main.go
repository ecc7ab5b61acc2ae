// Command lmcache-go is a server of the LMCache MP protocol and the tools around
// it. `lmcache-go help` lists the subcommands.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], terminal()))
}
