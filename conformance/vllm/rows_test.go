package vllm

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rowsOf names the cases of cases.py, and the requests in them, that are rows
// of connector/testdata/rows.txt.
var rowsOf = map[string]struct{ name, request string }{
	"cold":                       {"cold", "cold"},
	"warm":                       {"warm", "warm"},
	"warm and 304 in the engine": {"warm, and 304 in the engine", "rest"},
	"partial":                    {"partial", "partial"},
	"prompt of exactly 512":      {"prompt of exactly 512", "exact"},
	"prompt of 100":              {"prompt of 100", "short"},
	"chunked prefill":            {"chunked prefill", "chunks"},
	"decode beyond a chunk":      {"decode beyond a chunk", "decode"},
	"preempt and resume":         {"preempt and resume", "preempted"},
	"abort before the answer":    {"abort before the answer", "abort-1"},
	"abort after the hit":        {"abort after the hit", "abort-2"},
}

// TestRows holds the real client to the table that our own client is tested
// with: the recorded trace of vLLM, case by case.
func TestRows(t *testing.T) {
	rows := make(map[string]map[string]string) // by case, then by who
	eachLine(t, "../../connector/testdata/rows.txt", func() func(string) {
		name := ""
		return func(line string) {
			if who, ops, ok := strings.Cut(strings.TrimPrefix(line, "  "), ": "); ok && strings.HasPrefix(line, "  ") {
				rows[name][who] = ops
			} else if line != "" && line[0] != '#' {
				name = line
				rows[name] = map[string]string{"scheduler": "", "worker": ""}
			}
		}
	}())
	got := make(map[string]map[string][]string) // by mode and case, then by who
	eachLine(t, "testdata/trace.txt", func() func(string) {
		at, request := "", ""
		return func(line string) {
			if head, ok := strings.CutPrefix(line, "## "); ok {
				mode, name, _ := strings.Cut(head, ", ")
				row, ok := rowsOf[name]
				at, request = "", row.request
				if ok {
					at = mode + ", " + row.name
					got[at] = make(map[string][]string)
				}
				return
			}
			who, text, ok := strings.Cut(line, ": ")
			if !ok || at == "" || who == "note" {
				return
			}
			if op, of := operation(text); of == request {
				who = who[strings.LastIndex(who, " ")+1:]
				got[at][who] = append(got[at][who], op)
			}
		}
	}())
	for _, mode := range []string{"lmcache_driven", "engine_driven"} {
		for name, row := range rows {
			t.Run(mode+"/"+name, func(t *testing.T) {
				ops := got[mode+", "+name]
				require.NotNil(t, ops, "the trace has no such case: name it in rowsOf")
				require.Equal(t, row["scheduler"], strings.Join(ops["scheduler"], "; "))
				require.Equal(t, moved(mode, row["worker"]), strings.Join(ops["worker"], "; "))
			})
		}
	}
}

func eachLine(t *testing.T, path string, f func(string)) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		f(lines.Text())
	}
	require.NoError(t, lines.Err())
}

// moved writes the worker's operations of a row as those of a worker that
// copies itself.
func moved(mode, ops string) string {
	if mode == "lmcache_driven" || ops == "" {
		return ops
	}
	var out []string
	for op := range strings.SplitSeq(ops, "; ") {
		name, rest, _ := strings.Cut(op, "[")
		span, _, _ := strings.Cut(rest, ")")
		for _, step := range []string{"PREPARE_", "COMMIT_"} {
			out = append(out, fmt.Sprintf("%s%s[%s)", step, name, span))
		}
	}
	return strings.Join(out, "; ")
}

var (
	keyed  = regexp.MustCompile(`^(\w+) (\[\d+,\d+\)) of \d+ tokens \w+, ([^,]+), .*?(?:, blocks ([\d,-]+), a handle(?:, (\d+))?)? -> `)
	report = regexp.MustCompile(`^report_block_allocation .*\(([^:]+): blocks ([\d,-]+), (\d+) tokens \w+\) -> `)
	named  = regexp.MustCompile(`^(query_prefetch_status|end_session) (\S+) -> (.*)`)
)

// operation reads a line of a trace in the words of the table, and tells whose
// it is.
func operation(line string) (op, request string) {
	if m := keyed.FindStringSubmatch(line); m != nil {
		op = strings.ToUpper(m[1]) + m[2]
		switch m[1] {
		case "free_lookup_locks":
			op = "FREE" + m[2]
		case "store":
			op += fmt.Sprintf(" %d blocks", blocks(m[4]))
		case "retrieve":
			op += fmt.Sprintf(" %d blocks skip %s", blocks(m[4]), m[5])
		}
		return op, m[3]
	}
	if m := report.FindStringSubmatch(line); m != nil {
		return fmt.Sprintf("REPORT %d blocks %s tokens", blocks(m[2]), m[3]), m[1]
	}
	if m := named.FindStringSubmatch(line); m != nil {
		if m[1] == "end_session" {
			return "END_SESSION", m[2]
		}
		return "QUERY->" + m[3], m[2]
	}
	return line, ""
}

// blocks counts the numbers of "1-3,7".
func blocks(ranges string) int {
	n := 0
	for r := range strings.SplitSeq(ranges, ",") {
		from, to, ok := strings.Cut(r, "-")
		if !ok {
			n++
			continue
		}
		a, _ := strconv.Atoi(from)
		b, _ := strconv.Atoi(to)
		n += b - a + 1
	}
	return n
}
