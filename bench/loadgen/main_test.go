package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var shmNumber atomic.Int64

// startServer runs our server in this process, with or without a shared pool.
func startServer(t *testing.T, mode string) (url, segment string) {
	t.Helper()
	o := mpserver.Options{Host: "127.0.0.1", HTTPPort: -1, ChunkSize: 64, L1: mpserver.L1Options{SizeBytes: 64 << 20}}
	if mode == "shm" {
		o.L1.ShmName = fmt.Sprintf("loadgen_test_%d_%d", os.Getpid(), shmNumber.Add(1))
		segment = "/dev/shm/lmcache_l1_pool_" + o.L1.ShmName
	}
	s, err := mpserver.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return s.Addr(), segment
}

// drive runs the command line and returns its JSON.
func drive(t *testing.T, args ...string) (*result, int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code := realMain(append([]string{"--json", "--seconds", "0.1", "--timeout", "20s"}, args...), &out, &errOut)
	r := &result{}
	require.NoError(t, json.Unmarshal(out.Bytes(), r), "%s%s", out.String(), errOut.String())
	return r, code
}

// TestDrivesOurServer runs every workload against the real thing.
func TestDrivesOurServer(t *testing.T) {
	for _, mode := range []string{"shm", "pickle"} {
		url, _ := startServer(t, mode)
		for _, transport := range []string{"tcp", "zmq"} {
			f := func(ops string, want []string, args ...string) *result {
				t.Helper()
				r, code := drive(t, append([]string{
					"--url", url, "--mode", mode, "--transport", transport, "--clear", "--ops", ops,
					"--layout", "tiny", "--tokens", "200", "--chunks", "3", "--prefill", "2",
				}, args...)...)
				require.Zero(t, code, "%s %s %s: %v", mode, transport, ops, r.Errors)
				require.Empty(t, r.Errors)
				for _, op := range want {
					require.Positive(t, r.Ops[op].N, "%s %s %s: no %s", mode, transport, ops, op)
				}
				for _, c := range []string{"store_failed", "retrieve_failed", "verify_failed", "chunks_refused"} {
					require.Zero(t, r.Counters[c], "%s %s %s: %s", mode, transport, ops, c)
				}
				return r
			}
			f("ping", []string{"ping"}, "--depth", "16", "--clients", "2", "--server-pid", fmt.Sprint(os.Getpid()))
			f("noop", []string{"noop"})
			f("chunk_size", []string{"chunk_size"})
			r := f("lookup", []string{"lookup", "cycle"})
			require.Zero(t, r.Counters["hit_chunks"])
			f("lookup", []string{"lookup", "cycle"}, "--prompts", "3", "--shared-prefix", "64", "--depth", "4")
			r = f("lookup", []string{"lookup", "cycle"}, "--hit", "--depth", "3", "--warmup", "0.02")
			require.Positive(t, r.Counters["hit_chunks"])
			require.Equal(t, r.Counters["want_chunks"], r.Counters["hit_chunks"])
			r = f("store", []string{"store", "cycle"}, "--audit", "2", "--clients", "2")
			require.Equal(t, r.Counters["audit_want_chunks"], r.Counters["audit_hit_chunks"])
			r = f("retrieve", []string{"retrieve", "lookup", "cycle"}, "--depth", "4")
			require.Equal(t, r.Counters["want_chunks"], r.Counters["hit_chunks"])
			require.Equal(t, int64(r.Ops["retrieve"].N), r.Counters["verified"])
			require.Positive(t, r.Ops["retrieve"].GBsBusy)
			f("mixed", []string{"retrieve", "store", "cycle"}, "--clients", "2", "--depth", "2")
			if mode == "shm" {
				r = f("retrieve", []string{"retrieve"}, "--no-copy")
				require.Zero(t, r.Ops["retrieve"].GBsBusy)
				f("store", []string{"store"}, "--no-copy")
			}
		}
	}
}

// TestDamageIsSeen is the control of the verification: with another hand
// changing bytes in the pool, the exit status is 1.
func TestDamageIsSeen(t *testing.T) {
	url, segment := startServer(t, "shm")
	stop := make(chan struct{})
	ended := make(chan error, 1)
	f, err := os.OpenFile(segment, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	go func() {
		// Zeros over the first MiB, where the first objects lie.
		zero := make([]byte, 1<<20)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				ended <- nil
				return
			case <-tick.C:
			}
			if _, err := f.WriteAt(zero, 0); err != nil {
				ended <- err
				return
			}
		}
	}()
	r, code := drive(t, "--url", url, "--ops", "retrieve", "--layout", "tiny", "--chunks", "3", "--prefill", "4")
	close(stop)
	require.NoError(t, <-ended)
	require.Equal(t, 1, code)
	require.Positive(t, r.Counters["verify_failed"])
}

