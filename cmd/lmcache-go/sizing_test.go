package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/bytesize"
	"github.com/lmcache-go/lmcache-go/internal/memlimit"
	"github.com/lmcache-go/lmcache-go/mpserver"
)

// fakeMachine has so much memory left in a cgroup and so much free in /dev/shm.
func fakeMachine(left, shmFree int64) machine {
	return machine{
		memory: func() (memlimit.Memory, error) {
			return memlimit.Memory{Limits: []memlimit.Limit{
				{Name: "host memory", Bytes: 1 << 50},
				{Name: "cgroup /pod", Bytes: left + bytesize.GiB, UsedBytes: bytesize.GiB},
			}}, nil
		},
		shm:      func() (int64, int64, error) { return shmFree + bytesize.MiB, shmFree, nil },
		segment:  func(string) int64 { return 0 },
		mappedBy: func(string) []process { return nil },
		listener: func(int) (process, bool) { return process{}, false },
		gpus:     func() ([]mpserver.GPUInfo, error) { return nil, errors.New("no driver here") },
		self:     process{1, "lmcache-go"},
	}
}

func TestDerivedSize(t *testing.T) {
	f := func(left, shmFree int64, args string, want int64, note string) {
		t.Helper()
		s, err := readSettings(strings.Fields(args), noEnv)
		require.NoError(t, err)
		_, err = s.size(fakeMachine(left, shmFree))
		require.NoError(t, err)
		v := s.get("l1-size-gb")
		if v.n != want || !strings.Contains(v.describe(), "derived: ") || !strings.Contains(v.note, note) {
			t.Errorf("got %s (%s), want %s (%s)", sizeText(v.n), v.describe(), sizeText(want), note)
		}
	}
	const gib = bytesize.GiB
	f(100*gib, gib, "", 4*gib, "the default of 4 GiB")
	f(16*gib, gib, "", 4*gib, "the default of 4 GiB")
	f(8*gib, gib, "", 2*gib, "a quarter of the 8 GiB that cgroup /pod leaves")
	f(8*gib+12345, gib, "", 2*gib, "a quarter")
	f(100*gib, 64*bytesize.MiB, "--shm-name x", 64*bytesize.MiB, "all that is free in /dev/shm") // docker's default
	f(8*gib, 50*gib, "--shm-name x", 2*gib, "a quarter")

	s := read(t)
	s.values["l1-size-gb"] = value{origin: fromDefault}
	_, err := s.size(fakeMachine(2*bytesize.MiB, 0))
	require.ErrorContains(t, err, "no room for a pool: cgroup /pod leaves 2 MiB")
}

func TestGivenSize(t *testing.T) {
	f := func(left, shmFree int64, args string, want ...string) {
		t.Helper()
		_, err := read(t, strings.Fields(args)...).size(fakeMachine(left, shmFree))
		got := flatten(err)
		if len(got) != len(want) {
			t.Errorf("%s: got %v, want %v", args, got, want)
			return
		}
		for i := range want {
			require.Contains(t, got[i].Error(), want[i], args)
		}
	}
	const gib = bytesize.GiB
	f(10*gib, 0, "--l1-size-gb 10")
	f(10*gib, 0, "--l1-size-gb 10.01", "--l1-size-gb asks for 10.01 GiB, but cgroup /pod leaves 10 GiB (1 GiB used of 11 GiB): give at most --l1-size-gb 9.5, or raise the limit")
	f(512*bytesize.MiB, 0, "--l1-size-gb 1", "give at most --l1-size-gb 486MiB")
	f(10*gib, 64*bytesize.MiB, "--l1-size-gb 1 --shm-name x", "--shm-name puts the pool of 1 GiB in /dev/shm, which has 64 MiB free of 65 MiB: make it larger (docker run --shm-size")
	f(gib, gib, "--l1-size-gb 2 --shm-name x", "--l1-size-gb asks for 2 GiB", "--shm-name puts the pool of 2 GiB")
	f(gib, gib, "--l1-size-gb 2", "--l1-size-gb asks for 2 GiB")
	f(gib, gib, "--l1-size-gb 0") // the row says it
}

func TestUnknownMemory(t *testing.T) {
	h := fakeMachine(0, 0)
	h.memory = func() (memlimit.Memory, error) {
		return memlimit.Memory{}, fmt.Errorf("%w: no /proc", memlimit.ErrUnknown)
	}
	_, err := read(t, "--l1-size-gb", "1").size(h)
	require.NoError(t, err, "a given size is believed")
	s := read(t)
	s.values["l1-size-gb"] = value{origin: fromDefault}
	_, err = s.size(h)
	require.ErrorContains(t, err, "--l1-size-gb is needed here")

	h = fakeMachine(bytesize.TiB, 0)
	h.shm = func() (int64, int64, error) { return 0, 0, errors.New("no /dev/shm") }
	_, err = read(t, "--l1-size-gb", "1", "--shm-name", "x").size(h)
	require.ErrorContains(t, err, "--shm-name needs /dev/shm")
}

// TestOldSegment: what an earlier run left behind is as good as free, unless
// somebody maps it; the pool of a server that runs is never taken away.
func TestOldSegment(t *testing.T) {
	const gib = bytesize.GiB
	h := fakeMachine(2*gib, gib)
	asked := ""
	h.segment = func(name string) int64 { asked = name; return 3 * gib }
	size := func() (room, error) { return read(t, "--l1-size-gb", "4", "--shm-name", "/pool").size(h) }

	r, err := size()
	require.NoError(t, err)
	require.Equal(t, "lmcache_l1_pool_pool", asked)
	require.Equal(t, 3*gib, r.stale)

	h.mappedBy = func(string) []process { return []process{{1, "lmcache-go"}} }
	_, err = size()
	require.NoError(t, err, "mapped by this very process")

	h.mappedBy = func(string) []process { return []process{{7, "vllm"}} }
	r, err = size()
	require.ErrorContains(t, err, "which has 1 GiB free", "its memory is not free yet")
	require.Equal(t, []process{{7, "vllm"}}, r.users)
	require.Contains(t, strings.Join(r.describe(0), "\n"), "still mapped by vllm (pid 7)")

	h.mappedBy = func(string) []process { return []process{{7, "vllm"}, {8, "lmcache-go"}} }
	_, err = size()
	require.ErrorContains(t, err, "--shm-name /pool: segment /dev/shm/lmcache_l1_pool_pool is the pool of lmcache-go (pid 8), which runs: stop it or choose another name")
}

// TestThisMachine asks the real host about a segment and a port of this process.
func TestThisMachine(t *testing.T) {
	if _, err := os.Stat(shmFolder); err != nil {
		t.Skip("no /dev/shm here")
	}
	h := thisMachine()
	name := fmt.Sprintf("lmcache_go_test_%d", os.Getpid())
	require.Zero(t, h.segment(name))
	f, err := os.OpenFile(filepath.Join(shmFolder, name), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Remove(f.Name()) })
	require.NoError(t, f.Truncate(8192))
	require.Equal(t, int64(8192), h.segment(name))
	require.Empty(t, h.mappedBy(name))
	mem, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_SHARED)
	require.NoError(t, err)
	require.Equal(t, []process{h.self}, h.mappedBy(name))
	require.NoError(t, syscall.Munmap(mem))
	require.NoError(t, f.Close())

	m, err := h.memory()
	require.NoError(t, err)
	require.NotEmpty(t, m.Limits)
	_, free, err := h.shm()
	require.NoError(t, err)
	require.GreaterOrEqual(t, free, int64(0))
}
