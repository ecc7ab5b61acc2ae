package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNIXLBench(t *testing.T) {
	code, out, _ := runHere(t, noEnv, "nixl", "bench", "--help")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "usage: lmcache-go nixl bench")
	code, _, errs := runHere(t, noEnv, "nixl", "bench", "--lib", filepath.Join(t.TempDir(), "none"))
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "no such file")
}
