package main

import (
	"errors"
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
			{UUID: "d5a55c39-9e1d-4f00-8000-000000000001", Name: "NVIDIA H200", MemoryBytes: 140 * bytesize.GiB, NUMANode: -1},
		}, nil
	}
	code, out, _ := runOn(t, h, noEnv, "server", "--check", "--port", strconv.Itoa(testutil.FreePort(t)), "--no-http")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "GPU d5a55c39-9e1d-4f00-8000-000000000000: NVIDIA H200, 1 GiB used of 140 GiB, PCIe 5 x16, NUMA node 1\n")
	require.Contains(t, out, "used of 140 GiB\n", "what is not known is not told")
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

func TestNewUUID(t *testing.T) {
	a, b := newUUID(), newUUID()
	require.NotEqual(t, a, b)
	require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, a)
}
