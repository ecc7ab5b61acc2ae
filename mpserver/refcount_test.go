package mpserver

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// refFile makes a file of torch's with counters set to v.
func refFile(t *testing.T, dir, name string, v uint64, indices ...int64) string {
	t.Helper()
	b := make([]byte, refFileBytes)
	for _, i := range indices {
		binary.LittleEndian.PutUint64(b[refFileHead+8*i:], v)
	}
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

func counterAt(t *testing.T, path string, i int64) int64 {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return int64(binary.LittleEndian.Uint64(b[refFileHead+8*i:]))
}

func TestCountDown(t *testing.T) {
	dir := t.TempDir()
	path := refFile(t, dir, "torch_427_130202418_0", 1, 0, 5, refFileCounters-1)
	name := "/torch_427_130202418_0"
	n, err := countDown(dir, []refCounter{{name, 0}, {name, 5}, {name, 7}})
	require.NoError(t, err)
	require.Equal(t, 2, n, "a counter of 0 stays")
	require.Zero(t, counterAt(t, path, 0))
	require.Zero(t, counterAt(t, path, 7))
	require.Equal(t, int64(1), counterAt(t, path, refFileCounters-1))
	n, err = countDown(dir, []refCounter{{name, refFileCounters - 1}, {name, refFileCounters}, {name, -1}})
	require.ErrorIs(t, err, errRefFile)
	require.Equal(t, 1, n)
}

// A client names the file: no other one may be touched.
func TestCountDownTouchesNothingElse(t *testing.T) {
	dir := t.TempDir()
	good := refFile(t, dir, "torch_1_2_3", 1, 0)
	require.NoError(t, os.Symlink(good, filepath.Join(dir, "torch_link")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "torch_short"), make([]byte, 100), 0o600))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "torch_fifo"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	refFile(t, filepath.Join(dir, "sub"), "torch_1", 1, 0)
	for _, name := range []string{"/torch_link", "/torch_short", "/torch_fifo", "/torch_none", "torch_1_2_3", "/sub/torch_1", "/torch_../torch_1_2_3", "/../torch_1_2_3", "", "/torch_"} {
		n, err := countDown(dir, []refCounter{{name, 0}})
		require.Error(t, err, name)
		require.Zero(t, n, name)
	}
	require.Equal(t, int64(1), counterAt(t, good, 0))
}
