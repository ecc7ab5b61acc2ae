package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lmcache-go/lmcache-go/internal/bytesize"
)

// kind is how a flag is written and what its value is. The ways of writing are
// those of Python's argparse, whose command lines must run here unchanged.
type kind uint8

const (
	kindString kind = iota // --flag value, --flag=value
	kindInt
	kindFloat
	kindSize   // a number of the row's unit, or with a suffix
	kindBool   // --flag, --no-flag
	kindSwitch // --flag
	kindList   // --flag [value ...]
	kindAppend // --flag value, may be repeated
)

// origin says who decided a value.
type origin string

// Origins other than an environment variable, which is named itself.
const (
	fromDefault origin = "default"
	fromFlag    origin = "flag"
	fromMachine origin = "derived"
	unread      origin = "default, as what was given cannot be read"
)

// value is what a flag ended up as.
type value struct {
	origin origin
	// note tells how a derived value came about.
	note string
	text string   // as written; of kindBool and kindSwitch "true" or "false"
	list []string // of kindList and kindAppend
	n    int64    // of kindInt, and kindSize in bytes
	x    float64  // of kindFloat
	on   bool     // of kindBool and kindSwitch
}

// given reports whether somebody set the value.
func (v value) given() bool {
	return v.origin != fromDefault && v.origin != fromMachine && v.origin != unread
}

// String is the value for people.
func (v value) String() string {
	if v.list != nil {
		return strings.Join(v.list, " ")
	}
	return v.text
}

// same reports whether two values of the flag mean the same, whoever set them.
func (r *row) same(a, b value) bool {
	switch r.kind {
	case kindInt, kindSize:
		return a.n == b.n && (a.text == "") == (b.text == "")
	case kindFloat:
		return a.x == b.x && (a.text == "") == (b.text == "")
	case kindBool, kindSwitch:
		return a.on == b.on
	case kindList, kindAppend:
		return slices.Equal(a.list, b.list)
	default:
		return a.text == b.text
	}
}

// convert reads the text of one value. Its error is argparse's.
func (r *row) convert(text string) (value, error) {
	v := value{text: text}
	trimmed := strings.TrimSpace(text)
	var err error
	typ := ""
	switch r.kind {
	case kindInt:
		typ = "int"
		v.n, err = strconv.ParseInt(trimmed, 10, 64)
	case kindFloat:
		typ = "float"
		v.x, err = strconv.ParseFloat(trimmed, 64)
		if strings.ContainsAny(trimmed, "xXpP_") { // hexadecimal is Go's, not Python's
			err = strconv.ErrSyntax
		}
	case kindSize:
		typ = "size"
		v.n, err = bytesize.Parse(trimmed, r.unit)
	case kindBool, kindSwitch:
		v.on = text == "true"
	case kindList, kindAppend:
		v.list = []string{text}
	default:
		if len(r.choices) > 0 && !slices.Contains(r.choices, text) {
			return value{}, &usageError{fmt.Sprintf("argument --%s: invalid choice: '%s' (choose from %s)", r.name, text, quoted(r.choices))}
		}
	}
	if err != nil || math.IsNaN(v.x) {
		return value{}, &usageError{fmt.Sprintf("argument --%s: invalid %s value: '%s'", r.name, typ, text)}
	}
	return v, nil
}

func quoted(words []string) string {
	return "'" + strings.Join(words, "', '") + "'"
}

// negative is what argparse takes for a value although it begins with a dash.
var negative = regexp.MustCompile(`^-\d+$|^-\d*\.\d+$`)

func looksLikeFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && !negative.MatchString(arg) && !strings.Contains(arg, " ")
}

// parseArgs reads a command line of flags only. It returns the values that it
// sets, by the name of their row. Each unknown argument, missing or bad value is
// a usageError, joined; a flag with one has a value of origin unread.
func parseArgs(rows []row, args []string) (map[string]value, error) {
	set, _, err := parseLine(rows, 0, args)
	return set, err
}

