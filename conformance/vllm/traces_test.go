package vllm

import (
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

var only = flag.String("cases", "", "cases of cases.py to run, by function, separated by commas; default all")

// difference is a line that our server makes differ, on purpose. The patterns
// are regular expressions of whole lines.
type difference struct {
	cases  string
	ours   string // "" where our server has no such line
	theirs string // "" where the real one has none
	why    string
}

// differences is all that may differ between the two servers.
var differences = []difference{
	{
		`failed load .*`, `.*: retrieve .* -> \(no handle, False\)`, `.*: retrieve .* -> \(a handle, False\)`,
		"nothing is copied, so there is no event to wait for",
	},
	{
		`kv events`, `note: Block(Stored|Removed) .*`, ``,
		"a router hears of the stores of workers that copy themselves too; the real server tells it of no such store, and the worker does not either",
	},
	{
		`server dies before a load`, `.*: (prepare|commit)_retrieve .*, lost, .* -> False.*`, `.*: (prepare|commit)_retrieve .*, lost, .* -> no reply`,
		"every request is answered, also one of a worker that the server does not know (the messages waited while it was dead)",
	},
	{
		restart, `note: pings of the worker were answered True False`, `note: pings of the worker were answered True`,
		"a worker that the server does not know is told once, so that it registers again",
	},
	{restart, `patient worker: register_kv_cache.*`, ``, "it does"},
	{
		restart, `.*\brestarted-[12]\b.*`, `.*\brestarted-[12]\b.*`,
		"with the real server every store fails for good, and workers that copy themselves end vLLM's step with a timeout",
	},
	{restart, `.*\brestarted-[12]\b.*`, ``, "and what would come after it"},
}

const restart = `server restarts between heartbeats`

// TestTraces runs every case of cases.py against both servers, in both transfer
// modes, and compares what vLLM's clients said and heard, and what became of
// the requests.
func TestTraces(t *testing.T) {
	python(t)
	got := make(map[kind][]outcome)
	for _, k := range []kind{reference, ours} {
		t.Run(string(k), func(t *testing.T) {
			got[k] = runCases(t, k)
		})
	}
	if t.Failed() {
		return
	}
	if len(got[ours]) == 0 || len(got[ours]) != len(got[reference]) {
		t.Fatalf("%d cases with our server, %d with the real one", len(got[ours]), len(got[reference]))
	}
	used := make([]bool, len(differences))
	for i := range got[ours] {
		a, b := &got[ours][i], &got[reference][i]
		t.Run(a.Mode+"/"+a.Case, func(t *testing.T) { compare(t, a, b, used) })
	}
	if *only != "" {
		return
	}
	for i, d := range differences {
		if !used[i] {
			t.Errorf("the servers do not differ any more: %+v", d)
		}
	}
	var golden strings.Builder
	for _, o := range got[reference] {
		fmt.Fprintf(&golden, "## %s, %s\n%s\n\n", o.Mode, o.Case, strings.Join(o.lines(), "\n"))
	}
	testutil.Golden(t, "trace.txt", []byte(golden.String()))
}

// runCases runs the cases against servers of a kind, which take turns: one
// that is ready stands by.
func runCases(t *testing.T, k kind) []outcome {
	t.Helper()
	p := newPlace(t)
	var now, standby *server
	next := func() {
		begin := time.Now()
		standby.awaitReady(t)
		t.Logf("waited %.1f s for a server", time.Since(begin).Seconds())
		now = standby
		p.take(now)
		standby = startServer(t, k)
	}
	standby = startServer(t, k)
	next()
	asks := map[string]func(){
		"pause":    func() { now.signal(t, syscall.SIGSTOP) },
		"continue": func() { now.signal(t, syscall.SIGCONT) },
		"kill":     func() { p.take(nil); now.kill() },
		"start":    next,
		"replace":  func() { former := now; next(); former.kill() },
	}
	out := run(t, 10*time.Minute, asks, "cases.py", "--url", p.url(), "--only", *only)
	for _, o := range out {
		t.Logf("%s, %s: %.1f s", o.Mode, o.Case, o.Seconds)
		if o.Error != "" {
			t.Errorf("%s, %s:\n%s", o.Mode, o.Case, o.Error)
		}
	}
	return out
}

// compare compares a case line by line, but for the table of differences.
func compare(t *testing.T, a, b *outcome, used []bool) {
	t.Helper()
	if a.Case != b.Case || a.Mode != b.Mode {
		t.Fatalf("case %s, %s against %s, %s", a.Mode, a.Case, b.Mode, b.Case)
	}
	x, y := a.lines(), b.lines()
	for len(x) > 0 || len(y) > 0 {
		if len(x) > 0 && len(y) > 0 && x[0] == y[0] {
			x, y = x[1:], y[1:]
			continue
		}
		i := slices.IndexFunc(differences, func(d difference) bool {
			return matches(d.cases, a.Case) && (len(x) > 0 && matches(d.ours, x[0]) || d.ours == "" && len(y) > 0) &&
				(d.theirs == "" || len(y) > 0 && matches(d.theirs, y[0]))
		})
		if i < 0 {
			t.Fatalf("they part here\nours:\n%s\nthe real server's:\n%s", head(x), head(y))
		}
		used[i] = true
		if differences[i].ours != "" {
			x = x[1:]
		}
		if differences[i].theirs != "" {
			y = y[1:]
		}
	}
}

func head(lines []string) string { return strings.Join(lines[:min(4, len(lines))], "\n") }

func matches(pattern, s string) bool {
	return pattern != "" && regexp.MustCompile(`^(?:`+pattern+`)$`).MatchString(s)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
