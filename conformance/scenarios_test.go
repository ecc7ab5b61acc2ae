package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const defaultSoak = 20 * time.Second

// TestOracle is the whole conversation of a worker and a scheduler with our
// server, with lmcache-go's answers to bad requests.
func TestOracle(t *testing.T) {
	f := func(name string, chunk int, pool bool, more ...string) {
		t.Run(name, func(t *testing.T) {
			python(t)
			s := newServer(t, config{
				chunk: chunk, poolMiB: 256, pool: pool,
				ours: []string{"--session-grace-seconds", "5"}, // the last step waits for it
			})
			args := []string{"--url", s.url(), "--http", s.httpURL(), "--modes", "engine"}
			if *againstReference {
				args = append(args, "--reference")
			} else {
				args = append(args, "--answers")
			}
			script{name: "oracle_client.py", args: append(args, more...), limit: 3 * time.Minute, steps: 70}.run(t)
			s.terminate()
		})
	}
	f("pool, chunk 16", 16, true, "--require-shm")
	f("pool, chunk 256", 256, true, "--require-shm")
	f("pickle, chunk 16", 16, false)
	f("pickle, chunk 256", 256, false)
}

// TestOracleServerDriven is the other transfer mode: the server copies out of
// and into CPU tensors in shared memory.
func TestOracleServerDriven(t *testing.T) {
	f := func(name string, chunk int) {
		t.Run(name, func(t *testing.T) {
			python(t)
			s := newServer(t, config{chunk: chunk, poolMiB: 256, pool: true})
			args := []string{"--url", s.url(), "--http", s.httpURL(), "--modes", "lmcache", "--require-lmcache"}
			if !*againstReference {
				args = append(args, "--answers")
			}
			script{name: "oracle_client.py", args: args, limit: 3 * time.Minute, steps: 20}.run(t)
			s.terminate()
		})
	}
	f("chunk 16", 16)
	f("chunk 256", 256)
}

// TestOracleReference shows that the same script is true of the real server.
func TestOracleReference(t *testing.T) {
	f := func(name string, chunk int, pool bool, more ...string) {
		t.Run(name, func(t *testing.T) {
			python(t)
			s := newServer(t, config{reference: true, chunk: chunk, poolMiB: 256, pool: pool})
			args := append([]string{"--url", s.url(), "--modes", "engine", "--reference"}, more...)
			script{name: "oracle_client.py", args: args, limit: 3 * time.Minute, steps: 60}.run(t)
		})
	}
	f("pool, chunk 16", 16, true, "--require-shm")
	f("pickle, chunk 256", 256, false)
}

// TestBenchServer runs the unmodified `lmcache bench server`. Its exit status
// is no verdict, so the pass rate is read.
func TestBenchServer(t *testing.T) {
	f := func(name, shape string, more ...string) {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(filepath.Dir(python(t)), "lmcache")
			s := newServer(t, config{chunk: 256, poolMiB: 256, pool: true})
			const runs = 4
			cmd := exec.CommandContext(t.Context(), program, append([]string{
				"bench", "server", "--mode", "cpu", "--transfer-mode", "engine_driven", "--rpc-url", s.url(),
				"--num-tokens", "1023", "--start", "0", "--end", fmt.Sprint(runs), "--interval", "0",
				"--kvcache-shape-spec", shape, "--format", "json",
			}, more...)...)
			cmd.Env = append(append(os.Environ(), "LMCACHE_LOG_LEVEL=ERROR"), pythonEnv...)
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			// Progress comes before the report.
			_, report, found := strings.Cut("\n"+string(out), "\n{")
			if !found {
				t.Fatalf("no report:\n%s", out)
			}
			var got struct {
				Metrics struct {
					Results struct {
						Total    int     `json:"total_requests"`
						OK       int     `json:"checksum_ok"`
						PassRate float64 `json:"pass_rate"`
					} `json:"results"`
				} `json:"metrics"`
			}
			if err := json.NewDecoder(strings.NewReader("{" + report)).Decode(&got); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			r := got.Metrics.Results
			if r.Total != runs || r.OK != runs || r.PassRate != 100 {
				t.Errorf("got %+v, want %d runs and 100 %%\n%s", r, runs, out)
			}
			s.terminate()
		})
	}
	f("keys and values", "(2,512,16,1,128):bfloat16:8")
	f("two ranks", "(2,512,16,2,64):float16:4", "--tp-size", "2")
	f("one plane, two readers", "(1,512,16,1,576):bfloat16:4", "--tp-size", "2")
}