// parseLine is parseArgs for a command with up to that many positional
// arguments, which may stand anywhere.
func parseLine(rows []row, positionals int, args []string) (map[string]value, []string, error) {
	p := argParser{rows: rows, rest: args, set: map[string]value{}, takes: positionals}
	var errs []error
	for len(p.rest) > 0 {
		if err := p.next(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(p.unknown) > 0 {
		errs = append(errs, &usageError{"unrecognized arguments: " + strings.Join(p.unknown, " ") + p.hint})
	}
	return p.set, p.positional, errors.Join(errs...)
}

type argParser struct {
	rows       []row
	rest       []string
	set        map[string]value
	takes      int // positional arguments
	positional []string
	unknown    []string
	hint       string // what an unknown flag may have meant
}

// stray takes an argument that belongs to no flag.
func (p *argParser) stray(arg string) {
	if len(p.positional) < p.takes {
		p.positional = append(p.positional, arg)
		return
	}
	p.unknown = append(p.unknown, arg)
}

// next reads one flag with its values, or sets an unknown argument aside.
func (p *argParser) next() error {
	arg := p.rest[0]
	p.rest = p.rest[1:]
	if arg == "--" {
		for _, a := range p.rest {
			p.stray(a)
		}
		p.rest = nil
		return nil
	}
	if !looksLikeFlag(arg) {
		p.stray(arg)
		return nil
	}
	name, text, hasText := strings.Cut(arg, "=")
	r, on := p.find(name)
	if r == nil {
		p.unknown = append(p.unknown, arg)
		p.suggest(name)
		return nil
	}
	switch r.kind {
	case kindBool, kindSwitch:
		if hasText {
			return &usageError{fmt.Sprintf("argument --%s: ignored explicit argument '%s'", r.name, text)}
		}
		p.set[r.name] = value{origin: fromFlag, text: strconv.FormatBool(on), on: on}
		return nil
	case kindList:
		list := []string{}
		if hasText {
			list = append(list, text)
		} else {
			for len(p.rest) > 0 && p.rest[0] != "--" && !looksLikeFlag(p.rest[0]) {
				list = append(list, p.rest[0])
				p.rest = p.rest[1:]
			}
		}
		p.set[r.name] = value{origin: fromFlag, text: strings.Join(list, " "), list: list}
		return nil
	default: // one argument
	}
	if !hasText {
		if len(p.rest) == 0 || p.rest[0] == "--" || looksLikeFlag(p.rest[0]) {
			p.set[r.name] = value{origin: unread}
			return &usageError{fmt.Sprintf("argument --%s: expected one argument", r.name)}
		}
		text = p.rest[0]
		p.rest = p.rest[1:]
	}
	v, err := r.convert(text)
	if err != nil {
		p.set[r.name] = value{origin: unread}
		return err
	}
	v.origin = fromFlag
	if r.kind == kindAppend {
		v.list = append(p.set[r.name].list, text)
		v.text = strings.Join(v.list, " ")
	}
	p.set[r.name] = v
	return nil
}

// find returns the row of a flag as written, and for a boolean what it says.
func (p *argParser) find(arg string) (r *row, on bool) {
	name, ok := strings.CutPrefix(arg, "--")
	for i := range p.rows {
		r := &p.rows[i]
		switch {
		case ok && name == r.name, r.short != "" && arg == r.short:
			return r, true
		case ok && r.kind == kindBool && name == "no-"+r.name:
			return r, false
		}
	}
	return nil, false
}

// suggest remembers which flag an abbreviation stands for: argparse would take
// it, and silently mean another one when a new flag makes it ambiguous.
func (p *argParser) suggest(arg string) {
	name, ok := strings.CutPrefix(arg, "--")
	if !ok || name == "" || p.hint != "" {
		return
	}
	var found []string
	for _, r := range p.rows {
		if strings.HasPrefix(r.name, name) && !r.hidden {
			found = append(found, "--"+r.name)
		}
	}
	if len(found) == 1 {
		p.hint = " (flags are not abbreviated here: write " + found[0] + ")"
	}
}
