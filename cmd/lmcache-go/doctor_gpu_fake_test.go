//go:build linux && cgo

package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/fakecuda"
)

// fakeTools are a driver without a GPU and an exporter of pid 4242.
func fakeTools(t *testing.T, o fakecuda.Options) (*fakecuda.Fake, gpuTools) {
	t.Helper()
	f := fakecuda.New(o)
	t.Cleanup(f.Close)
	tools := noDriver()
	tools.load = func() (*cuda.Driver, error) { return cuda.Load(cuda.LoadOptions{Symbol: f.Symbol}) }
	tools.exporter = func(_ context.Context, uuid string) (gpuToken, func(), error) {
		memory, b := f.Export(4242, exportedBytes)
		for i := range b {
			b[i] = exportedValue
		}
		event, fire := f.ExportEvent(4242)
		fire()
		return gpuToken{PID: 4242, UUID: uuid, Memory: memory[:], Event: event[:], Namespaces: namespaces()}, func() {}, nil
	}
	return f, tools
}

// Where all is well the doctor says so, of every GPU, and leaves nothing behind.
func TestDoctorGPUIsWell(t *testing.T) {
	f, tools := fakeTools(t, fakecuda.Options{Devices: 2})
	code, out, _ := gpuDoctorOn(tools)
	require.Equal(t, exitOK, code, out)
	require.Equal(t, 2, strings.Count(out, "IPC memory"))
	require.Contains(t, out, "The server can copy")
	require.Zero(t, f.Live())

	tools.stdin = strings.NewReader("")
	code, out, errs := gpuDoctorOn(tools, "--export")
	require.Equal(t, exitOK, code, errs)
	token, err := parseGPUToken(out)
	require.NoError(t, err)
	require.Len(t, token.UUID, 36)
	require.Zero(t, f.Live())
}

// What is in the way is named, with what to do.
func TestDoctorGPUFindsWhatIsInTheWay(t *testing.T) {
	for _, c := range []struct {
		call   string
		result cuda.Result
		check  string
		want   string
	}{
		{"cuIpcOpenMemHandle_v2", cuda.InvalidContext, "IPC memory", "hostPID"},
		{"cuIpcOpenMemHandle_v2", cuda.MapFailed, "IPC memory", "/dev/shm"},
		{"cuIpcOpenEventHandle", cuda.InvalidValue, "IPC events", "isolated_ipc"},
		{"cuMemHostRegister_v2", cuda.OutOfMemory, "pinning", "memlock"},
		{"cuDevicePrimaryCtxRetain", cuda.OutOfMemory, "context", "gpu-memory-utilization"},
		{"cuInit", cuda.NoDevice, "driver", "CUDA_VISIBLE_DEVICES"},
	} {
		t.Run(c.call+" "+c.result.Error(), func(t *testing.T) {
			f, tools := fakeTools(t, fakecuda.Options{})
			f.Fail(c.call, 1, int(c.result))
			code, out, _ := gpuDoctorOn(tools)
			require.Equal(t, exitInvalid, code, out)
			require.Regexp(t, `(?m)^fail +`+c.check+` .*`+c.want, out)
			require.Zero(t, f.Live())
		})
	}
	t.Run("hidden GPUs", func(t *testing.T) {
		_, tools := fakeTools(t, fakecuda.Options{})
		code, out, _ := gpuDoctorOn(tools, "--uuid", "d5a55c39-9e1d-4f00-8000-00000000dead")
		require.Equal(t, exitInvalid, code)
		require.Contains(t, out, "d5a55c39-9e1d-4f00-8000-00000000dead")
	})
	t.Run("other bytes", func(t *testing.T) {
		f, tools := fakeTools(t, fakecuda.Options{})
		export := tools.exporter
		tools.exporter = func(ctx context.Context, uuid string) (gpuToken, func(), error) {
			token, stop, err := export(ctx, uuid)
			memory, _ := f.Export(4242, exportedBytes)
			token.Memory = memory[:]
			return token, stop, err
		}
		code, out, _ := gpuDoctorOn(tools)
		require.Equal(t, exitInvalid, code)
		require.Contains(t, out, "other bytes")
	})
	t.Run("an event that never fires", func(t *testing.T) {
		f, tools := fakeTools(t, fakecuda.Options{})
		export := tools.exporter
		var fire func()
		tools.exporter = func(ctx context.Context, uuid string) (gpuToken, func(), error) {
			token, stop, err := export(ctx, uuid)
			var event [64]byte
			event, fire = f.ExportEvent(4242)
			token.Event = event[:]
			return token, stop, err
		}
		code, out, _ := gpuDoctorOn(tools, "--timeout", "200ms")
		require.Equal(t, exitInvalid, code)
		require.Contains(t, out, "did not come back")
		fire()
	})
}
