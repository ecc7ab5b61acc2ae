//go:build linux && cgo

package capi

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func TestCover(t *testing.T) {
	ranges := []Range{{0, 100, 200}, {0, 200, 300}, {0, 500, 600}, {1, 100, 200}}
	f := func(descs []Desc, want int, wantUsed []uint8, wantBytes uint64) {
		t.Helper()
		used := make([]uint8, len(ranges))
		n, bytes := Cover(descs, ranges, used)
		if n != want || (n == len(descs) && (!slices.Equal(used, wantUsed) || bytes != wantBytes)) {
			t.Errorf("Cover(%v) = %d, %d bytes, used %v; want %d, %d, %v", descs, n, bytes, used, want, wantBytes, wantUsed)
		}
	}
	f([]Desc{{100, 100, 0}, {250, 50, 0}, {599, 1, 0}}, 3, []uint8{1, 1, 1, 0}, 151)
	f([]Desc{{150, 100, 0}}, 0, nil, 0) // crosses a boundary
	f([]Desc{{100, 10, 1}, {100, 10, 2}}, 1, nil, 0)
	f([]Desc{{99, 1, 0}}, 0, nil, 0)
	f([]Desc{{300, 0, 0}}, 1, []uint8{0, 1, 0, 0}, 0) // empty, at the end
	f([]Desc{{300, 1, 0}}, 0, nil, 0)
	f([]Desc{{150, ^uint64(0), 0}}, 0, nil, 0) // wraps around
	f([]Desc{{^uint64(0), 2, 0}}, 0, nil, 0)
}

func TestMerge(t *testing.T) {
	f := func(a, b Side, sort bool, wantA, wantB []Desc) {
		t.Helper()
		gotA, gotB := Merge(a, b, sort)
		if !slices.Equal(gotA, wantA) || !slices.Equal(gotB, wantB) {
			t.Errorf("Merge(%v, %v, %v) = %v, %v; want %v, %v", a.Descs, b.Descs, sort, gotA, gotB, wantA, wantB)
		}
	}
	d := func(list ...Desc) Side { return Side{Descs: list} }
	// Neighbours on both sides join; on one side only they do not.
	f(d(Desc{0, 10, 0}, Desc{10, 10, 0}, Desc{20, 5, 0}), d(Desc{100, 10, 0}, Desc{110, 10, 0}, Desc{300, 5, 0}), false,
		[]Desc{{0, 20, 0}, {20, 5, 0}}, []Desc{{100, 20, 0}, {300, 5, 0}})
	// Another device ends a run.
	f(d(Desc{0, 10, 0}, Desc{10, 10, 1}), d(Desc{0, 10, 0}, Desc{10, 10, 0}), false,
		[]Desc{{0, 10, 0}, {10, 10, 1}}, []Desc{{0, 10, 0}, {10, 10, 0}})
	// Out of order: only sorting finds the neighbours.
	rev := d(Desc{20, 10, 0}, Desc{10, 10, 0}, Desc{0, 10, 0})
	revB := d(Desc{120, 10, 7}, Desc{110, 10, 7}, Desc{100, 10, 7})
	f(rev, revB, false, rev.Descs, revB.Descs)
	f(rev, revB, true, []Desc{{0, 30, 0}}, []Desc{{100, 30, 7}})
	// Regions that touch stay apart.
	a, b := d(Desc{0, 10, 0}, Desc{10, 10, 0}, Desc{20, 10, 0}), d(Desc{100, 10, 0}, Desc{110, 10, 0}, Desc{120, 10, 0})
	a.Ranges = []Range{{0, 0, 10}, {0, 10, 30}}
	f(a, b, false, []Desc{{0, 10, 0}, {10, 20, 0}}, []Desc{{100, 10, 0}, {110, 20, 0}})
	a.Ranges, b.Ranges = nil, []Range{{0, 100, 120}, {0, 120, 130}}
	f(a, b, false, []Desc{{0, 20, 0}, {20, 10, 0}}, []Desc{{100, 20, 0}, {120, 10, 0}})
	// Devices are the first key when sorting.
	f(d(Desc{0, 10, 300}, Desc{0, 10, 1}, Desc{10, 10, 300}), d(Desc{0, 10, 0}, Desc{50, 10, 0}, Desc{10, 10, 0}), true,
		[]Desc{{0, 10, 1}, {0, 20, 300}}, []Desc{{50, 10, 0}, {0, 20, 0}})
}

