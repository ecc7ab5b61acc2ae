package pair

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Lane is how UCX serves one kind of operation between two kinds of memory, as
// its table of protocols (UCX_PROTO_INFO=y) says.
type Lane struct {
	What   string // "remote memory write by ucp_put*(multi) from host memory to host"
	Scope  string // "self", "intra-node", "inter-node"
	Ranges []LaneRange
}

// LaneRange is how one range of sizes is served.
type LaneRange struct {
	Range  string // "0..inf"
	How    string // "zero-copy", "software emulation", …
	Config string // "cma/memory", "52% on tcp/lo and 48% on tcp/eth0", …
}

// Emulated tells whether large transfers are emulated by messages, which need
// the target's CPU and go at a fraction of the speed, or go over TCP.
func (l Lane) Emulated() bool {
	if len(l.Ranges) == 0 {
		return false
	}
	last := l.Ranges[len(l.Ranges)-1]
	return strings.Contains(last.How, "emulation") || strings.Contains(last.Config, "tcp/")
}

// Transport is the configuration of large transfers.
func (l Lane) Transport() string {
	if len(l.Ranges) == 0 {
		return "unknown"
	}
	last := l.Ranges[len(l.Ranges)-1]
	if strings.Contains(last.How, "emulation") {
		return last.Config + " (" + last.How + ")"
	}
	return last.Config
}

// Write says whether the lane is for writes; a lane may be for neither writes
// nor reads (messages).
func (l Lane) Write() bool { return strings.Contains(l.What, "ucp_put") }

// Read reports whether the lane serves READ.
func (l Lane) Read() bool { return strings.Contains(l.What, "ucp_get") }

var logPrefix = regexp.MustCompile(`^\[[0-9.]+\] \[[^\]]*\]`)

// ParseLanes reads the tables that UCX logged.
func ParseLanes(log string) []Lane {
	var lanes []Lane
	var current *Lane
	var rule int // rules seen in the current table
	for _, line := range strings.Split(log, "\n") {
		line = strings.TrimSpace(logPrefix.ReplaceAllString(line, ""))
		switch {
		case strings.HasPrefix(line, "+-"):
			if current == nil {
				current, rule = &Lane{}, 0
			}
			rule++
			if rule == 4 { // the table's end; the next rule starts another
				lanes = append(lanes, *current)
				current = nil
			}
		case current != nil && strings.HasPrefix(line, "|"):
			current.row(strings.Split(strings.Trim(line, "|"), "|"), rule)
		}
	}
	return lanes
}

// row reads one row; the table has a head, column titles, and ranges.
func (l *Lane) row(cells []string, rule int) {
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	switch {
	case rule == 1 && l.Scope == "":
		l.Scope = scope(cells[0])
	case rule == 1:
		l.What = cells[0]
	case rule == 3 && len(cells) >= 3 && cells[0] != "":
		l.Ranges = append(l.Ranges, LaneRange{cells[0], cells[1], cells[2]})
	}
}

func scope(head string) string {
	for _, s := range []string{"self", "intra-node", "inter-node"} {
		if strings.Contains(head, " "+s+" ") || strings.HasSuffix(head, " "+s) {
			return s
		}
	}
	return head
}

// Lanes finds out how UCX serves reads and writes between the two sides, by
// one small and one large transfer each way in a process that makes UCX say
// so. rate answers the large ones' result by operation.
func Lanes(ctx context.Context, o Options, cases []Case) (lanes []Lane, rates []Result, err error) {
	target, t, err := o.StartTarget(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer target.Close() //nolint:errcheck // its exit says nothing
	// Not through a file: UCX buffers that, and a Go program ends without
	// flushing C's buffers.
	log, also := &strings.Builder{}, o.Stderr
	o.Stderr = log
	p, err := o.StartInitiator(ctx, t, "UCX_PROTO_INFO=y", "UCX_LOG_FILE=stderr", "UCX_LOG_LEVEL=info")
	if err != nil {
		tell(also, log.String())
		return nil, nil, err
	}
	for _, c := range cases {
		var r Result
		line, err := p.Ask(c.Line())
		if err == nil {
			r, err = ParseResult(line)
		}
		if err != nil {
			_ = p.Close()
			tell(also, log.String())
			return nil, nil, fmt.Errorf("%s of %d × %d bytes: %w", c.Op, c.Count, c.Len, err)
		}
		rates = append(rates, r)
	}
	_ = p.Close() // waits until the log is complete
	return choose(ParseLanes(log.String())), rates, nil
}

// tell passes on what a failed process said, without the tables.
func tell(w io.Writer, text string) {
	if w == nil {
		return
	}
	for _, line := range strings.Split(text, "\n") {
		if plain := logPrefix.ReplaceAllString(line, ""); !strings.HasPrefix(plain, "  ") && plain != "" {
			fmt.Fprintln(w, line)
		}
	}
}

// choose keeps one lane for reads and one for writes between the two processes:
// what the first transfers used, not what connecting to oneself did.
func choose(all []Lane) []Lane {
	var kept []Lane
	for _, is := range []func(Lane) bool{Lane.Write, Lane.Read} {
		var best *Lane
		for i := range all {
			l := &all[i]
			if is(*l) && l.Scope != "self" && (best == nil || strings.Contains(l.What, "(multi)") && !strings.Contains(best.What, "(multi)")) {
				best = l
			}
		}
		if best != nil {
			kept = append(kept, *best)
		}
	}
	return slices.Clip(kept)
}
