package kvlayout

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func formOf(t *testing.T, in Input) *Form {
	t.Helper()
	l, err := New(in)
	require.NoError(t, err)
	return l.Object[0].Form
}

func TestForms(t *testing.T) {
	t.Parallel()
	nhd := formOf(t, vllmInput(vllm033("LBNHC", 4, 64, 4, 16, 64), "NHD"))
	nhd32 := formOf(t, vllmInput(vllm033("BLNHC", 4, 64, 4, 32, 64), "NHD"))
	hnd := formOf(t, vllmInput(vllm033("LBHNC", 4, 64, 4, 16, 64), "HND"))
	hnd32 := formOf(t, vllmInput(vllm033("BLHNC", 4, 64, 4, 32, 64), "BLHNC"))
	hnd8heads := formOf(t, vllmInput(vllm033("LBHNC", 4, 64, 8, 16, 32), "HND"))
	split := formOf(t, vllmInput(dense(4, "bfloat16", 2, 2, 64, 16, 4, 32), "NHD"))
	half := formOf(t, vllmInput(dense(4, "float16", 2, 64, 16, 4, 64), "NHD"))
	engine, err := NewTokenMajor("bfloat16", 1, 4, 256, 512)
	require.NoError(t, err)

	if !nhd.Equal(nhd32) || !nhd.Equal(engine) || !nhd.TokenMajor() {
		t.Error("token-major objects do not depend on block sizes")
	}
	if hnd.TokenMajor() || hnd.Equal(nhd) || hnd.Equal(hnd32) || !hnd.AsTokenMajor().Equal(nhd) || nhd.AsTokenMajor() != nhd {
		t.Error("head-major objects do")
	}
	f := func(a, b *Form, want bool) {
		t.Helper()
		if a.Convertible(b) != want || b.Convertible(a) != want {
			t.Errorf("%v and %v: convertible is not %v", a, b, want)
		}
	}
	f(nhd, hnd, true)
	f(hnd, hnd32, true)
	f(engine, hnd32, true)
	f(hnd8heads, nhd, true)
	f(hnd8heads, hnd, false)
	f(split, nhd, false)
	f(split, hnd, false)
	f(half, nhd, false)
	if split.Bytes != nhd.Bytes || half.Bytes != nhd.Bytes {
		t.Error("the cases above should differ in more than size")
	}

	var forms Forms
	id, first, err := forms.Intern(nhd)
	require.NoError(t, err)
	if id != 1 || first != nhd {
		t.Errorf("got id %d", id)
	}
	id, again, err := forms.Intern(nhd32)
	require.NoError(t, err)
	if id != 1 || again != nhd {
		t.Error("equal forms have one number and one pointer")
	}
	id, _, err = forms.Intern(hnd)
	require.NoError(t, err)
	if id != 2 || forms.Form(2) != hnd || forms.Form(0) != nil || forms.Form(3) != nil {
		t.Errorf("got id %d", id)
	}
	for i := range 300 {
		f, err := NewTokenMajor("uint8", 1, 1, 1, int64(i+1))
		require.NoError(t, err)
		if _, _, err = forms.Intern(f); i < 253 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrForms)
		}
	}
	for _, bad := range [][4]int64{{0, 1, 1, 1}, {3, 1, 1, 1}, {1, 0, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 0}, {1, 1, 1 << 40, 1 << 40}} {
		if _, err := NewTokenMajor("uint8", int(bad[0]), int(bad[1]), bad[2], bad[3]); err == nil {
			t.Errorf("%v is a form", bad)
		}
	}
}
