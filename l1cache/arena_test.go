//go:build linux

package l1cache

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func openArena(t *testing.T, o ArenaOptions) *Arena {
	t.Helper()
	a, err := OpenArena(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// shmOptions puts segments in a directory of the test: files behave the same.
func shmOptions(t *testing.T, size int64) ArenaOptions {
	t.Helper()
	return ArenaOptions{ShmName: "pool", SizeBytes: size, shmDir: t.TempDir(), lockWait: time.Nanosecond}
}

func TestArenaPrivate(t *testing.T) {
	const size = 9*mib + 4096
	a := openArena(t, ArenaOptions{SizeBytes: size, PieceBytes: 1, Threads: 3})
	<-a.Ready()
	require.GreaterOrEqual(t, a.ReadyBytes(), int64(firstPieceBytes))
	<-a.Grown()
	require.NoError(t, a.Err())
	require.Equal(t, int64(size), a.ReadyBytes())
	require.Equal(t, int64(size), a.SizeBytes())
	require.Empty(t, a.ShmName())
	require.True(t, bytes.Equal(make([]byte, size), a.Bytes()), "fresh memory is zero")
	a.Bytes()[size-1] = 1
	first, grown := a.Durations()
	require.Positive(t, first)
	require.GreaterOrEqual(t, grown, first)
}

func TestArenaSegment(t *testing.T) {
	o := shmOptions(t, 6*mib)
	path := filepath.Join(o.shmDir, o.ShmName)
	require.NoError(t, os.WriteFile(path, []byte("left by a killed server"), 0o644))
	a, err := OpenArena(o)
	require.NoError(t, err)
	<-a.Grown()
	require.NoError(t, a.Err())
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, int64(6*mib), fi.Size(), "clients map all of it")
	require.Equal(t, os.FileMode(0o600), fi.Mode())
	require.True(t, bytes.Equal(make([]byte, 6*mib), a.Bytes()), "nothing of the stale segment is left")

	// Another process sees the same bytes.
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	other, err := unix.Mmap(int(f.Fd()), 0, 6*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(other)) }()
	a.Bytes()[5*mib] = 7
	require.Equal(t, byte(7), other[5*mib])

	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.NoFileExists(t, path)
	require.Equal(t, byte(7), other[5*mib], "a client's mapping outlives the server")
}

func TestArenaInDevShm(t *testing.T) {
	var fs unix.Statfs_t
	if err := unix.Statfs(defaultShmDir, &fs); err != nil || int64(fs.Bavail)*fs.Bsize < 64*mib {
		t.Skipf("needs 64 MiB free in %s", defaultShmDir)
	}
	name := "lmcache_l1_pool_test_" + filepath.Base(t.TempDir()) + "_" + time.Now().Format("150405.000000000")
	a := openArena(t, ArenaOptions{ShmName: name, SizeBytes: 5 * mib})
	<-a.Grown()
	require.NoError(t, a.Err())
	require.FileExists(t, filepath.Join(defaultShmDir, name))

	free := int64(fs.Bavail) * fs.Bsize
	_, err := OpenArena(ArenaOptions{ShmName: name + "_large", SizeBytes: free + 1<<30})
	require.ErrorIs(t, err, ErrShmTooSmall)
	require.NoFileExists(t, filepath.Join(defaultShmDir, name+"_large"))
}

func TestArenaOfALiveServerIsLeftAlone(t *testing.T) {
	o := shmOptions(t, mib)
	a := openArena(t, o)
	_, err := OpenArena(o)
	require.ErrorIs(t, err, ErrShmInUse)
	require.ErrorContains(t, err, "--shm-name")
	require.FileExists(t, filepath.Join(o.shmDir, o.ShmName))
	require.NoError(t, a.Close())
	openArena(t, o)
}

func TestArenaClosesOnlyItsOwnSegment(t *testing.T) {
	o := shmOptions(t, mib)
	a, err := OpenArena(o)
	require.NoError(t, err)
	path := filepath.Join(o.shmDir, o.ShmName)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("somebody else's"), 0o600))
	require.NoError(t, a.Close())
	require.FileExists(t, path)
}

func TestArenaRefusesBadOptions(t *testing.T) {
	f := func(o ArenaOptions) {
		t.Helper()
		o.shmDir = t.TempDir()
		_, err := OpenArena(o)
		require.Error(t, err)
		left, err := os.ReadDir(o.shmDir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
	f(ArenaOptions{})
	f(ArenaOptions{SizeBytes: -1})
	f(ArenaOptions{SizeBytes: math.MaxInt64})
	f(ArenaOptions{SizeBytes: mib, ShmName: "a/b"})
	f(ArenaOptions{SizeBytes: mib, ShmName: ".."})
	f(ArenaOptions{SizeBytes: mib, ShmName: "nul\x00"})
}

func TestArenaStopsAtTheMemoryLimit(t *testing.T) {
	// Room for the first two pieces, not for the third.
	var asked atomic.Int64
	o := ArenaOptions{SizeBytes: 16 * mib, PieceBytes: 2 * mib, Threads: 1}
	o.headroom = func() (int64, string) {
		if asked.Add(1) <= 2 {
			return -1, ""
		}
		return headroomMarginBytes + mib, "the test"
	}
	a := openArena(t, o)
	<-a.Grown()
	require.ErrorIs(t, a.Err(), ErrMemoryLimit)
	require.ErrorContains(t, a.Err(), "the test")
	require.Equal(t, int64(6*mib), a.ReadyBytes())

	c := newCache(t, Options{Arena: a, Evict: true})
	store(t, c, hashes(0, 6), mib)
	store(t, c, hashes(10, 6), mib)
	require.Equal(t, 6, hit(c, hashes(10, 6)), "the pool works at the size it has")
	_, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hashes(20, 7), SizeBytes: mib})
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorIs(t, err, ErrMemoryLimit)
}

