package torchdtype

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

type torchVector struct {
	Name      string `json:"name"`
	Canonical string `json:"canonical"`
	Itemsize  int    `json:"itemsize"`
	Rebuild   string `json:"rebuild"`
	Storage   string `json:"storage"`
}

func loadVectors(t *testing.T) []torchVector {
	t.Helper()
	b, err := os.ReadFile("testdata/torch_dtypes.json")
	require.NoError(t, err)
	var f struct {
		DTypes []torchVector `json:"dtypes"`
	}
	require.NoError(t, json.Unmarshal(b, &f))
	require.Greater(t, len(f.DTypes), 40)
	return f.DTypes
}

// TestLookupKnowsWhatTorchKnows compares the table with the listing of the real module.
func TestLookupKnowsWhatTorchKnows(t *testing.T) {
	vectors := loadVectors(t)
	for _, v := range vectors {
		d, ok := Lookup(v.Name)
		if !ok {
			t.Errorf("Lookup(%q): unknown", v.Name)
			continue
		}
		if d.Name != v.Canonical || d.Size != v.Itemsize {
			t.Errorf("Lookup(%q): got %s of %d bytes, want %s of %d", v.Name, d.Name, d.Size, v.Canonical, v.Itemsize)
		}
		if v.Rebuild == "" { // torch cannot pickle it
			continue
		}
		if got, want := d.V3(), v.Rebuild == "_rebuild_tensor_v3"; got != want {
			t.Errorf("%s: V3 is %v, want %v", v.Name, got, want)
		}
		if !d.V3() && d.Storage != v.Storage {
			t.Errorf("%s: storage %s, want %s", v.Name, d.Storage, v.Storage)
		}
	}
	if got, want := len(All())+len(Aliases()), len(vectors); got != want {
		t.Errorf("table has %d names, torch %d", got, want)
	}
}

func TestLookupRefuses(t *testing.T) {
	for _, name := range []string{"", "torch.float16", "Float16", "float17", "dtype", " half", "HalfStorage"} {
		if d, ok := Lookup(name); ok {
			t.Errorf("Lookup(%q): got %s, want unknown", name, d.Name)
		}
	}
}

func TestByStorage(t *testing.T) {
	for _, d := range All() {
		if d.V3() {
			continue
		}
		if got, ok := ByStorage(d.Storage); !ok || got != d {
			t.Errorf("ByStorage(%q): got %v, want %v", d.Storage, got, d)
		}
	}
	for _, class := range []string{"", "UntypedStorage", "TypedStorage", "QInt8Storage"} {
		if _, ok := ByStorage(class); ok {
			t.Errorf("ByStorage(%q): found", class)
		}
	}
}

func TestCopiesAreTheCallers(t *testing.T) {
	All()[0].Size = 99
	Aliases()["half"] = "int8"
	if d, _ := Lookup("half"); d.Name != "float16" || All()[0].Size == 99 {
		t.Error("a caller's change reached the table")
	}
}

func TestLookupDoesNotAllocate(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Lookup("half") }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
