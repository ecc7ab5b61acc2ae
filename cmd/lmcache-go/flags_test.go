package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

func noEnv(string) (string, bool) { return "", false }

// read makes settings from a command line without environment.
func read(t *testing.T, args ...string) *settings {
	t.Helper()
	s, err := readSettings(args, noEnv)
	require.NoError(t, err)
	if !s.get("l1-size-gb").given() {
		s.derive("l1-size-gb", value{n: 1 << 30, text: "1"}, "test")
	}
	return s
}

// TestEveryReferenceFlag holds the table against the reference's: every flag is
// there, written the same way, with the same default but for the intended ones.
func TestEveryReferenceFlag(t *testing.T) {
	intended := map[string]string{ // what `server --port N` alone needs
		"supported-transfer-mode": "auto",
		"eviction-policy":         "LRU",
		"runtime-plugin-config":   "{}",
	}
	kinds := map[kind]string{
		kindString: "value", kindInt: "value", kindFloat: "value", kindSize: "value",
		kindBool: "pair", kindSwitch: "switch", kindList: "list", kindAppend: "append",
	}
	data, err := os.ReadFile("testdata/reference_flags.txt")
	require.NoError(t, err)
	ours := map[string]*row{}
	rows := serverFlags()
	for i := range rows {
		require.NotContains(t, ours, rows[i].name, "two rows")
		ours[rows[i].name] = &rows[i]
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		require.Len(t, f, 3, line)
		r, ok := ours[f[0]]
		if !ok {
			t.Errorf("--%s is missing", f[0])
			continue
		}
		seen[r.name] = true
		want := strings.TrimPrefix(f[2], "-")
		if w, ok := intended[r.name]; ok {
			want = w
		}
		def := r.defaultValue()
		if wantValue, err := r.convert(want); kinds[r.kind] != f[1] || (want != "" && (err != nil || !r.same(def, wantValue))) || (want == "" && def.text != "") {
			t.Errorf("--%s: is a %s with default %q, want %s %q", r.name, kinds[r.kind], def.text, f[1], want)
		}
		require.NotEqual(t, groupOurs, r.group, r.name)
	}
	require.Len(t, seen, 92, "the list is complete")
	for name, r := range ours {
		if !seen[name] {
			require.Equal(t, groupOurs, r.group, "--%s is ours and must be grouped apart", name)
		}
	}
}

// TestRowsAreComplete: the rules that every row obeys.
func TestRowsAreComplete(t *testing.T) {
	rows := serverFlags()
	for i := range rows {
		r := &rows[i]
		require.Contains(t, groups, r.group, r.name)
		require.NotEmpty(t, r.help, r.name)
		require.Empty(t, r.problem(r.defaultValue()), "the default of --%s must pass", r.name)
		command := r.name == "check" || r.name == "log-format" || r.name == "log-level"
		switch r.stance {
		case served:
			require.Empty(t, r.why, r.name)
			require.True(t, r.apply != nil || command, "--%s is served and does nothing", r.name)
		default:
			require.NotEmpty(t, r.why, r.name)
			require.Nil(t, r.apply, r.name)
			require.NotContains(t, r.why, "\n", r.name)
		}
	}
	require.NoError(t, read(t).problems(), "no flag at all must be a valid configuration")
}

