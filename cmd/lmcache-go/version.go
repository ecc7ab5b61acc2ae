package main

import (
	"context"
	"encoding/json"
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

func runVersion(args []string, c console) int { return runTool(versionTool(), args, c) }

// versionTool prints this program's version and, asked for, that of a server.
func versionTool() *tool {
	return &tool{
		name: "version", summary: "print version, commit and Go version; with --url also the version of the server there",
		run: func(ctx context.Context, t *call) error {
			b := thisBuild()
			r := newReport("Version", widthDefault)
			text := fmt.Sprintf("lmcache-go %s (commit %s, %s, %s/%s)\n", b.version, b.commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			r.add("version", "Version", b.version)
			r.add("commit", "Commit", b.commit)
			r.add("go", "Go", runtime.Version())
			r.add("platform", "Platform", runtime.GOOS+"/"+runtime.GOARCH)
			if t.get("url").given() {
				a, err := t.server.do(ctx, "GET", "/version", nil)
				if err != nil {
					return err
				}
				var server string
				if a.status != 200 || json.Unmarshal(a.body, &server) != nil {
					return a.failure(t.server.base + "/version")
				}
				text += "server " + server + "\n"
				r.add("server", "Server", server)
			}
			if t.json() {
				return t.emit(r)
			}
			return t.print(text)
		},
	}
}
