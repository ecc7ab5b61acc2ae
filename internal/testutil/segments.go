package testutil

import (
	"fmt"
	"os"
	"path/filepath"
)

// RemoveKVSegments removes the shared memory that the real lmcache client made
// for the KV caches of a process that has ended: it leaves them behind.
func RemoveKVSegments(pid int) {
	left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/lmcache_kv_%d_*", pid)) // the pattern is a good one
	for _, name := range left {
		_ = os.Remove(name)
	}
}
