package torchpickle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
)

// pythonEnv names the interpreter of an environment with torch; `make test`
// sets it.
const pythonEnv = "LMCACHE_GO_PYTHON"

type ourCase struct {
	File   string   `json:"file"`
	DType  string   `json:"dtype"`
	Shape  []int64  `json:"shape"`
	SHA256 []string `json:"sha256"`
}

type theirCase struct {
	File   string    `json:"file"`
	DTypes []string  `json:"dtypes"`
	Shapes [][]int64 `json:"shapes"`
	SHA256 []string  `json:"sha256"`
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// TestRealTorch: a live torch loads what the encoder writes, for every dtype,
// and Parse reads what it writes, in every protocol.
func TestRealTorch(t *testing.T) {
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Skipf("set %s to a Python with torch", pythonEnv)
	}
	dir := t.TempDir()
	writeOurs(t, dir)
	out, err := exec.CommandContext(t.Context(), python, "testdata/check_torch.py", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, c := range loadJSON[[]string](t, filepath.Join(dir, "result.json")) {
		t.Errorf("torch: %s", c)
	}
	cases := loadJSON[[]theirCase](t, filepath.Join(dir, "theirs.json"))
	require.Greater(t, len(cases), 100)
	for _, c := range cases {
		checkTheirs(t, dir, c)
	}
}

func writeOurs(t *testing.T, dir string) {
	t.Helper()
	var cases []ourCase
	add := func(d torchdtype.DType, count int, shape ...int64) {
		e, err := NewEncoder(d, shape)
		require.NoError(t, err)
		c := ourCase{File: fmt.Sprintf("ours_%d.pkl", len(cases)), DType: d.Name, Shape: append([]int64{}, shape...), SHA256: []string{}}
		chunks := make([][]byte, count)
		for i := range chunks {
			chunks[i] = pattern(e.ChunkBytes(), i)
			if d.Name == "bool" {
				for j := range chunks[i] {
					chunks[i][j] &= 1
				}
			}
			c.SHA256 = append(c.SHA256, sum(chunks[i]))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, c.File), e.Append(nil, chunks), 0o600))
		cases = append(cases, c)
	}
	for _, d := range torchdtype.All() {
		add(d, 2, 2, 3)
		add(d, 1, 2, 2, 64, 300)
		add(d, 1, 0, 4)
		add(d, 1)
	}
	bf := mustDType(t, "bfloat16")
	add(bf, 0, 1)
	add(bf, 4, 2, 8, 256, 128)
	add(bf, 1001, 3)
	add(mustDType(t, "uint8"), 1, 33<<20)
	b, err := json.Marshal(cases)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ours.json"), b, 0o600))
}

func checkTheirs(t *testing.T, dir string, c theirCase) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, c.File))
	require.NoError(t, err)
	got, err := Parse(data)
	if err != nil {
		t.Errorf("%s: %v", c.File, err)
		return
	}
	require.Len(t, got, len(c.SHA256), c.File)
	for i := range got {
		if got[i].DType.Name != c.DTypes[i] || !slices.Equal(got[i].Shape, c.Shapes[i]) {
			t.Errorf("%s[%d]: got %s %v, want %s %v", c.File, i, got[i].DType.Name, got[i].Shape, c.DTypes[i], c.Shapes[i])
		} else if sum(contents(t, &got[i])) != c.SHA256[i] {
			t.Errorf("%s[%d]: bytes differ", c.File, i)
		}
	}
}