func TestMachineHeadroom(t *testing.T) {
	n, source := machineHeadroom()
	require.Positive(t, n)
	require.NotEmpty(t, source)
}

func TestArenaWithoutAnyMemory(t *testing.T) {
	a := openArena(t, ArenaOptions{SizeBytes: 8 * mib, headroom: func() (int64, string) { return 0, "the test" }})
	<-a.Ready()
	<-a.Grown()
	require.ErrorIs(t, a.Err(), ErrMemoryLimit)
	require.Zero(t, a.ReadyBytes())
}

func TestArenaFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	o := ArenaOptions{ShmName: "pool", SizeBytes: 17 * mib, shmDir: dir, lockWait: time.Nanosecond}
	_, err := OpenArena(o)
	require.ErrorIs(t, err, ErrShmTooSmall, "known before anything is mapped")

	// There is room at the start, and somebody else takes it.
	o.SizeBytes, o.PieceBytes, o.Threads = 12*mib, 2*mib, 2
	var once atomic.Bool
	o.headroom = func() (int64, string) {
		if once.CompareAndSwap(false, true) {
			if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, 9*mib), 0o600); err != nil {
				t.Error(err)
			}
		}
		return -1, ""
	}
	a, err := OpenArena(o)
	require.NoError(t, err)
	<-a.Grown()
	require.ErrorIs(t, a.Err(), ErrShmTooSmall)
	require.Less(t, a.ReadyBytes(), int64(12*mib))
	require.GreaterOrEqual(t, a.ReadyBytes(), int64(firstPieceBytes))
	for i := int64(0); i < a.ReadyBytes(); i += 4096 {
		a.Bytes()[i] = 1 // would kill the process if a page were missing
	}
	require.NoError(t, a.Close())
}

func TestArenaOnAnOldKernel(t *testing.T) {
	f := func(o ArenaOptions, reserve bool) {
		t.Helper()
		var seg *segment
		var mem []byte
		var err error
		if o.ShmName == "" {
			mem, err = mapPrivate(o.SizeBytes)
		} else {
			seg, mem, err = openSegment(o.shmDir, o.ShmName, o.SizeBytes, o.lockWait)
		}
		require.NoError(t, err)
		p := newPopulator(mem, seg, machineHeadroom)
		p.noMadv.Store(true)
		p.reserve = reserve
		require.NoError(t, p.populate(0, o.SizeBytes))
		mem[o.SizeBytes-1] = 1
		p.discard(0, o.SizeBytes)
		require.Zero(t, mem[o.SizeBytes-1], "discarded pages are gone")
		if seg != nil {
			require.NoError(t, seg.close())
		}
		require.NoError(t, unmap(mem))
	}
	f(ArenaOptions{SizeBytes: mib}, false)
	f(shmOptions(t, mib), false)
	f(shmOptions(t, mib), true)
}

func TestArenaPublishesASpan(t *testing.T) {
	a := fakeArena(10)
	grown := 0
	require.NoError(t, a.attach(func() { grown++ }))
	require.Error(t, a.attach(func() {}), "an arena belongs to one cache")
	a.publish(4, 6)
	require.Zero(t, a.ReadyBytes(), "a piece beyond a gap waits")
	select {
	case <-a.Ready():
		t.Fatal("ready without the first piece")
	default:
	}
	a.publish(0, 4)
	require.Equal(t, int64(6), a.ReadyBytes())
	<-a.Ready()
	a.publish(8, 10)
	a.publish(6, 8)
	require.Equal(t, int64(10), a.ReadyBytes())
	require.Equal(t, 2, grown)
}

func TestArenaCloseWhileGrowing(t *testing.T) {
	blocked, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	o := ArenaOptions{SizeBytes: 64 * mib, PieceBytes: 2 * mib, Threads: 2}
	o.headroom = func() (int64, string) {
		if calls.Add(1) == 4 {
			close(blocked)
			<-release
		}
		return -1, ""
	}
	a, err := OpenArena(o)
	require.NoError(t, err)
	<-blocked
	a.cancel()
	close(release)
	require.NoError(t, a.Close())
	<-a.Grown()
	if err := a.Err(); !errors.Is(err, ErrClosed) {
		t.Fatalf("a closed arena says %v", err)
	}
	require.ErrorIs(t, a.attach(func() {}), ErrClosed)
}
