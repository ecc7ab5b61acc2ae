package main

import (
	"fmt"
	"io"
	"strings"
)

// printServerHelp lists the flags by group: what the reference has and where we
// stand, then ours.
func printServerHelp(w io.Writer, rows []row) {
	fmt.Fprint(w, `usage: lmcache-go server [flags]

Serves the LMCache MP protocol. Every flag of `+"`lmcache server`"+` (0.5.6) is known here:
it is served, or accepted without effect where that is harmless, or refused with
the reason. Write --flag value or --flag=value; flags are not abbreviated.
A flag wins over an environment variable, a variable over the default.
`)
	for _, g := range groups {
		fmt.Fprintf(w, "\n%s:\n", g)
		for i := range rows {
			if r := &rows[i]; r.group == g && !r.hidden {
				r.printHelp(w)
			}
		}
	}
	fmt.Fprint(w, `
environment without a flag:
  LMCACHE_DISABLE_BANNER=1
      no first line on stderr
  LMCACHE_DEVICE_BACKEND
      cuda or cpu, without effect: each worker says where its memory is; another kind is refused
  LMCACHE_TRACK_USAGE, DO_NOT_TRACK, LMCACHE_USAGE_TRACK_URL, LMCACHE_USAGE_TRACK_INTERVAL
      nothing: this server sends nothing to anybody
  OTEL_*
      nothing: --otlp-endpoint is not served yet

exit codes: 0 after SIGTERM or SIGINT, 1 invalid configuration or busy port, 2 usage
`)
}

func (r *row) printHelp(w io.Writer) {
	short := ""
	if r.short != "" {
		short = r.short + ", "
	}
	fmt.Fprintf(w, "  %s--%s%s\n", short, r.name, r.argument())
	var notes []string
	if r.def != "" && r.kind != kindSwitch {
		notes = append(notes, "default "+r.def)
	}
	if r.env != "" {
		notes = append(notes, "environment "+r.env)
	}
	text := r.help
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, "; ") + ")"
	}
	switch r.stance {
	case accepted:
		text += ". No effect: " + r.why
	case refused:
		if r.def != "" && r.kind == kindString {
			text += ". Any other value is refused: " + r.why
		} else {
			text += ". Not served: " + r.why
		}
	default: // served: nothing to add
	}
	for _, line := range wrap(text, 90) {
		fmt.Fprintf(w, "      %s\n", line)
	}
}

// argument is how the value is written.
func (r *row) argument() string {
	switch r.kind {
	case kindBool:
		return ", --no-" + r.name
	case kindSwitch:
		return ""
	case kindInt:
		return " N"
	case kindFloat:
		return " X"
	case kindSize:
		return " SIZE"
	case kindList:
		return " [VALUE ...]"
	case kindAppend:
		return " JSON (repeatable)"
	default:
		if len(r.choices) > 0 {
			return " {" + strings.Join(r.choices, ",") + "}"
		}
		return " VALUE"
	}
}

// wrap breaks text into lines of at most width bytes where there are spaces.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
