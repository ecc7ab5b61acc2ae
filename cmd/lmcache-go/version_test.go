package main

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuildOf(t *testing.T) {
	info := func(module string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: module}, Settings: settings}
	}
	rev := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef"}
	dirty := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	f := func(linked string, i *debug.BuildInfo, want build) {
		t.Helper()
		if got := buildOf(linked, i); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	f("v1.2.3", info("(devel)", rev), build{"v1.2.3", "g01234567"})
	f("v1.2.3", nil, build{"v1.2.3", "unknown"})
	f("", info("v1.0.0", rev), build{"v1.0.0", "g01234567"})
	f("", info("(devel)", rev), build{"0.0.0-g01234567", "g01234567"})
	f("", info("", rev, dirty), build{"0.0.0-g01234567-dirty", "g01234567"})
	f("", info(""), build{"0.0.0-unknown", "unknown"})
	f("", nil, build{"unknown", "unknown"})
}

func TestRunVersion(t *testing.T) {
	code, out, _ := runHere(t, noEnv, "version")
	require.Equal(t, exitOK, code)
	require.True(t, strings.HasPrefix(out, "lmcache-go "), out)
	require.Contains(t, out, "commit")
	code, again, _ := runHere(t, noEnv, "--version")
	require.Equal(t, exitOK, code)
	require.Equal(t, out, again)
	code, _, errs := runHere(t, noEnv, "version", "--bogus")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "lmcache-go version: error: unrecognized arguments: --bogus")
	code, out, _ = runHere(t, noEnv, "version", "--help")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "usage:")
}
