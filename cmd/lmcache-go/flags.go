package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

// stance is what this server does about a flag.
type stance uint8

const (
	// served: the flag does what the reference's does.
	served stance = iota
	// accepted: any value is taken and none has an effect; why says why that is
	// harmless.
	accepted
	// refused: a value other than the default stops the start; why says why and
	// what to use instead.
	refused
)

// row is one flag of `lmcache-go server`. The table of rows is what the parser,
// --help, --check and the tests read; nothing else knows a flag's name.
type row struct {
	name, short string
	group       string
	kind        kind
	unit        int64    // of kindSize: bytes per 1 without a suffix
	def         string   // as it would be written; "" is not set
	choices     []string // of kindString: nothing else is taken
	env         string   // the variable that stands in for the flag
	help        string
	stance      stance
	why         string
	hidden      bool // left out of --help: a deprecated alias

	// check says what is wrong with a value that could be read, "" when nothing is.
	check func(v value) string
	// apply puts the value where it has its effect.
	apply func(o *mpserver.Options, v value)
}

// defaultValue is the value when nobody sets the flag.
func (r *row) defaultValue() value {
	if r.def == "" && r.kind != kindBool && r.kind != kindSwitch {
		return value{origin: fromDefault}
	}
	def := r.def
	if def == "" {
		def = "false"
	}
	v, err := r.convert(def)
	if err != nil {
		panic(fmt.Sprintf("default of --%s: %v", r.name, err)) // a test walks the table
	}
	v.origin = fromDefault
	if r.kind == kindList || r.kind == kindAppend {
		v.list = nil
	}
	return v
}

// problem is the line about a value that cannot be used, "" when it can. It
// begins with what has to change: the flag, or the variable that stands in for it.
func (r *row) problem(v value) string {
	name, given := "--"+r.name, " "+v.String()
	if v.given() && v.origin != fromFlag {
		name, given = string(v.origin), "="+v.String()
	}
	if r.check != nil {
		if text := r.check(v); text != "" {
			return name + " " + text
		}
	}
	if r.stance != refused || !v.given() || r.same(v, r.defaultValue()) {
		return ""
	}
	if r.kind == kindBool || r.kind == kindSwitch {
		given = strings.TrimSuffix(given, " true") // the flag alone says it
	}
	return name + given + " is not served: " + r.why
}

// Groups in the order of --help.
const (
	groupServer  = "MP server"
	groupP2P     = "P2P"
	groupL1      = "L1"
	groupL2      = "L2"
	groupHTTP    = "HTTP"
	groupObserve = "observability"
	groupCoord   = "coordinator"
	groupCommon  = "common"
	groupOurs    = "lmcache-go only"
)

var groups = []string{groupServer, groupP2P, groupL1, groupL2, groupHTTP, groupObserve, groupCoord, groupCommon, groupOurs}

// serverFlags is every flag of the reference's `lmcache server` (lmcache 0.5.6,
// cli/commands/server.py and the modules that add to its parser), then ours.
func serverFlags() []row {
	var all []row
	for _, part := range []struct {
		group string
		rows  []row
	}{
		{groupServer, mpFlags()},
		{groupL1, l1Flags()},
		{"", tierFlags()},
		{groupHTTP, httpFlags()},
		{groupObserve, observeFlags()},
		{groupCoord, coordinatorFlags()},
		{groupOurs, ownFlags()},
	} {
		for _, r := range part.rows {
			if r.group == "" {
				r.group = part.group
			}
			all = append(all, r)
		}
	}
	return all
}

// atLeast checks a whole number.
func atLeast(low int64) func(value) string {
	return func(v value) string {
		if v.text != "" && v.n < low {
			return fmt.Sprintf("must be at least %d, got %s", low, v.text)
		}
		return ""
	}
}

// between checks a whole number.
func between(low, high int64) func(value) string {
	return func(v value) string {
		if v.n < low || v.n > high {
			return fmt.Sprintf("must be between %d and %d, got %s", low, high, v.text)
		}
		return ""
	}
}

// maxSeconds keeps a time well inside time.Duration.
const maxSeconds = 1e9

// seconds checks a time that must not be 0.
func seconds(v value) string {
	if v.x <= 0 || v.x > maxSeconds {
		return fmt.Sprintf("must be a number of seconds above 0 and at most %g, got %s", float64(maxSeconds), v.text)
	}
	return ""
}

// fraction checks a number above 0 and at most 1. 0 is refused because no policy
// means anything by it.
func fraction(zero string) func(value) string {
	return func(v value) string {
		switch {
		case v.x == 0:
			return "must be above 0: " + zero
		case v.x < 0 || v.x > 1:
			return "must be between 0 and 1, got " + v.text
		}
		return ""
	}
}

func duration(v value) time.Duration { return time.Duration(v.x * float64(time.Second)) }
