// Package bytesize reads and writes numbers of bytes as people do on a command
// line: 1.5, 4GiB, 512MiB, 100GB.
package bytesize

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Binary units.
const (
	KiB int64 = 1 << 10
	MiB int64 = 1 << 20
	GiB int64 = 1 << 30
	TiB int64 = 1 << 40
)

// ErrSyntax is returned for text that is not a size.
var ErrSyntax = errors.New("not a size: use a number, alone or with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB")

// ErrRange is returned for a size that is negative or does not fit 63 bits.
var ErrRange = errors.New("size is negative or too large")

// units in an order in which no suffix hides a longer one.
var units = []struct {
	suffix string
	bytes  int64
}{
	{"kib", KiB},
	{"mib", MiB},
	{"gib", GiB},
	{"tib", TiB},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"tb", 1e12},
	{"b", 1},
}

// Parse reads a size. A number without a suffix is multiplied by unit: the
// reference's --l1-size-gb counts GiB whatever its name says, so 1.5 there is
// Parse("1.5", GiB). With a suffix the suffix decides: GiB is 2^30 bytes, GB is
// 10^9. Case does not matter; fractions of a byte are cut off.
func Parse(s string, unit int64) (int64, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			text, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(x) || strings.ContainsAny(text, "xp_") { // no hexadecimal
		return 0, fmt.Errorf("%q: %w", s, ErrSyntax)
	}
	bytes := x * float64(unit)
	if bytes < 0 || bytes >= math.MaxInt64 {
		return 0, fmt.Errorf("%q: %w", s, ErrRange)
	}
	return int64(bytes), nil
}

// Format writes n with two decimals in the largest binary unit that leaves a
// number of at least 1; whole numbers have no decimals.
func Format(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}} {
		if n >= u.bytes || n <= -u.bytes {
			if n%u.bytes == 0 {
				return fmt.Sprintf("%d %s", n/u.bytes, u.name)
			}
			return fmt.Sprintf("%.2f %s", float64(n)/float64(u.bytes), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
