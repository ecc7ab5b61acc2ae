package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/bytesize"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver"
)

// stable takes out of a report what differs between runs.
func stable(out string) []byte {
	for _, r := range []struct{ pattern, with string }{
		{`lmcache-go \S+ \(commit \S+\)`, "lmcache-go VERSION (commit COMMIT)"},
		{`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`, "UUID................................"},
	} {
		out = regexp.MustCompile(r.pattern).ReplaceAllString(out, r.with)
	}
	return []byte(out)
}

func TestCheckGood(t *testing.T) {
	withServer(t, nil, errors.New("--check must not start anything"))
	port, web := strconv.Itoa(testutil.FreePort(t)), strconv.Itoa(testutil.FreePort(t))
	code, out, errs := runHere(t, vars("LMCACHE_LOG_LEVEL", "DEBUG"), "server", "--check", "--port", port, "--http-port", web,
		"--shm-name", "demo", "--max-workers", "8", "--instance-id", "prefiller")
	require.Equal(t, exitOK, code)
	require.Empty(t, errs)
	out = strings.NewReplacer(port, "PORT1", web, "PORT2").Replace(out)
	testutil.Golden(t, "check_good.txt", stable(out))
}

func TestCheckWithGPUs(t *testing.T) {
	h := fakeMachine(64*bytesize.GiB, 64*bytesize.GiB)
	h.gpus = func() ([]mpserver.GPUInfo, error) {
		return []mpserver.GPUInfo{
			{UUID: "d5a55c39-9e1d-4f00-8000-000000000000", Name: "NVIDIA H200", MemoryBytes: 140 * bytesize.GiB, UsedBytes: bytesize.GiB, PCIeGen: 5, PCIeWidth: 16, NUMANode: 1},
			{UUID: "d5a55c39-9e1d-4f00-8000-000000000001", Name: "NVIDIA H200", MemoryBytes: 140 * bytesize.GiB, UsedBytes: -1, NUMANode: -1},
		}, nil
	}
	code, out, _ := runOn(t, h, noEnv, "server", "--check", "--port", strconv.Itoa(testutil.FreePort(t)), "--no-http")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "GPU d5a55c39-9e1d-4f00-8000-000000000000: NVIDIA H200, 1 GiB used of 140 GiB, PCIe 5 x16, NUMA node 1\n")
	require.Contains(t, out, "000000000001: NVIDIA H200, 140 GiB\n", "what is not known is not told")
	require.Contains(t, out, `"lmcache.mp.mp_transfer_mode":"auto"`)
}

func TestCheckBad(t *testing.T) {
	withServer(t, nil, errors.New("--check must not start anything"))
	code, out, errs := runOn(t, fakeMachine(bytesize.GiB, 64*bytesize.MiB), vars("LMCACHE_COORDINATOR_URL", "http://c:9300"), "server", "--check",
		"--port", "0", "--no-http", "--transport", "grpc", "--chunk-size", "0", "--l1-size-gb", "100", "--shm-name", "demo",
		"--eviction-policy", "ARC", "--worker-reap-timeout-seconds", "5", "--enable-tracing")
	require.Equal(t, exitInvalid, code)
	require.Empty(t, errs, "the report is the answer")
	testutil.Golden(t, "check_bad.txt", stable(out))
}

// TestCheckTellsWhatCannotBeReadToo: a value that cannot be read hides nothing else.
func TestCheckTellsWhatCannotBeReadToo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	line := append(strings.Fields("--port abc --chunk-size x --bogus --shm-name --no-http --eviction-policy FIFO --transport grpc --l1-size-gb many --http-host a:1"),
		"--lookup-hash-log-dir", file+"/log")
	problems := []string{
		"argument --port: invalid int value: 'abc'",
		"argument --chunk-size: invalid int value: 'x'",
		"argument --shm-name: expected one argument",
		"argument --eviction-policy: invalid choice: 'FIFO'",
		"argument --l1-size-gb: invalid size value: 'many'",
		"unrecognized arguments: --bogus",
	}
	code, out, errs := runHere(t, noEnv, append([]string{"server"}, line...)...)
	require.Equal(t, exitUsage, code)
	require.Empty(t, out)
	for _, p := range problems {
		require.Contains(t, errs, "lmcache-go server: error: "+p)
	}
	code, out, errs = runHere(t, noEnv, append([]string{"server", "--check"}, line...)...)
	require.Equal(t, exitUsage, code)
	require.Empty(t, errs)
	for _, p := range append(problems, "--transport grpc is not served", "--lookup-hash-log-dir "+file+"/log cannot be written to", "--http-host takes an address without a port") {
		require.Contains(t, out, "\n  "+p)
	}
	require.Contains(t, out, "The server cannot start (9):")
	require.Regexp(t, `chunk-size +256 +default, as what was given cannot be read`, out)
	require.NotContains(t, out, "--kv-transfer-config", "there is no port to tell")
}

func TestCheckHashLog(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, checkHashLog(""))
	require.NoError(t, checkHashLog(filepath.Join(dir, "not", "yet")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "a check leaves nothing behind")
	require.ErrorContains(t, checkHashLog("/proc/nope"), "--lookup-hash-log-dir /proc/nope cannot be written to")
}

func TestNewUUID(t *testing.T) {
	a, b := newUUID(), newUUID()
	require.NotEqual(t, a, b)
	require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, a)
}
