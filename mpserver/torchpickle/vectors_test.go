package torchpickle

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
)

// hexBytes is a JSON string of hexadecimal digits.
type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	var err error
	*h, err = hex.DecodeString(s)
	return err
}

func loadJSON[T any](t testing.TB, path string) T {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var v T
	require.NoError(t, json.Unmarshal(b, &v))
	return v
}

type goldenFile struct {
	Vectors []struct {
		Name      string     `json:"name"`
		DType     string     `json:"dtype"`
		Shape     []int64    `json:"shape"`
		Raw       []hexBytes `json:"raw"`
		Reference hexBytes   `json:"reference_pickle"`
		Minimal   hexBytes   `json:"minimal_pickle"`
		Protocol5 hexBytes   `json:"protocol5_pickle"`
	} `json:"vectors"`
}

type torchFile struct {
	Good []struct {
		Name    string `json:"name"`
		Tensors []struct {
			DType  string   `json:"dtype"`
			Shape  []int64  `json:"shape"`
			Stride []int64  `json:"stride"`
			Offset int64    `json:"offset"`
			Raw    hexBytes `json:"raw"`
		} `json:"tensors"`
		Pickle hexBytes `json:"pickle"`
	} `json:"good"`
	Refused map[string]hexBytes `json:"refused"`
}

func loadGolden(t testing.TB) goldenFile {
	t.Helper()
	f := loadJSON[goldenFile](t, "testdata/golden.json")
	require.Len(t, f.Vectors, 5)
	return f
}

func loadTorch(t testing.TB) torchFile {
	t.Helper()
	f := loadJSON[torchFile](t, "testdata/torch_vectors.json")
	require.Greater(t, len(f.Good), 150)
	require.Greater(t, len(f.Refused), 15)
	return f
}

func loadMany(t testing.TB) []byte {
	t.Helper()
	f, err := os.Open("testdata/many.pkl.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	b, err := io.ReadAll(z)
	require.NoError(t, err)
	return b
}

func mustDType(t testing.TB, name string) torchdtype.DType {
	t.Helper()
	d, ok := torchdtype.Lookup(name)
	require.True(t, ok, name)
	return d
}

// contents copies a tensor out.
func contents(t testing.TB, x *Tensor) []byte {
	t.Helper()
	require.GreaterOrEqual(t, x.NumBytes(), int64(0))
	dst := make([]byte, x.NumBytes())
	require.NoError(t, x.CopyTo(dst))
	return dst
}

// TestParseGolden: what the real client sends gives the exact bytes.
func TestParseGolden(t *testing.T) {
	for _, v := range loadGolden(t).Vectors {
		for form, data := range map[string][]byte{"reference": v.Reference, "minimal": v.Minimal, "protocol5": v.Protocol5} {
			got, err := Parse(data)
			require.NoError(t, err, "%s %s", v.Name, form)
			require.Len(t, got, len(v.Raw))
			for i := range got {
				if got[i].DType.Name != v.DType || !slices.Equal(got[i].Shape, v.Shape) {
					t.Errorf("%s %s: got %s %v, want %s %v", v.Name, form, got[i].DType.Name, got[i].Shape, v.DType, v.Shape)
				}
				if b := contents(t, &got[i]); !bytes.Equal(b, v.Raw[i]) {
					t.Errorf("%s %s, tensor %d: got %x, want %x", v.Name, form, i, b, v.Raw[i])
				}
				if _, ok := got[i].Contiguous(); !ok {
					t.Errorf("%s %s, tensor %d: not contiguous", v.Name, form, i)
				}
			}
		}
	}
}

// TestEncodeGolden: byte for byte the form that was loaded into real torch.
func TestEncodeGolden(t *testing.T) {
	for _, v := range loadGolden(t).Vectors {
		e, err := NewEncoder(mustDType(t, v.DType), v.Shape)
		require.NoError(t, err)
		chunks := make([][]byte, len(v.Raw))
		for i := range v.Raw {
			chunks[i] = v.Raw[i]
		}
		got := e.Append([]byte("before"), chunks)
		if !bytes.Equal(got, append([]byte("before"), v.Minimal...)) {
			t.Errorf("%s: got %x, want %x", v.Name, got[6:], []byte(v.Minimal))
		}
		if e.Size(len(chunks)) != len(v.Minimal) {
			t.Errorf("%s: Size says %d, want %d", v.Name, e.Size(len(chunks)), len(v.Minimal))
		}
	}
}

// TestParseTorch: every dtype in every protocol, and views of all kinds.
func TestParseTorch(t *testing.T) {
	for _, v := range loadTorch(t).Good {
		got, err := Parse(v.Pickle)
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		require.Len(t, got, len(v.Tensors), v.Name)
		for i, want := range v.Tensors {
			g := &got[i]
			if g.DType.Name != want.DType || !slices.Equal(g.Shape, want.Shape) || !slices.Equal(g.Stride, want.Stride) || g.Offset != want.Offset {
				t.Errorf("%s, tensor %d: got %s %v %v at %d, want %s %v %v at %d", v.Name, i,
					g.DType.Name, g.Shape, g.Stride, g.Offset, want.DType, want.Shape, want.Stride, want.Offset)
			}
			if b := contents(t, g); !bytes.Equal(b, want.Raw) {
				t.Errorf("%s, tensor %d: got %x, want %x", v.Name, i, b, []byte(want.Raw))
			}
		}
	}
}

func TestParseRefusesWhatIsNoListOfPlainTensors(t *testing.T) {
	for name, data := range loadTorch(t).Refused {
		got, err := Parse(data)
		if err == nil {
			t.Errorf("%s: parsed as %d tensors", name, len(got))
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

func TestParseManyTensors(t *testing.T) {
	got, err := Parse(loadMany(t))
	require.NoError(t, err)
	require.Len(t, got, 2501)
	for i := range got {
		n := -i
		want := []byte{byte(i), byte(i >> 8), byte(n), byte(n >> 8)}
		if b := contents(t, &got[i]); !bytes.Equal(b, want) {
			t.Fatalf("tensor %d: got %x, want %x", i, b, want)
		}
	}
}

// TestParseAliasesTheInput: nothing is copied before CopyTo.
func TestParseAliasesTheInput(t *testing.T) {
	v := loadGolden(t).Vectors[0]
	data := bytes.Clone(v.Reference)
	got, err := Parse(data)
	require.NoError(t, err)
	at := bytes.Index(data, v.Raw[0])
	require.Positive(t, at)
	data[at] ^= 0xff
	if b := contents(t, &got[0]); b[0] != v.Raw[0][0]^0xff {
		t.Error("a change of the input did not show in the tensor")
	}
}
