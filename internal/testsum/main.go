package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	err := command(os.Args[1:], os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, errFailed): // what failed has been printed
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
}

// errFailed says that the tests ran and that some failed.
var errFailed = errors.New("tests failed")

var errUsage = errors.New("usage: testsum run -name NAME -o FILE [-plain] -- COMMAND, or testsum total FILES")

func command(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch args[0] {
	case "run":
		flags := flag.NewFlagSet("run", flag.ContinueOnError)
		name := flags.String("name", "", "name of the stage")
		file := flags.String("o", "", "file for the tally")
		plain := flags.Bool("plain", false, "the command is one check, not go test -json")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		if *name == "" || *file == "" || flags.NArg() == 0 {
			return errUsage
		}
		t, err := runStage(*name, flags.Args(), *plain, out)
		if err != nil {
			return err
		}
		if err := t.save(*file); err != nil {
			return err
		}
		if t.Failed > 0 {
			return errFailed
		}
		return nil
	case "total":
		return total(args[1:], out)
	default:
		return errUsage
	}
}
