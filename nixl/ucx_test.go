package nixl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Without NVLink UCX reads GPU memory over TCP unless it is told otherwise, so
// package nixl tells it; whoever sets it differently is obeyed.
func TestUCXReadsGPUMemoryByIPC(t *testing.T) {
	was := hasGPU
	t.Cleanup(func() { hasGPU = was })
	engine := func(gpu bool, u UCX) string {
		hasGPU = func() bool { return gpu }
		m, err := u.Params()
		require.NoError(t, err)
		return m["engine_config"]
	}
	require.Equal(t, "CUDA_IPC_ENABLE_GET_ZCOPY=on", engine(true, UCX{}))
	require.Empty(t, engine(false, UCX{}))
	require.Equal(t, "CUDA_IPC_ENABLE_GET_ZCOPY=on,TLS=cuda", engine(true, UCX{Engine: map[string]string{"UCX_TLS": "cuda"}}))
	require.Equal(t, "CUDA_IPC_ENABLE_GET_ZCOPY=auto", engine(true, UCX{Engine: map[string]string{"UCX_CUDA_IPC_ENABLE_GET_ZCOPY": "auto"}}))
	require.Equal(t, "TLS=tcp", engine(true, UCX{Extra: map[string]string{"engine_config": "TLS=tcp"}}))
}
