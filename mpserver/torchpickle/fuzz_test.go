package torchpickle

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkParsed holds what must be true of everything that Parse accepts.
func checkParsed(t *testing.T, data []byte) {
	t.Helper()
	got, err := Parse(data)
	if err != nil {
		if got != nil {
			t.Error("tensors beside an error")
		}
		return
	}
	if len(got) > maxTensors {
		t.Errorf("%d tensors", len(got))
	}
	copied := 0
	for i := range got {
		x := &got[i]
		if err := x.check(); err != nil {
			t.Fatalf("tensor %d: %v", i, err)
		}
		n := x.NumBytes()
		if n < 0 {
			t.Fatalf("tensor %d has no size", i)
		}
		if copied += int(min(n, 1<<30)); copied > 1<<22 { // expanded views may be large
			return
		}
		dst := make([]byte, n)
		if err := x.CopyTo(dst); err != nil {
			t.Fatalf("tensor %d: %v", i, err)
		}
		if !bytes.Equal(dst, naive(x)) && n > 0 {
			t.Fatalf("tensor %d: copied wrongly", i)
		}
		e, err := NewEncoder(x.DType, x.Shape)
		require.NoError(t, err)
		again, err := Parse(e.Append(nil, [][]byte{dst}))
		require.NoError(t, err)
		if !bytes.Equal(contents(t, &again[0]), dst) || again[0].DType != x.DType {
			t.Fatalf("tensor %d: changed by encoding", i)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, v := range loadGolden(f).Vectors {
		f.Add([]byte(v.Reference))
		f.Add([]byte(v.Minimal))
		f.Add([]byte(v.Protocol5))
	}
	torch := loadTorch(f)
	for _, v := range torch.Good {
		if len(v.Pickle) < 2000 {
			f.Add([]byte(v.Pickle))
		}
	}
	for _, b := range torch.Refused {
		f.Add([]byte(b))
	}
	f.Add(list(good4(), good4()))
	f.Fuzz(checkParsed)
}

// TestDamagedPickles cuts every vector at every byte and changes every byte in
// a few ways: a cut is always an error, and nothing panics or leaves bounds.
func TestDamagedPickles(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range loadTorch(t).Good {
		kind := v.Name[:len(v.Name)-3]
		if _, isDType := dtypeNamed(kind); isDType && kind != "bfloat16" && kind != "float8_e4m3fn" {
			continue
		}
		if strings.HasSuffix(v.Name, "_p3") || strings.HasSuffix(v.Name, "_p5") || len(v.Pickle) > 1500 {
			continue // nearly the same as _p4
		}
		seen[kind] = true
		for i := range v.Pickle {
			if got, err := Parse(v.Pickle[:i]); err == nil {
				t.Errorf("%s cut at %d: parsed as %d tensors", v.Name, i, len(got))
			}
		}
		b := bytes.Clone(v.Pickle)
		for i, c := range b {
			for _, x := range []byte{c ^ 1, c ^ 0x80, opReduce} {
				b[i] = x
				checkParsed(t, b)
			}
			b[i] = c
		}
	}
	require.Greater(t, len(seen), 10)
}

func dtypeNamed(name string) (int, bool) {
	for i, d := range dtypes {
		if d.Name == name {
			return i, true
		}
	}
	return 0, false
}