// TestRefusals: what is not served is refused by name when it is asked for, and
// taken when the default is spelled out.
func TestRefusals(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		err := read(t, strings.Fields(line)...).problems()
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", line, err)
		case want != "" && err == nil:
			t.Errorf("%s is accepted", line)
		case want != "" && !strings.Contains(err.Error(), want):
			t.Errorf("%s: got %v, want %s", line, err, want)
		}
	}
	f("--transport zmq", "")
	f("--transport grpc", "--transport grpc is not served: use zmq")
	f("--engine-type blend", "--engine-type blend is not served")
	f("--isolated-ipc", "")
	f("--no-isolated-ipc", "")
	f("--separate-object-groups", "")
	f("--enable-segmented-prefix --enable-dedup-content --enable-blend-reorder", "--enable-dedup-content is not served")
	f("--enable", "")
	f("--enable transfer_query", "--enable transfer_query is not served")
	f("--server-module {}", "--server-module {} is not served")
	f("--runtime-plugin-locations a.py", "--runtime-plugin-locations a.py is not served")
	f("--runtime-plugin-config {}", "")
	f(`--runtime-plugin-config {"a":1}`, "--runtime-plugin-config is not served")
	f("--runtime-plugin-config x", "--runtime-plugin-config is not a JSON object")
	f("--run-script-api-enabled", "--run-script-api-enabled is not served")
	f("--script-allowed-imports os", "--script-allowed-imports os is not served")
	f("--kv-event-log-size 0", "")
	f("--kv-event-log-size 100", "")
	f("--kv-event-log-size -1", "--kv-event-log-size must be at least 0")
	f("--p2p-advertise-url h:1", "--p2p-advertise-url h:1 is not served")
	f("--p2p-lookup-timeout 30.0", "")
	f("--p2p-lookup-timeout 31", "--p2p-lookup-timeout 31 is not served")
	f("--l1-manager {}", "--l1-manager {} is not served")
	f("--l1-use-hugepages", "--l1-use-hugepages is not served")
	f("--l1-devdax-path /dev/dax0", "--l1-devdax-path /dev/dax0 is not served")
	f("--gds-l1-path /x", "--gds-l1-path /x is not served")
	f(`--l2-adapter {"type":"fs"} --l2-adapter {"type":"s3"}`, `--l2-adapter type "fs" is not served: there is no L2 yet; type "s3" is not served`)
	f("--l2-adapter fs", `"fs" is not a JSON object with a type`)
	f("--l2-store-policy default", "")
	f("--l2-store-policy skip_l1", "--l2-store-policy skip_l1 is not served")
	f("--l2-prefetch-policy retain", "--l2-prefetch-policy retain is not served")
	f("--enable-tracing --otlp-endpoint http://localhost:4317", "--enable-tracing is not served")
	f("--trace-level storage", "--trace-level storage is not served")
	f("--metrics-sample-rate 0.01", "")
	f("--metrics-sample-rate 0", "--metrics-sample-rate must be above 0")
	f("--coordinator-url http://c", "--coordinator-url http://c is not served")
	f("--coordinator-event-transport kafka", "--coordinator-event-transport kafka is not served")
	f("--coordinator-l2-event-reporting", "--coordinator-l2-event-reporting is not served")
	f("--eviction-policy noop", "")
	f("--eviction-policy IsolatedLRU", "")
	f("--eviction-policy ARC", "")
	f("--hash-algorithm sha256_cbor", "")
	f("--hash-algorithm md5", "--hash-algorithm")
}

// TestAccepted: harmless flags are taken with any value and have no effect.
func TestAccepted(t *testing.T) {
	s := read(t, "--max-workers", "8", "--max-gpu-workers", "2", "--no-l1-use-lazy", "--l1-init-size-gb", "5", "--prometheus-port", "9",
		"--disable-logging", "--format", "json", "-q", "--gds-l1-backend", "cufile", "--l2-prefetch-max-in-flight", "3")
	require.NoError(t, s.problems())
	got := s.options()
	require.Len(t, got.Shown, 6, "GET /config tells them all the same")
	got.Shown = nil
	require.Equal(t, read(t).options(), got)
	_, idle := s.effective()
	require.Len(t, idle, 10)
	for _, line := range idle {
		require.NotEmpty(t, line.origin, "%s says why it has no effect", line.name)
	}
	// Even there, nonsense is not taken.
	require.ErrorContains(t, read(t, "--grpc-server-workers", "0").problems(), "--grpc-server-workers must be at least 1")
	require.ErrorContains(t, read(t, "--extra-logging-interval", "0").problems(), "--extra-logging-interval")
}

// TestZeroIsNotTheDefault: a zero field of Options means its default, so a zero
// on the command line must not reach one silently.
func TestZeroIsNotTheDefault(t *testing.T) {
	for _, flag := range []string{
		"chunk-size", "l1-size-gb", "l1-align-bytes", "l1-write-ttl-seconds", "l1-read-ttl-seconds", "session-ttl-seconds",
		"worker-registration-grace-seconds", "eviction-trigger-watermark", "eviction-ratio", "lane-depth", "max-message-size",
		"prompt-cache-size", "connection-grace-seconds", "pending-lookup-timeout-seconds", "session-grace-seconds", "drain-timeout-seconds",
		"lookup-hash-log-rotation-interval", "lookup-hash-log-rotation-max-size", "lookup-hash-log-max-files",
	} {
		require.ErrorContains(t, read(t, "--"+flag, "0").problems(), "--"+flag+" must be", flag)
	}
	require.ErrorContains(t, read(t, "--host", "").problems(), "--host is empty")
	require.NoError(t, read(t, "--worker-reap-timeout-seconds", "0").problems())
	require.Negative(t, read(t, "--worker-reap-timeout-seconds", "0").options().WorkerReapTimeout, "0 switches reaping off")
}

