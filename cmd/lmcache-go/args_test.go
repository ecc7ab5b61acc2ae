package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/bytesize"
)

// toyFlags has one row of each kind.
func toyFlags() []row {
	return []row{
		{name: "text"},
		{name: "word", choices: []string{"a", "b"}},
		{name: "count", kind: kindInt},
		{name: "share", kind: kindFloat},
		{name: "size", kind: kindSize, unit: bytesize.GiB},
		{name: "pair", kind: kindBool, def: "true"},
		{name: "switch", kind: kindSwitch, short: "-s"},
		{name: "many", kind: kindList},
		{name: "again", kind: kindAppend},
	}
}

func TestParseArgs(t *testing.T) {
	f := func(line, flag, want string) {
		t.Helper()
		got, err := parseArgs(toyFlags(), strings.Fields(line))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			return
		}
		v, ok := got[flag]
		if !ok || v.String() != want || v.origin != fromFlag {
			t.Errorf("%s: --%s is %q (%v), want %q", line, flag, v.String(), v.origin, want)
		}
	}
	f("--text a", "text", "a")
	f("--text=a", "text", "a")
	f("--text=a=b", "text", "a=b")
	f("--text=", "text", "")
	f("--text a --text b", "text", "b")
	f("--text -5", "text", "-5") // a number is a value
	f("--text -", "text", "-")
	f("--count 5 --text x", "count", "5")
	f("--count -1", "count", "-1")
	f("--pair", "pair", "true")
	f("--no-pair", "pair", "false")
	f("--no-pair --pair", "pair", "true")
	f("--switch", "switch", "true")
	f("-s", "switch", "true")
	f("--many", "many", "")
	f("--many a b --count 1", "many", "a b")
	f("--many=a --count 1", "many", "a")
	f("--many -1 -.5", "many", "-1 -.5")
	f("--again {} --again [1]", "again", "{} [1]")
	f("--word b", "word", "b")

	got, err := parseArgs(toyFlags(), []string{"--size", "1.5", "--share", " 2e-1 ", "--text", "--with space"})
	require.NoError(t, err)
	require.Equal(t, int64(1610612736), got["size"].n)
	require.Equal(t, 0.2, got["share"].x)
	require.Equal(t, "--with space", got["text"].text)
	require.NotContains(t, got, "count")
}

func TestParseArgsErrors(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		_, err := parseArgs(toyFlags(), strings.Fields(line))
		if err == nil || err.Error() != want || !isUsage(err) {
			t.Errorf("%s: got %v, want %s", line, err, want)
		}
	}
	f("--bogus-flag", "unrecognized arguments: --bogus-flag")
	f("--bogus 1 --count 2 stray", "unrecognized arguments: --bogus 1 stray")
	f("-- --count 2", "unrecognized arguments: --count 2")
	f("stray", "unrecognized arguments: stray")
	f("--no-switch", "unrecognized arguments: --no-switch")
	f("--cou 2", "unrecognized arguments: --cou 2 (flags are not abbreviated here: write --count)")
	f("--s 2", "unrecognized arguments: --s 2") // could be several
	f("--text", "argument --text: expected one argument")
	f("--text --count 1", "argument --text: expected one argument")
	f("--text --", "argument --text: expected one argument")
	f("--again", "argument --again: expected one argument")
	f("--count x", "argument --count: invalid int value: 'x'")
	f("--count 1.5", "argument --count: invalid int value: '1.5'")
	f("--count 99999999999999999999", "argument --count: invalid int value: '99999999999999999999'")
	f("--share 0x1p3", "argument --share: invalid float value: '0x1p3'")
	f("--share nan", "argument --share: invalid float value: 'nan'")
	f("--size -1", "argument --size: invalid size value: '-1'")
	f("--size 4Gi", "argument --size: invalid size value: '4Gi'")
	f("--word c", "argument --word: invalid choice: 'c' (choose from 'a', 'b')")
	f("--switch=yes", "argument --switch: ignored explicit argument 'yes'")
	f("--no-pair=1", "argument --pair: ignored explicit argument '1'")
	f("--count x --word c stray", "argument --count: invalid int value: 'x'\nargument --word: invalid choice: 'c' (choose from 'a', 'b')\nunrecognized arguments: stray")
}

func FuzzParseArgs(f *testing.F) {
	for _, s := range []string{"--port\x00--", "--l1-size-gb=1e400", "--enable\x00-1\x00--x=", "-q\x00--no-isolated-ipc", "--\x00a"} {
		f.Add(s)
	}
	rows := serverFlags()
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\x00")
		set, err := parseArgs(rows, args)
		if err != nil {
			if !isUsage(err) {
				t.Errorf("%q: %v is not a usage error", args, err)
			}
			return
		}
		s := &settings{rows: rows, values: set}
		for i := range rows {
			if _, ok := set[rows[i].name]; !ok {
				s.values[rows[i].name] = rows[i].defaultValue()
			}
		}
		_ = s.problems() // whatever was read must be checkable
	})
}
