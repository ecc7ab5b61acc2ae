package bytesize

import (
	"errors"
	"math"
	"testing"
)

func TestParse(t *testing.T) {
	f := func(s string, unit, want int64, wantErr error) {
		t.Helper()
		got, err := Parse(s, unit)
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("Parse(%q, %d) = %d, %v, want %d, %v", s, unit, got, err, want, wantErr)
		}
	}
	f("1.5", GiB, 1610612736, nil)
	f("100", GiB, 107374182400, nil)
	f("0.01", GiB, 10737418, nil) // as the reference: cut off, not rounded
	f("1e-3", GiB, 1073741, nil)
	f("4GiB", GiB, 4<<30, nil)
	f(" 4 gib ", GiB, 4<<30, nil)
	f("512MiB", GiB, 512<<20, nil)
	f("4GB", GiB, 4e9, nil)
	f("64MB", 1, 64e6, nil)
	f("10KiB", 1, 10240, nil)
	f("10kb", 1, 10000, nil)
	f("2TiB", 1, 2<<40, nil)
	f("1tb", 1, 1e12, nil)
	f("4096", 1, 4096, nil)
	f("4096B", GiB, 4096, nil)
	f("0", GiB, 0, nil)
	f("-1", GiB, 0, ErrRange)
	f("inf", GiB, 0, ErrRange)
	f("1e30", GiB, 0, ErrRange)
	f("nan", GiB, 0, ErrSyntax)
	f("", GiB, 0, ErrSyntax)
	f("GiB", GiB, 0, ErrSyntax)
	f("4 G", GiB, 0, ErrSyntax)
	f("0x10", GiB, 0, ErrSyntax)
	f("1_000", GiB, 0, ErrSyntax)
	f("four", GiB, 0, ErrSyntax)
}

func TestFormat(t *testing.T) {
	f := func(n int64, want string) {
		t.Helper()
		if got := Format(n); got != want {
			t.Errorf("Format(%d) = %q, want %q", n, got, want)
		}
	}
	f(0, "0 B")
	f(1023, "1023 B")
	f(1024, "1 KiB")
	f(4<<30, "4 GiB")
	f(10737418, "10.24 MiB")
	f(1610612736, "1.50 GiB")
	f(3<<40, "3 TiB")
	f(-2<<20, "-2 MiB")
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1.5", "4GiB", "-0", "1e400", "  ", "0x1p10", "∞"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Parse(s, GiB)
		if (err != nil && n != 0) || n < 0 || n == math.MaxInt64 {
			t.Errorf("Parse(%q) = %d, %v", s, n, err)
		}
	})
}
