package conformance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestBenchServerDriven runs the unmodified `lmcache bench server` where the
// server copies: it asks the server for checksums of its blocks. Every run must
// miss, store, hit in full, load, and find its own bytes.
func TestBenchServerDriven(t *testing.T) {
	f := func(name, shape string, more ...string) {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(filepath.Dir(python(t)), "lmcache")
			s := newServer(t, config{chunk: 256, poolMiB: 512, pool: true})
			const runs = 4
			cmd := exec.CommandContext(t.Context(), program, append([]string{
				"bench", "server", "--mode", "cpu", "--transfer-mode", "lmcache_driven", "--rpc-url", s.url(), "--url", s.httpURL(),
				"--num-tokens", "1023", "--start", "0", "--end", fmt.Sprint(runs), "--interval", "0",
				"--kvcache-shape-spec", shape, "--format", "json",
			}, more...)...)
			cmd.Env = append(append(os.Environ(), "LMCACHE_LOG_LEVEL=ERROR"), pythonEnv...)
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
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
			if r := got.Metrics.Results; r.Total != runs || r.OK != runs || r.PassRate != 100 {
				t.Errorf("got %+v, want %d runs and 100 %%\n%s", r, runs, out)
			}
			s.terminate()
		})
	}
	f("keys and values", "(2,512,16,8,128):float16:4")
	f("two ranks", "(2,512,16,8,128):float16:4", "--tp-size", "2")
	f("one plane, two readers", "(1,1024,16,1,128):bfloat16:8", "--use-mla", "--tp-size", "2")
	f("two groups", "(1,1024,16,1,128):float16:4;(2,1024,16,8,64):float16:4")
}

// TestBothModes has clients of both transfer modes, and of both orders of heads
// and tokens, share the chunks of one model in a pool of a third of what they
// use; some are killed on the way. LMCACHE_GO_SOAK=10m, or -soak, is the long form.
func TestBothModes(t *testing.T) {
	python(t)
	length := *soakTime
	if text := os.Getenv("LMCACHE_GO_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("LMCACHE_GO_SOAK: %v: a duration is needed, as in 10m", err)
		}
	}
	s := newServer(t, config{chunk: 16, poolMiB: 12, pool: true, flags: []string{"--l1-read-ttl-seconds", "10"}})
	stop := s.watch()
	script{
		name: "both_modes.py",
		args: []string{
			"--url", s.url(), "--http", s.httpURL(), "--seconds", fmt.Sprint(length.Seconds()),
			"--clients", fmt.Sprint(*soakClients), "--set-bytes", fmt.Sprint(3 * s.poolBytes()),
			"--kills", fmt.Sprint(max(2, int(length.Seconds()/30))),
		},
		limit: length + 3*time.Minute, steps: 5,
	}.run(t)
	stop(t)
	s.terminate()
}

// sample is what a server process uses.
type sample struct {
	anonKiB     int // memory besides the pool and the engines' tensors
	descriptors int
	threads     int
}

// watch looks at the server's memory once a second. The returned function ends
// that and fails the test when use has grown from the second quarter of the
// time to the last.
func (s *server) watch() (stop func(t *testing.T)) {
	pid := s.cmd.Process.Pid
	quit, done := make(chan struct{}), make(chan struct{})
	var samples []sample
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				if now, ok := look(pid); ok {
					samples = append(samples, now)
				}
			}
		}
	}()
	return func(t *testing.T) {
		t.Helper()
		close(quit)
		<-done
		n := len(samples)
		if n < 8 {
			t.Errorf("only %d samples of the server's memory", n)
			return
		}
		early, late := peak(samples[n/4:n/2]), peak(samples[3*n/4:])
		t.Logf("server: second quarter %+v, last quarter %+v", early, late)
		// The heap needs some half a minute to find its size: growth is judged
		// in the long form, and the short one has a bound.
		const noiseKiB, few, long, boundKiB = 48 << 10, 16, 120, 400 << 10
		if n >= long && late.anonKiB > early.anonKiB+noiseKiB || late.anonKiB > boundKiB {
			t.Errorf("memory grew from %d KiB to %d KiB", early.anonKiB, late.anonKiB)
		}
		if late.descriptors > early.descriptors+few || late.threads > early.threads+few {
			t.Errorf("descriptors or threads grew from %+v to %+v", early, late)
		}
	}
}

func peak(list []sample) (p sample) {
	for _, x := range list {
		p.anonKiB, p.descriptors, p.threads = max(p.anonKiB, x.anonKiB), max(p.descriptors, x.descriptors), max(p.threads, x.threads)
	}
	return p
}

// look reads what /proc tells of a process.
func look(pid int) (now sample, ok bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	f, err := os.Open(filepath.Join(dir, "status"))
	if err != nil {
		return now, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		n, _ := strconv.Atoi(fields[1])
		switch fields[0] {
		case "RssAnon:":
			now.anonKiB = n
		case "Threads:":
			now.threads = n
		}
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	now.descriptors = len(fds)
	return now, err == nil && now.anonKiB > 0
}
