package nixl_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// Host memory to a file and back, through each interface of the POSIX plugin.
func TestPOSIXFiles(t *testing.T) {
	for _, api := range []nixl.POSIXAPI{nixl.POSIXDefault, nixl.POSIXAIO, nixl.POSIXURing, nixl.POSIXGlibc} {
		t.Run("api "+string(api), func(t *testing.T) {
			a := newAgent(t, nixl.Config{})
			posix, err := a.Backend(nixl.POSIX{API: api})
			if err != nil {
				if api == nixl.POSIXURing {
					t.Skipf("io_uring is not allowed here: %v", err)
				}
				t.Fatal(err)
			}
			buf, _ := newBuffer(t, posix, 1<<20)
			path := filepath.Join(t.TempDir(), "kv")
			file, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			reg, err := posix.Register(nixl.FileRegion(file, 0, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			file.Close() // the registration has its own descriptor
			fill(buf.Bytes(), 1)
			self := a.Loopback()
			move := func(op nixl.Op, off, n int) {
				t.Helper()
				far := nixl.Descs{Mem: nixl.File, List: []nixl.Desc{reg.Desc(0, uintptr(off), uintptr(n))}}
				x, err := self.NewTransfer(op, posix, dram(buf.Desc(off, n)), far, nixl.XferOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if err := x.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			}
			move(nixl.Write, 0, 1<<20)
			data, err := os.ReadFile(path)
			if err != nil || !holds(data, 1) {
				t.Fatalf("the file holds other bytes (%v)", err)
			}
			clear(buf.Bytes())
			move(nixl.Read, 0, 1<<19)
			move(nixl.Read, 1<<19, 1<<19)
			if !holds(buf.Bytes(), 1) {
				t.Error("other bytes came back")
			}
			if err := reg.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestQueryFiles(t *testing.T) {
	a := newAgent(t, nixl.Config{})
	posix, err := a.Backend(nixl.POSIX{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, make([]byte, 123), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := posix.Query(nixl.FileQuery(there), nixl.FileQuery(filepath.Join(dir, "absent")))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || !got[0].Found || got[0].Info["size"] != "123" || got[1].Found {
		t.Errorf("got %+v", got)
	}
}

func TestFilePath(t *testing.T) {
	a := newAgent(t, nixl.Config{})
	posix, err := a.Backend(nixl.POSIX{})
	if err != nil {
		t.Fatal(err)
	}
	buf, _ := newBuffer(t, posix, 4096)
	path := filepath.Join(t.TempDir(), "new")
	reg, err := posix.Register(nixl.FilePath(7, "rw,create", path, 4096))
	if errors.Is(err, nixl.ErrBackend) {
		t.Skipf("this plugin opens no files by itself: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	fill(buf.Bytes(), 2)
	far := nixl.Descs{Mem: nixl.File, List: []nixl.Desc{reg.Desc(0, 0, 4096)}}
	x, err := a.Loopback().NewTransfer(nixl.Write, posix, dram(buf.Desc(0, 4096)), far, nixl.XferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || !holds(data, 2) {
		t.Errorf("the file holds other bytes (%v)", err)
	}
}