// TestEveryServedFlagTurnsSomething sets each served flag to another value and
// requires Options to change.
func TestEveryServedFlagTurnsSomething(t *testing.T) {
	other := map[string]string{
		"instance-id": "prefiller", "host": "0.0.0.0", "port": "6555", "chunk-size": "16", "null-block-id": "3",
		"hash-algorithm": "sha256_cbor", "supported-transfer-mode": "engine_driven", "shm-name": "pool",
		"worker-reap-timeout-seconds": "60", "session-ttl-seconds": "1.5", "worker-registration-grace-seconds": "200",
		"l1-size-gb": "1.5", "l1-align-bytes": "8192", "l1-write-ttl-seconds": "2", "l1-read-ttl-seconds": "3",
		"eviction-policy": "noop", "eviction-trigger-watermark": "0.5", "eviction-ratio": "0.1",
		"http-host": "0.0.0.0", "http-port": "8090", "on-register-failure": "degrade", "workers": "3", "lane-depth": "5",
		"max-message-size": "64MiB", "prompt-cache-size": "1MiB", "connection-grace-seconds": "2", "pending-lookup-timeout-seconds": "0.5",
		"session-grace-seconds": "7", "drain-timeout-seconds": "8", "python-hash-seed": "0",
		"metrics-sample-rate": "1", "lookup-hash-log-dir": "x", "lookup-hash-log-rotation-interval": "60", "lookup-hash-log-rotation-max-size": "1000", "lookup-hash-log-max-files": "7",
		"kv-event-log-size": "100",
	}
	base := read(t).options()
	rows := serverFlags()
	for i := range rows {
		r := &rows[i]
		if r.apply == nil {
			continue
		}
		args := []string{"--" + r.name}
		if r.kind != kindSwitch && r.kind != kindBool {
			v, ok := other[r.name]
			require.True(t, ok, "--%s needs a value in this test", r.name)
			args = append(args, v)
		}
		s := read(t, args...)
		require.NoError(t, s.problems(), r.name)
		require.False(t, reflect.DeepEqual(base, s.options()), "--%s changes nothing", r.name)
	}
	o := read(t, "--l1-size-gb", "1.5", "--no-http", "--port", "0").options()
	require.Equal(t, int64(1610612736), o.L1.SizeBytes)
	require.Equal(t, -1, o.HTTPPort)
	require.Zero(t, o.Port)
}

// TestDefaultsAreTheServers: the defaults of the table and those of Options are
// the same, so that --check tells the truth about a library user's server, too.
func TestDefaultsAreTheServers(t *testing.T) {
	require.NoError(t, mpserver.Options{L1: mpserver.L1Options{SizeBytes: 1 << 30}}.Check())
	o := read(t).options()
	require.Equal(t, mpserver.TransferAuto, o.TransferMode)
	require.Equal(t, mpserver.EvictLRU, o.L1.EvictionPolicy)
	require.Equal(t, 256, o.ChunkSize)
	require.Equal(t, "localhost", o.Host)
	require.Equal(t, "127.0.0.1", o.HTTPHost)
}

func TestHostFlag(t *testing.T) {
	f := func(host, want string) {
		t.Helper()
		err := read(t, "--host", host).problems()
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("--host %s: got %v, want %q", host, err, want)
		}
	}
	f("localhost", "")
	f("0.0.0.0", "")
	f("*", "")
	f("::1", "")
	f("tcp://localhost", "write localhost")
	f("localhost:6555", "write --host localhost --port 6555")
	f("a/b", "is not an address")
}

func TestShmNameFlag(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		err := read(t, "--shm-name", name).problems()
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("--shm-name %s: got %v, want %q", name, err, want)
		}
	}
	f("pool", "")
	f("/pool", "")
	f("lmcache_l1_pool_x", "")
	f("a/b", "is not a name")
	f("lmcache_l1_pool_", "is not a name")
	f(strings.Repeat("x", 250), "at most 255")
	require.Equal(t, "lmcache_l1_pool_pool", mpserver.SegmentName("/pool"))
	require.Equal(t, "lmcache_l1_pool_pool", mpserver.SegmentName("lmcache_l1_pool_pool"))
	require.Empty(t, mpserver.SegmentName(""))
}
