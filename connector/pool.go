package connector

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// poolMap is the server's pool as this process sees it.
type poolMap struct {
	data []byte
	ino  uint64
	dev  uint64
}

// openPool maps the pool that a registration names. old is kept when it is the
// same one.
func openPool(p Pool, old *poolMap) (*poolMap, error) {
	name := strings.TrimPrefix(p.ShmName, "/")
	if name == "" || strings.ContainsAny(name, "/\x00") || p.SizeBytes < 1 || int64(int(p.SizeBytes)) != p.SizeBytes {
		return nil, fmt.Errorf("%w: pool %q of %d bytes", ErrReply, p.ShmName, p.SizeBytes)
	}
	f, err := os.OpenFile(filepath.Join(shmDir, name), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open the server's pool (engine and server need the same user and the same %s): %w", shmDir, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("the server's pool: %w", err)
	}
	if st.Size < p.SizeBytes {
		f.Close()
		return nil, fmt.Errorf("%w: pool %s has %d bytes, the server says %d", ErrReply, name, st.Size, p.SizeBytes)
	}
	if old != nil && old.ino == st.Ino && old.dev == st.Dev && int64(len(old.data)) == p.SizeBytes {
		f.Close()
		return old, nil
	}
	b, err := mapFile(f, p.SizeBytes, false)
	if err != nil {
		return nil, fmt.Errorf("map the server's pool: %w", err)
	}
	return &poolMap{data: b, ino: st.Ino, dev: st.Dev}, nil
}

func (p *poolMap) close() error {
	if p == nil || p.data == nil {
		return nil
	}
	b := p.data
	p.data = nil
	return unix.Munmap(b)
}
