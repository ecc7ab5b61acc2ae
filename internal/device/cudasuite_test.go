//go:build linux && cgo

package device

import (
	"encoding/hex"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/fakecuda"
)

// cudaSuite runs a test of every device on a CUDA device over the fake driver.
// Its pools are not pinned.
func cudaSuite(t *testing.T, f func(r *rig)) {
	t.Helper()
	t.Run("cuda", func(t *testing.T) {
		t.Parallel()
		drv, fake := cudatest.Fake(t, fakecuda.Options{})
		d, err := NewCUDA(drv, drv.Devices()[0].UUID, CUDAOptions{QueueLen: 8})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, d.Close())
			require.NoError(t, d.Close())
			cudatest.Clean(t, fake)
		})
		w := &keyed{CUDA: d, keys: map[string]string{}}
		f(&rig{Device: w, t: t, hardware: true, memory: func(key string, n int64) []byte {
			handle, b := fake.Export(1000, n)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.keys[key] = CUDAIPCPrefix + hex.EncodeToString(handle[:]) + ":0"
			return b
		}})
	})
}

// keyed opens memory by the suite's keys.
type keyed struct {
	*CUDA
	mu   sync.Mutex
	keys map[string]string
}

func (k *keyed) Open(key string, n int64) (Memory, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.CUDA.Open(k.keys[key], n)
}