// bytesOf lists which byte goes where, the meaning of a pair of lists.
func bytesOf(a, b []Desc) map[[2]uint64][2]uint64 {
	m := map[[2]uint64][2]uint64{}
	for i := range a {
		for k := range a[i].Len {
			m[[2]uint64{a[i].Dev, a[i].Addr + k}] = [2]uint64{b[i].Dev, b[i].Addr + k}
		}
	}
	return m
}

func TestMergeKeepsEveryByte(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n := 1 + r.IntN(40)
		perm := r.Perm(50)
		var a, b []Desc
		for i := range n {
			slot := uint64(perm[i])
			a = append(a, Desc{slot * 4, 4, slot % 2})
			b = append(b, Desc{1000 + (slot^uint64(r.IntN(2)*8))*4, 4, 0})
		}
		sort := r.IntN(2) == 1
		outA, outB := Merge(Side{Descs: a}, Side{Descs: b}, sort)
		if !reflect.DeepEqual(bytesOf(a, b), bytesOf(outA, outB)) {
			t.Fatalf("Merge changed what goes where:\n%v\n%v\n%v\n%v", a, b, outA, outB)
		}
	}
}

func TestSortIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		n := 1 + r.IntN(3000)
		a, b := make([]int32, n), make([]int32, n)
		for i := range a {
			a[i], b[i] = int32(r.IntN(1<<20)), int32(i)
		}
		outA, outB := SortIndex(a, b)
		if !slices.IsSorted(outA) {
			t.Fatal("not sorted")
		}
		for i := range outA {
			if a[outB[i]] != outA[i] {
				t.Fatalf("pair %d was torn", i)
			}
		}
	}
}

func TestExpandAndBounds(t *testing.T) {
	out := make([]Desc, 5)
	n := Expand([]Stride{{Addr: 0, Len: 4, Dev: 1, Stride: 8, Count: 3}, {Addr: 100, Len: 2, Stride: 2, Count: 2}}, out)
	want := []Desc{{0, 4, 1}, {8, 4, 1}, {16, 4, 1}, {100, 2, 0}, {102, 2, 0}}
	if n != 5 || !slices.Equal(out, want) {
		t.Errorf("Expand = %d, %v, want %v", n, out, want)
	}
	if got := FirstUnequal(want, want[:4]); got != 4 {
		t.Errorf("FirstUnequal = %d, want 4", got)
	}
	if got := FirstUnequal(want, []Desc{{9, 4, 0}, {9, 5, 0}}); got != 1 {
		t.Errorf("FirstUnequal = %d, want 1", got)
	}
	if got := FirstOutside([]int32{0, 4, 5}, 5); got != 2 {
		t.Errorf("FirstOutside = %d, want 2", got)
	}
	if got := FirstOutside([]int32{0, -1}, 5); got != 1 {
		t.Errorf("FirstOutside = %d, want 1", got)
	}
}

func TestSplitAnswers(t *testing.T) {
	data := append([]byte{0, 1, 2, 0, 0, 0}, "size\x0012\x00mode\x00\x00"...)
	data = append(data, 1, 0, 0, 0, 0)
	got := splitAnswers(data)
	want := []map[string]string{nil, {"size": "12", "mode": ""}, {}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("splitAnswers = %v, want %v", got, want)
	}
}

func BenchmarkMerge4096Unsorted(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	a, c := make([]Desc, 4096), make([]Desc, 4096)
	for i, p := range r.Perm(4096) {
		a[i], c[i] = Desc{uint64(p) * 65536, 65536, 0}, Desc{uint64(p) * 65536, 65536, 0}
	}
	b.ReportAllocs()
	for b.Loop() {
		Merge(Side{Descs: a}, Side{Descs: c}, true)
	}
}
