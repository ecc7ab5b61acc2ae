package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/bytesize"
)

// runHere runs the program in this process on a machine with plenty of room.
func runHere(t *testing.T, env func(string) (string, bool), args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runOn(t, fakeMachine(64*bytesize.GiB, 64*bytesize.GiB), env, args...)
}

func runOn(t *testing.T, h machine, env func(string) (string, bool), args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(args, console{stdout: &out, stderr: &errs, lookupEnv: env, host: h})
	return code, out.String(), errs.String()
}

func TestCommands(t *testing.T) {
	code, out, _ := runHere(t, noEnv)
	require.Equal(t, exitInvalid, code, "no command is an error, as in the reference")
	for _, c := range commands() {
		require.Contains(t, out, "  "+c.name+" ")
	}
	for _, line := range []string{"help", "-h", "--help"} {
		code, help, _ := runHere(t, noEnv, line)
		require.Equal(t, exitOK, code)
		require.Equal(t, out, help)
	}
	code, _, errs := runHere(t, noEnv, "serve")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "lmcache-go: error: argument command: invalid choice: 'serve' (choose from 'server', 'ping', 'status', 'describe', 'kvcache', 'quota', 'doctor', 'nixl', 'engine', 'demo', 'version', 'help')")
}

func TestUsageErrors(t *testing.T) {
	code, out, errs := runHere(t, noEnv, "server", "--bogus-flag")
	require.Equal(t, exitUsage, code)
	require.Empty(t, out)
	require.Contains(t, errs, "lmcache-go server: error: unrecognized arguments: --bogus-flag")
	code, _, errs = runHere(t, noEnv, "server", "--eviction-policy", "FIFO")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "argument --eviction-policy: invalid choice: 'FIFO' (choose from 'LRU', 'ARC', 'IsolatedLRU', 'noop')")
}

func TestServerHelp(t *testing.T) {
	for _, args := range [][]string{{"server", "--help"}, {"server", "--bogus", "-h"}, {"help", "server"}} {
		code, out, _ := runHere(t, noEnv, args...)
		require.Equal(t, exitOK, code)
		for _, g := range groups {
			require.Contains(t, out, "\n"+g+":\n")
		}
		for _, r := range serverFlags() {
			require.Equal(t, !r.hidden, strings.Contains(out, "--"+r.name+r.argument()+"\n"), r.name)
			if r.env != "" {
				require.Contains(t, out, r.env)
			}
		}
		_, ours, _ := strings.Cut(out, groupOurs+":")
		require.Contains(t, ours, "--on-register-failure")
		require.NotContains(t, ours, "--l1-size-gb")
		for line := range strings.Lines(out) {
			require.LessOrEqual(t, len(line), 101, line)
		}
	}
}