func TestRefusals(t *testing.T) {
	url, _ := startServer(t, "shm")
	f := func(want string, code int, args ...string) {
		t.Helper()
		var out, errOut bytes.Buffer
		got := realMain(args, &out, &errOut)
		require.Equal(t, code, got, errOut.String())
		require.Contains(t, errOut.String(), want)
	}
	f("--ops nonsense", 2, "--ops", "nonsense")
	f("--depth 0", 2, "--depth", "0")
	f("--clients 0: want 1 to 999\n--depth", 2, "--clients", "0", "--depth", "0")
	f("a hit needs a stored prompt", 2, "--ops", "retrieve", "--prefill", "0")
	f("unexpected argument", 2, "extra")
	f("--shared-prefix", 2, "--shared-prefix", "9000")
	f("--fill huge", 2, "--fill", "huge")
	f("--mode shm", 2, "--fill", "tiny", "--mode", "pickle")
	f("--requests must not be negative", 2, "--requests", "-1")
	f("want tcp://", 2, "--url", "ipc:///tmp/x")
	f("flag provided but not defined", 2, "--no-such-flag")
	f("Usage", 0, "--help")
	f("negotiated shm, --mode is pickle", 1, "--url", url, "--ops", "store", "--mode", "pickle")
	f("no such file", 1, "--report", filepath.Join(t.TempDir(), "none"))
	f("refused", 1, "--url", "tcp://127.0.0.1:1")
}

// A run can end by a number of requests, and says what one thread copied beside it.
func TestRequestsAndMemcpy(t *testing.T) {
	url, _ := startServer(t, "shm")
	for _, ops := range []string{"store", "retrieve"} {
		r, code := drive(t, "--url", url, "--ops", ops, "--layout", "tiny", "--seconds", "60", "--requests", "7", "--depth", "3")
		require.Zero(t, code, r.Errors)
		require.Equal(t, 7, r.Ops[ops].N)
		require.Positive(t, r.MemcpyGBs)
	}
	r, code := drive(t, "--url", url, "--ops", "store", "--layout", "tiny", "--no-copy", "--requests", "1")
	require.Zero(t, code, r.Errors)
	require.Zero(t, r.MemcpyGBs, "nothing was copied")
}

// What fills the pool leaves no room but by eviction, and nothing is refused.
func TestFill(t *testing.T) {
	url, _ := startServer(t, "shm")
	run := func(args ...string) *result {
		r, code := drive(t, append([]string{"--url", url, "--ops", "store", "--layout", "small", "--requests", "1", "--audit", "1", "--salt", "5"}, args...)...)
		require.Zero(t, code, r.Errors)
		return r
	}
	first := func() int64 { // hits of the prompt that was stored first
		r, code := drive(t, "--url", url, "--ops", "lookup", "--layout", "small", "--tokens", "256", "--prompts", "2", "--salt", "5", "--requests", "1")
		require.Zero(t, code, r.Errors)
		return r.Counters["hit_chunks"]
	}
	require.EqualValues(t, 4, run().Counters["audit_hit_chunks"])
	require.EqualValues(t, 4, first())
	require.EqualValues(t, 4, run("--salt", "6", "--fill", "tiny").Counters["audit_hit_chunks"])
	require.Zero(t, first(), "it made room")
}

func TestTableNamesEverything(t *testing.T) {
	url, _ := startServer(t, "shm")
	var out, errOut bytes.Buffer
	code := realMain([]string{
		"--url", url, "--ops", "retrieve", "--layout", "tiny", "--seconds", "0.1", "--server-pid", fmt.Sprint(os.Getpid()),
	}, &out, &errOut)
	require.Zero(t, code, errOut.String())
	for _, want := range []string{"p99 us", "retrieve", "lookup", "cycle", "us CPU per cycle", "verified: ", "client: "} {
		require.Contains(t, out.String(), want)
	}
}

func TestReport(t *testing.T) {
	var lines strings.Builder
	add := func(label string, ops, p50, cpu float64) {
		b, err := json.Marshal(&result{
			Label: label, Config: &config{Ops: "ping"},
			Ops:    map[string]opResult{"ping": {N: 1, OpsS: ops, P50US: p50, P99US: 2 * p50}},
			Server: &serverUse{CPUUSPerOp: cpu},
		})
		require.NoError(t, err)
		lines.Write(append(b, '\n'))
	}
	add("a/real", 100, 30, 80)
	add("a/ours", 1000, 3, 8)
	add("a/real", 200, 20, 80)
	add("a/ours", 1000, 4, 8)
	add("a/real", 100, 10, 80)
	add("a/ours", 2000, 5, 8)
	lines.WriteString(`{"label":"process/real","values":{"start, ms":40,"idle CPU, %":2}}` + "\n") // of process.py
	lines.WriteString(`{"label":"process/ours","values":{"start, ms":10,"idle CPU, %":0}}` + "\n")
	path := filepath.Join(t.TempDir(), "runs.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(lines.String()), 0o600))
	var out bytes.Buffer
	require.Zero(t, realMain([]string{"--report", path}, &out, &out))
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"a ops/s 100 1000 10.00 [5.00..20.00]",
		"a p50 us 20 4 5.00 [2.00..10.00]",
		"a server CPU us/op 80 8 10.00 [10.00..10.00]",
		"process idle CPU, % 2 0 - process start, ms 40 10 4.00 [4.00..4.00]",
	} {
		require.Contains(t, got, want)
	}
	require.NotContains(t, got, "refused")
}