// TestFullPool streams stores of one size and of mixed sizes over twice the
// pool: nothing may be refused, and the newest must be kept.
func TestFullPool(t *testing.T) {
	python(t)
	s := newServer(t, config{chunk: 256, poolMiB: 512, pool: true})
	script{
		name: "full_pool.py", args: []string{"--url", s.url(), "--pool-bytes", fmt.Sprint(s.poolBytes())},
		limit: 3 * time.Minute, steps: 10,
	}.run(t)
	s.terminate()
}

// TestSoak has many clients share a pool of a third of what they use; two are
// killed on the way. -soak 10m is the long form.
func TestSoak(t *testing.T) {
	python(t)
	// A hit is promised for the read TTL, and what killed and aborted requests
	// held must come back after it.
	s := newServer(t, config{chunk: 16, poolMiB: 12, pool: true, flags: []string{"--l1-read-ttl-seconds", "10"}})
	script{
		name: "soak.py",
		args: []string{
			"--url", s.url(), "--http", s.httpURL(), "--seconds", fmt.Sprint(soakTime.Seconds()),
			"--clients", fmt.Sprint(*soakClients), "--set-bytes", fmt.Sprint(3 * s.poolBytes()),
			"--kills", fmt.Sprint(max(2, int(soakTime.Seconds()/30))), "--seed", fmt.Sprint(*seed),
		},
		limit: *soakTime + 3*time.Minute, steps: 5,
	}.run(t)
	s.terminate()
}

// TestKilledClients kills clients between PREPARE and COMMIT.
func TestKilledClients(t *testing.T) {
	python(t)
	s := newServer(t, config{chunk: 16, poolMiB: 32, pool: true, flags: []string{"--l1-read-ttl-seconds", "5"}})
	script{
		name: "faults.py", args: []string{"killed", "--url", s.url(), "--http", s.httpURL()},
		limit: 2 * time.Minute, steps: 4,
	}.run(t)
	s.terminate()
}

// TestStoppedClients stops clients between PREPARE and COMMIT for longer than
// their reservation and than the reaper waits, and lets them go on: nobody
// else's bytes may change. Most of its 40 s are waiting.
func TestStoppedClients(t *testing.T) {
	python(t)
	t.Parallel()
	s := newServer(t, config{
		chunk: 16, poolMiB: 32, pool: true,
		flags: []string{"--l1-write-ttl-seconds", "1", "--worker-reap-timeout-seconds", "30"},
	})
	script{
		name: "faults.py",
		args: []string{
			"stopped", "--url", s.url(), "--http", s.httpURL(), "--pool-bytes", fmt.Sprint(s.poolBytes()),
		},
		limit: 3 * time.Minute, steps: 10,
	}.run(t)
	s.terminate()
}

// TestRestartUnderLoad kills, restarts and terminates the server under the
// load of vLLM's adapters, which must come back by themselves.
func TestRestartUnderLoad(t *testing.T) {
	python(t)
	t.Parallel()
	s := newServer(t, config{chunk: 16, poolMiB: 64, pool: true})
	script{
		name: "restart.py", args: []string{"--url", s.url()},
		asks: map[string]func(){
			"kill":             s.kill,
			"start":            s.start,
			"kill-and-restart": func() { s.kill(); s.start() },
			"terminate":        s.terminate,
		},
		limit: 4 * time.Minute, steps: 5,
	}.run(t)
	s.terminate()
}
