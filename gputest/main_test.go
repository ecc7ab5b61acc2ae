package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// What torch 2.11 said of a tensor on an H200 becomes the wrapper that the real
// client sends.
func TestWrapperOfTorch(t *testing.T) {
	handle := "0263" + strings.Repeat("ab", 64)
	var x tensor
	require.NoError(t, json.Unmarshal([]byte(`{"type": "cuda", "dtype": "bfloat16", "shape": [4, 16, 2, 8], "stride": [256, 16, 8, 1], "storage_offset": 32,
		"uuid": "3712d898-8c12-4ce2-5481-35aee317b5ad", "handle": [0, "`+handle+`", 67108864, 4096, "2f746f7263685f3432375f3133303230323431385f30", 7, null, true]}`), &x))
	w, err := x.wrapper()
	require.NoError(t, err)
	src := w.Source.(*wire.CUDAStorage)
	require.Len(t, src.Handle, 66)
	require.Equal(t, int64(67108864), src.SizeBytes)
	require.Equal(t, int64(4096), src.OffsetBytes)
	require.Equal(t, "/torch_427_130202418_0", string(src.RefCounterHandle))
	require.Equal(t, int64(7), src.RefCounterOffset)
	require.Nil(t, src.EventHandle)
	require.True(t, src.EventSync)
	ws, err := wire.DecodeDeviceWrappers(wire.AppendDeviceWrappers(nil, []wire.DeviceWrapper{w}))
	require.NoError(t, err)
	require.True(t, ws[0].Equal(&w))

	x.Handle = x.Handle[:7]
	_, err = x.wrapper()
	require.ErrorIs(t, err, errWorker)
}

func TestReportCountsFailures(t *testing.T) {
	var out bytes.Buffer
	r := report{w: &out}
	r.outcome("bytes", "good", nil, "fine")
	r.note("bytes", "%d GPUs", 1)
	require.Zero(t, r.print(&out, ""))
	r.outcome("bytes", "bad", errCase, "")
	path := filepath.Join(t.TempDir(), "report.json")
	require.Equal(t, 1, r.print(&out, path))
	require.Contains(t, out.String(), "3 results, 1 failed")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var results []result
	require.NoError(t, json.Unmarshal(data, &results))
	require.False(t, results[2].OK)
}

// The harness itself, on shared memory: it finds all bytes right, and would
// find them wrong.
func TestOnSharedMemory(t *testing.T) {
	python := os.Getenv("LMCACHE_GO_PYTHON")
	if python == "" {
		t.Skip("needs a Python with torch: LMCACHE_GO_PYTHON, which make conformance sets")
	}
	server := filepath.Join(t.TempDir(), "lmcache-go")
	build, err := exec.CommandContext(t.Context(), "go", "build", "-o", server, "../cmd/lmcache-go").CombinedOutput()
	require.NoError(t, err, "%s", build)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var out bytes.Buffer
	o := options{server: server, python: python, device: "cpu", l1GB: 0.5, quick: true, only: "share"}
	require.Zero(t, run(ctx, &o, &out), "%s", out.String())
	require.Contains(t, out.String(), "LBHNC and LBNHC")

	h, err := start(ctx, &o, &out)
	require.NoError(t, err)
	defer h.close()
	p, err := h.process(ctx, "A", 0)
	require.NoError(t, err)
	e, err := h.engine(ctx, p, "m", 1, 0, cache{layers: 2, blocks: 64, slots: 16, heads: 2, width: 32, order: "LBHNC"})
	require.NoError(t, err)
	pr := h.prompt(chunk)
	ids := e.ids(chunk, false)
	require.NoError(t, e.wipe())
	require.ErrorIs(t, e.check(pr, ids), errCase, "nothing was loaded")
	require.NoError(t, e.fill(pr, ids))
	require.NoError(t, e.check(pr, ids))
	require.ErrorIs(t, e.check(pr, ids[1:]), errCase)
	ids[0], ids[1] = ids[1], ids[0]
	require.ErrorIs(t, e.check(pr, ids), errCase, "blocks in another order")
}
