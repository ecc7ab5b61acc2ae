package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// vars is an environment.
func vars(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func TestPrecedence(t *testing.T) {
	f := func(args string, env func(string) (string, bool), want string, from origin) {
		t.Helper()
		s, err := readSettings(strings.Fields(args), env)
		require.NoError(t, err)
		if v := s.get("log-level"); v.text != want || v.origin != from {
			t.Errorf("%s: got %s from %s, want %s from %s", args, v.text, v.origin, want, from)
		}
	}
	f("", noEnv, "INFO", fromDefault)
	f("", vars("LMCACHE_LOG_LEVEL", ""), "INFO", fromDefault)
	f("", vars("LMCACHE_LOG_LEVEL", "DEBUG"), "DEBUG", "LMCACHE_LOG_LEVEL")
	f("", vars("LMCACHE_LOG_LEVEL", "warning"), "WARNING", "LMCACHE_LOG_LEVEL")
	f("", vars("LMCACHE_LOG_LEVEL", "chatty"), "INFO", "LMCACHE_LOG_LEVEL") // as the reference
	f("--log-level ERROR", vars("LMCACHE_LOG_LEVEL", "DEBUG"), "ERROR", fromFlag)
}

func TestEnvironment(t *testing.T) {
	problems := func(env ...string) string {
		s, err := readSettings(nil, vars(env...))
		require.NotNil(t, s)
		s.derive("l1-size-gb", value{n: 1 << 30, text: "1"}, "test")
		if err = s.problems(err); err != nil {
			return err.Error()
		}
		return ""
	}
	// What is not served is refused under the name that has to change.
	require.Equal(t, "LMCACHE_COORDINATOR_URL=http://c is not served: membership at a coordinator is not built yet: leave it out",
		problems("LMCACHE_COORDINATOR_URL", "http://c"))
	require.Equal(t, "LMCACHE_COORDINATOR_HEARTBEAT_INTERVAL is not a number: 'x'", problems("LMCACHE_COORDINATOR_HEARTBEAT_INTERVAL", "x"))
	require.Contains(t, problems("LMCACHE_COORDINATOR_EVENT_FLUSH_INTERVAL", "-1"), "LMCACHE_COORDINATOR_EVENT_FLUSH_INTERVAL must be")
	require.Contains(t, problems("LMCACHE_COORDINATOR_EVENT_REPORTING", "Yes"), "LMCACHE_COORDINATOR_EVENT_REPORTING=true is not served")
	require.Empty(t, problems("LMCACHE_COORDINATOR_EVENT_REPORTING", "no"))
	require.Empty(t, problems("LMCACHE_COORDINATOR_HEARTBEAT_INTERVAL", "5"), "the default may be spelled out")
	require.Empty(t, problems("LMCACHE_DEVICE_BACKEND", " CUDA "))
	require.Empty(t, problems("LMCACHE_DEVICE_BACKEND", "cpu"))
	require.Equal(t, "LMCACHE_DEVICE_BACKEND=npu is not served: this server copies for NVIDIA GPUs and for CPUs, and each worker says which: leave it out",
		problems("LMCACHE_DEVICE_BACKEND", "npu"))
	require.Empty(t, problems("LMCACHE_TRACK_USAGE", "true", "LMCACHE_USAGE_TRACK_URL", "http://x"))

	s, err := readSettings(nil, vars("PYTHONHASHSEED", "42"))
	require.NoError(t, err)
	require.Equal(t, "42", s.options().PythonHashSeed)
}

func TestAllProblemsAtOnce(t *testing.T) {
	s, err := readSettings(strings.Fields("--transport grpc --chunk-size 0 --worker-reap-timeout-seconds 5 --l1-align-bytes 3000"),
		vars("LMCACHE_COORDINATOR_HEARTBEAT_INTERVAL", "x"))
	s.derive("l1-size-gb", value{n: 1 << 30, text: "1"}, "test")
	got := flatten(s.problems(err, errors.New("--l1-size-gb: from the machine")))
	require.Len(t, got, 6)
	for i, prefix := range []string{
		"LMCACHE_COORDINATOR_HEARTBEAT_INTERVAL ", "--l1-size-gb", "--transport ", "--chunk-size ",
		"--worker-reap-timeout-seconds ", "--l1-align-bytes ",
	} {
		require.True(t, strings.HasPrefix(got[i].Error(), prefix), "%d: %v", i, got[i])
	}
}

func TestEffective(t *testing.T) {
	s := read(t, "--port", "6555", "--max-workers", "2")
	used, idle := s.effective()
	require.Contains(t, used, setting{"port", "6555", "flag"})
	require.Contains(t, used, setting{"chunk-size", "256", "default"})
	require.Contains(t, used, setting{"l1-size-gb", "1 GiB", "derived: test"})
	require.Contains(t, used, setting{"shm-name", `""`, "default"})
	require.Contains(t, used, setting{"prompt-cache-size", "64 MiB", "default"})
	require.Equal(t, []setting{{"max-workers", "2", laneWhy}}, idle)
}

func TestFlatten(t *testing.T) {
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	require.Equal(t, []error{a, b, c}, flatten(errors.Join(a, errors.Join(b, nil), c)))
	require.Empty(t, flatten(nil))
	require.Empty(t, flatten(errors.Join(nil, nil)))
}

func TestShownInConfig(t *testing.T) {
	s, err := readSettings(strings.Fields("--max-workers 4 --max-cpu-workers 2 --extra-logging-interval 7 --enable-extra-logging --disable-logging --isolated-ipc --disable-metrics"), noEnv)
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"mp.max_workers": int64(4), "mp.max_gpu_workers": int64(4), "mp.max_cpu_workers": int64(2),
		"observability.extra_logging_interval": 7.0, "observability.extra_logging_enabled": true,
		"observability.logging_enabled": false, "mp.isolated_ipc": true, "observability.enabled": true, "observability.metrics_enabled": false,
	}, s.options().Shown)
	known := map[string]stance{}
	for _, r := range serverFlags() {
		known[r.name] = r.stance
	}
	for name := range shownAt {
		require.Equal(t, accepted, known[name], name)
	}
	s, err = readSettings(nil, noEnv)
	require.NoError(t, err)
	require.Nil(t, s.options().Shown)
}
