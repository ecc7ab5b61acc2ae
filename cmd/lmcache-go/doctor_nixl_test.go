package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDoctorNIXL(t *testing.T) {
	code, out, _ := runHere(t, noEnv, "doctor", "nixl", "--lib", filepath.Join(t.TempDir(), "none"))
	require.Equal(t, exitInvalid, code)
	require.Contains(t, out, "PROBLEM: no NIXL library")
	for _, cmd := range []string{"doctor", "nixl"} {
		code, out, _ = runHere(t, noEnv, cmd, "--help")
		require.Equal(t, exitOK, code)
		require.Contains(t, out, "usage: lmcache-go "+cmd)
		code, _, errs := runHere(t, noEnv, cmd)
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "are required")
		code, _, errs = runHere(t, noEnv, cmd, "dance")
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "invalid choice: 'dance'")
	}
}
