package memlimit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// host makes a root folder with the given files.
func host(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	return root
}

const meminfo = "MemTotal:       1000 kB\nMemFree: 100 kB\nMemAvailable:    800 kB\nHugePages_Total: 0\n"

func TestRead(t *testing.T) {
	f := func(name string, files map[string]string, want ...Limit) {
		t.Helper()
		files["proc/meminfo"] = meminfo
		m, err := readAt(host(t, files))
		require.NoError(t, err, name)
		require.Equal(t, append([]Limit{{"host memory", 1000 << 10, 200 << 10}}, want...), m.Limits, name)
	}
	const (
		v1Mount = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n" +
			"33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
		v2Mount = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
	)

	f("no cgroups", map[string]string{})

	f("v2, two levels, file pages count as free", map[string]string{
		"proc/self/mountinfo":                  v2Mount,
		"proc/self/cgroup":                     "0::/pod/app\n",
		"sys/fs/cgroup/pod/app/memory.max":     "500000\n",
		"sys/fs/cgroup/pod/app/memory.current": "300000\n",
		"sys/fs/cgroup/pod/app/memory.stat":    "anon 1\ninactive_file 50000\nactive_file 10000\nshmem 70000\n",
		"sys/fs/cgroup/pod/memory.max":         "400000\n",
		"sys/fs/cgroup/pod/memory.current":     "300000\n",
		"sys/fs/cgroup/memory.stat":            "",
	}, Limit{"cgroup /pod/app", 500000, 240000}, Limit{"cgroup /pod", 400000, 300000})

	f("v2, memory.high below memory.max", map[string]string{
		"proc/self/mountinfo":          v2Mount,
		"proc/self/cgroup":             "0::/\n",
		"sys/fs/cgroup/memory.max":     "max\n",
		"sys/fs/cgroup/memory.high":    "5000\n",
		"sys/fs/cgroup/memory.current": "100\n",
	}, Limit{"cgroup /", 5000, 100})

	f("v2, no limit", map[string]string{
		"proc/self/mountinfo":          v2Mount,
		"proc/self/cgroup":             "0::/\n",
		"sys/fs/cgroup/memory.max":     "max\n",
		"sys/fs/cgroup/memory.high":    "max\n",
		"sys/fs/cgroup/memory.current": "100\n",
	})

	f("v1 beside an empty unified hierarchy", map[string]string{
		"proc/self/mountinfo":                            v1Mount + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
		"proc/self/cgroup":                               "4:memory:/a/b\n1:cpu:/other\n0::/\n",
		"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
		"sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "10\n",
		"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "600000\n",
		"sys/fs/cgroup/memory/a/memory.usage_in_bytes":   "100000\n",
		"sys/fs/cgroup/memory/a/memory.stat":             "inactive_file 99\ntotal_inactive_file 40000\ntotal_active_file 70000\n",
	}, Limit{"cgroup /a", 600000, 0})

	f("container: the host's path, of which only the end is mounted", map[string]string{
		"proc/self/mountinfo":                        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
		"proc/self/cgroup":                           "4:memory:/docker/abc\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes": "7000\n",
		"sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
	}, Limit{"cgroup /", 7000, 1000})

	f("container: a path that is not mounted at all", map[string]string{
		"proc/self/mountinfo":                        v1Mount,
		"proc/self/cgroup":                           "4:memory:/docker/abc\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes": "7000\n",
		"sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
	}, Limit{"cgroup /", 7000, 1000})

	f("broken files are no limit", map[string]string{
		"proc/self/mountinfo":          v2Mount + "nonsense\n1 2 3 - cgroup2\n",
		"proc/self/cgroup":             "0::/\nnonsense\n",
		"sys/fs/cgroup/memory.max":     "lots\n",
		"sys/fs/cgroup/memory.current": "100\n",
	})
}

func TestTightest(t *testing.T) {
	_, ok := Memory{}.Tightest()
	require.False(t, ok)
	m := Memory{Limits: []Limit{{"host", 1000, 100}, {"cgroup /", 500, 450}, {"cgroup /over", 100, 200}}}
	l, ok := m.Tightest()
	require.True(t, ok)
	require.Equal(t, "cgroup /over", l.Name)
	require.Zero(t, l.LeftBytes(), "never negative")
}

func TestUnknown(t *testing.T) {
	_, err := readAt(t.TempDir())
	require.ErrorIs(t, err, ErrUnknown)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = readAt(host(t, map[string]string{"proc/meminfo": "MemTotal: 1 kB\n"}))
	require.ErrorIs(t, err, ErrUnknown)
}

// TestThisMachine: whatever runs this has some memory, and knows it.
func TestThisMachine(t *testing.T) {
	m, err := Read()
	require.NoError(t, err)
	l, ok := m.Tightest()
	require.True(t, ok)
	require.Positive(t, l.Bytes)
	t.Logf("%+v", m.Limits)

	size, free, err := Filesystem(t.TempDir())
	require.NoError(t, err)
	require.Positive(t, size)
	require.LessOrEqual(t, free, size)
	_, _, err = Filesystem(filepath.Join(t.TempDir(), "none"))
	require.True(t, errors.Is(err, os.ErrNotExist))
}
