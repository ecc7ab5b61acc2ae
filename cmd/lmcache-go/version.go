package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the linker: -ldflags "-X main.version=v1.2.3".
var version string

// build is what this binary knows of where it comes from.
type build struct{ version, commit string }

func thisBuild() build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(version, info)
}

// buildOf prefers the linker's version, then the module's, then the commit that
// the Go command stamped.
func buildOf(linked string, info *debug.BuildInfo) build {
	b := build{version: linked, commit: "unknown"}
	if info == nil {
		if b.version == "" {
			b.version = "unknown"
		}
		return b
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && s.Value != "":
			b.commit = "g" + s.Value[:min(len(s.Value), 8)] // as git describe and the reference write it
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if b.version == "" && info.Main.Version != "" && info.Main.Version != "(devel)" {
		b.version = info.Main.Version
	}
	if b.version == "" {
		b.version = "0.0.0-" + b.commit + dirty
	}
	return b
}

func runVersion(args []string, c console) int {
	if len(args) > 0 {
		if args[0] == "-h" || args[0] == "--help" {
			fmt.Fprintf(c.stdout, "usage: lmcache-go version\n\nprints version, commit and Go version\n")
			return exitOK
		}
		return usage(c, "version", &usageError{"unrecognized arguments: " + args[0]})
	}
	b := thisBuild()
	fmt.Fprintf(c.stdout, "lmcache-go %s (commit %s, %s, %s/%s)\n", b.version, b.commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return exitOK
}
