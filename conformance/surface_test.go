package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSurface asks our server and the real one the same over HTTP, and runs our
// commands and the real ones against both.
func TestSurface(t *testing.T) {
	lmcache := filepath.Join(filepath.Dir(python(t)), "lmcache")
	start := func(reference bool) *server {
		return newServer(t, config{reference: reference, chunk: 256, poolMiB: 64, pool: true})
	}
	ours, theirs := start(false), start(true)
	t.Run("requests", func(t *testing.T) {
		file, err := os.Open("testdata/surface_requests.txt")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		n := 0
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if line := lines.Text(); !strings.HasPrefix(line, "#") {
				n++
				compare(t, line, askHTTP(t, ours, line), askHTTP(t, theirs, line))
			}
		}
		if n < 300 {
			t.Errorf("%d requests, want all of the list", n)
		}
	})
	t.Run("commands", func(t *testing.T) {
		for _, c := range []string{
			"quota set tA --limit-gb 1.5", "quota set _default --limit-gb 2 --format json", "quota get tA", "quota get nobody", "quota list", "quota list --format json",
			"quota delete tA", "quota delete tA", "quota set a/b --limit-gb 1", "kvcache clear", "ping kvcache", "describe kvcache", "describe kvcache --format json",
		} {
			// The real programs take seconds to start: each runs against our
			// server, ours against both.
			want := command(t, lmcache, c, ours)
			if strings.Contains(want.out, "removed") {
				askHTTP(t, ours, `PUT /quota/tA {"limit_gb":1.5}`) // for our program
			}
			if got := command(t, serverBinary(t), c, ours); got != want {
				t.Errorf("%s, our server: our program says %+v, the real one %+v", c, got, want)
			}
			if got := command(t, serverBinary(t), c, theirs); got.code != want.code || !sameLabels(got.out, want.out) {
				t.Errorf("%s: the real server gives %+v, ours %+v", c, got, want)
			}
		}
	})
	// Commands that the real program does not have, against the real server.
	t.Run("our own commands", func(t *testing.T) {
		for _, c := range []struct {
			line string
			code int
			want string
		}{
			{"status", 0, `(?m)^Health: +OK$`},
			{"version", 0, `(?m)^server 0\.5\.6`},
			{"kvcache ls", 1, `^$`},                                     // it lists L2 only, and says so
			{"kvcache ls --tier l2", 1, `^$`},                           // it has none
			{"kvcache checksum --instance-id 1 --block-ids 0", 1, `^$`}, // no such worker
		} {
			got := command(t, serverBinary(t), c.line, theirs)
			if got.code != c.code || !regexp.MustCompile(c.want).MatchString(got.out) {
				t.Errorf("%s: got %+v, want code %d and %s", c.line, got, c.code, c.want)
			}
		}
	})
	theirs.terminate()
	ours.terminate()
}

// answered is what a server said to a request.
type answered struct {
	status            int
	contentType, path string
	allow             []string
	body              any // of JSON; otherwise its text
}

// askHTTP sends a line of the list: method, path, body.
func askHTTP(t *testing.T, s *server, line string) answered {
	t.Helper()
	f := strings.SplitN(line, " ", 3)
	var body io.Reader
	if len(f) == 3 {
		body = strings.NewReader(f[2])
	}
	r, err := http.NewRequestWithContext(t.Context(), f[0], s.httpURL()+f[1], body)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	a := answered{status: resp.StatusCode, contentType: resp.Header.Get("Content-Type"), body: string(data)}
	if allow := resp.Header.Get("Allow"); allow != "" {
		a.allow = strings.Split(allow, ", ")
	}
	if to, err := url.Parse(resp.Header.Get("Location")); err == nil {
		a.path = to.Path
	}
	var v any
	if json.Unmarshal(data, &v) == nil {
		a.body = withoutWords(v)
	}
	return a
}

// withoutWords drops what the real server's validator says in words of its own.
func withoutWords(v any) any {
	switch v := v.(type) {
	case map[string]any:
		_, problem := v["loc"]
		for k, x := range v {
			if problem && (k == "msg" || k == "ctx" || k == "url") {
				delete(v, k)
			} else {
				v[k] = withoutWords(x)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutWords(v[i])
		}
	}
	return v
}

func compare(t *testing.T, line string, ours, theirs answered) {
	t.Helper()
	for _, m := range theirs.allow { // it tells one method, where there are several
		if !slices.Contains(ours.allow, m) {
			t.Errorf("%.200s: Allow is %v, want %s in it", line, ours.allow, m)
		}
	}
	if (ours.allow == nil) != (theirs.allow == nil) {
		t.Errorf("%.200s: Allow is %v, want %v", line, ours.allow, theirs.allow)
	}
	ours.allow, theirs.allow = nil, nil
	a, b := fmt.Sprintf("%+v", ours), fmt.Sprintf("%+v", theirs)
	if a != b {
		t.Errorf("%.200s:\n ours  %.500s\n theirs %.500s", line, a, b)
	}
}

// ran is what a command did.
type ran struct {
	code int
	out  string
}

// changing is what differs from run to run: how long something took.
var changing = regexp.MustCompile(`(?m)(time \(ms\): *|_ms": )[0-9.]+`)

// command runs one against a server; what it says on stderr is not compared.
func command(t *testing.T, program, line string, s *server) ran {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append(strings.Fields(line), "--url", s.httpURL())...)
	cmd.Env = append(append(os.Environ(), "LMCACHE_LOG_LEVEL=ERROR"), pythonEnv...)
	var out bytes.Buffer
	cmd.Stdout = &out
	_ = cmd.Run() // the code tells
	return ran{cmd.ProcessState.ExitCode(), changing.ReplaceAllString(out.String(), "${1}N")}
}

// label is a line's name in a table for people or in JSON.
var label = regexp.MustCompile(`(?m)^(?: *"[^"]+":|[A-Z][^:\n]*:)`)

// sameLabels reports whether two outputs tell the same things, whatever they
// say of them.
func sameLabels(a, b string) bool {
	return slices.Equal(label.FindAllString(a, -1), label.FindAllString(b, -1))
}
