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
