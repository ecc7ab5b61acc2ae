//go:build linux && cgo

package cuda_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/fakecuda"
)

func retain(t testing.TB, d *cuda.Driver) *cuda.Context {
	t.Helper()
	c, err := d.Retain(d.Devices()[0])
	require.NoError(t, err)
	return c
}

func TestLoadWithoutDriver(t *testing.T) {
	_, err := cuda.Load(cuda.LoadOptions{Path: "/nowhere/libcuda.so.1"})
	require.ErrorIs(t, err, cuda.ErrNoDriver)
	for _, want := range []string{"/nowhere/libcuda.so.1", "--gpus", "engine_driven"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

func TestLoadOldDriver(t *testing.T) {
	f := fakecuda.New(fakecuda.Options{Without: []string{"cuIpcOpenMemHandle_v2", "cuModuleLoadDataEx"}})
	defer f.Close()
	_, err := cuda.Load(cuda.LoadOptions{Symbol: f.Symbol})
	require.ErrorIs(t, err, cuda.ErrOldDriver)
	if s := err.Error(); !strings.Contains(s, "cuIpcOpenMemHandle_v2") || strings.Contains(s, "cuModuleLoadDataEx") {
		t.Error(s)
	}
}

// A driver that does not start says why, whichever call it is.
func TestLoadFails(t *testing.T) {
	f := fakecuda.New(fakecuda.Options{Devices: 2})
	defer f.Close()
	_, err := cuda.Load(cuda.LoadOptions{Symbol: f.Symbol})
	require.NoError(t, err)
	for n := range f.Calls("") {
		f.Fail("", n+1, int(cuda.SystemDriverMismatch))
		// The bus id is only shown: a device without it works.
		if _, err := cuda.Load(cuda.LoadOptions{Symbol: f.Symbol}); (err == nil) != (n == 7 || n == 17) || err != nil && !errors.Is(err, cuda.SystemDriverMismatch) {
			t.Errorf("call %d: %v", n, err)
		}
	}
	f.Fail("cuInit", 1, int(cuda.NoDevice))
	_, err = cuda.Load(cuda.LoadOptions{Symbol: f.Symbol})
	if !errors.Is(err, cuda.NoDevice) || !strings.Contains(err.Error(), "CUDA_VISIBLE_DEVICES") {
		t.Error(err)
	}
}

func TestDevices(t *testing.T) {
	d, _ := cudatest.Fake(t, fakecuda.Options{Devices: 2, Version: 12080})
	all := d.Devices()
	require.Len(t, all, 2)
	if d.Version() != 12080 || all[0].UUID != "face0000-6661-6b65-2d63-7564612d0000" || all[1].PCIBusID != "0000:19:00.0" ||
		all[0].MaxPitch != 1<<31-1 || all[0].Capability != 90 || all[0].Name != "fake GPU 0" {
		t.Errorf("got %d, %+v, %+v", d.Version(), all[0], all[1])
	}
	for _, s := range []string{all[1].UUID, "GPU-" + strings.ToUpper(all[1].UUID), "MIG-" + all[1].UUID} {
		if got, err := d.Device(s); err != nil || got != all[1] {
			t.Errorf("Device(%q) = %v, %v", s, got, err)
		}
	}
	_, err := d.Device("11111111-2222-3333-4444-555555555555")
	if !errors.Is(err, cuda.ErrNoSuchDevice) || !strings.Contains(err.Error(), all[0].UUID) || !strings.Contains(err.Error(), "CUDA_VISIBLE_DEVICES") {
		t.Error(err)
	}
	if _, err = d.Device("cpu"); !errors.Is(err, cuda.ErrHandle) {
		t.Error(err)
	}
	if !d.CanAccess(all[0], all[1]) || d.CanAccess(all[0], all[0]) {
		t.Error("peers are told wrongly")
	}
}

func TestErrorSaysWhatHelps(t *testing.T) {
	f := func(t *testing.T, call string, r cuda.Result, want string) {
		t.Helper()
		d, fake := cudatest.Fake(t, fakecuda.Options{})
		c := retain(t, d)
		handle, _ := fake.Export(4242, 4096)
		fake.Fail(call, 1, int(r))
		var err error
		switch call {
		case "cuIpcOpenEventHandle":
			_, err = c.OpenEvent(handle)
		case "cuMemHostRegister_v2":
			_, err = d.PinHost(c.Device(), make([]byte, 10))
		default:
			_, err = c.OpenMemory(handle)
		}
		var e *cuda.Error
		if !errors.As(err, &e) || !errors.Is(err, r) || e.Call != call || e.Device != c.Device().UUID || !strings.Contains(err.Error(), want) {
			t.Errorf("%s failing with %v: %v does not say %q", call, r, err, want)
		}
		require.NoError(t, c.Release())
		cudatest.Clean(t, fake)
	}
	t.Run("map", func(t *testing.T) { f(t, "cuIpcOpenMemHandle_v2", cuda.MapFailed, "/dev/shm") })
	t.Run("pid", func(t *testing.T) { f(t, "cuIpcOpenMemHandle_v2", cuda.InvalidContext, "hostPID") })
	t.Run("event", func(t *testing.T) { f(t, "cuIpcOpenEventHandle", cuda.InvalidValue, "isolated_ipc") })
	t.Run("memlock", func(t *testing.T) { f(t, "cuMemHostRegister_v2", cuda.OutOfMemory, "memlock") })
	if got := cuda.Result(12345).Error(); got != "CUDA result 12345" {
		t.Error(got)
	}
	if !cuda.IllegalAddress.Sticky() || cuda.InvalidValue.Sticky() {
		t.Error("sticky results are told wrongly")
	}
}

// A context is made with the first holder and gone with the last.
func TestContextIsCounted(t *testing.T) {
	d, f := cudatest.Fake(t, fakecuda.Options{})
	dev := d.Devices()[0]
	f.Fail("cuDevicePrimaryCtxRetain", 1, int(cuda.OutOfMemory))
	_, err := d.Retain(dev)
	require.ErrorIs(t, err, cuda.OutOfMemory)
	a, b := retain(t, d), retain(t, d)
	if a != b || f.Live().Contexts != 1 || d.Retained(dev) != 2 {
		t.Errorf("%d holds, %+v", d.Retained(dev), f.Live())
	}
	require.NoError(t, a.Release())
	require.Equal(t, 1, f.Live().Contexts)
	require.NoError(t, b.Release())
	require.ErrorIs(t, b.Release(), cuda.ErrReleased)
	cudatest.Clean(t, f)
	c := retain(t, d) // and again
	require.NotSame(t, a, c)
	require.NoError(t, c.Release())
}

// One mapping for a handle, closed with its last user.
func TestMappingIsCounted(t *testing.T) {
	d, f := cudatest.Fake(t, fakecuda.Options{})
	c := retain(t, d)
	h, memory := f.Export(77, 8192)
	m, err := c.OpenMemory(h)
	require.NoError(t, err)
	again, err := c.OpenMemory(h)
	require.NoError(t, err)
	if m != again || m.SizeBytes != 8192 || f.Calls("cuIpcOpenMemHandle_v2") != 1 || m.Address == uint64(uintptr(unsafe.Pointer(&memory[0]))) {
		t.Errorf("%+v, opened %d times", m, f.Calls("cuIpcOpenMemHandle_v2"))
	}
	if n, size := c.Mappings(); n != 1 || size != 8192 {
		t.Errorf("%d mappings, %d bytes", n, size)
	}
	require.NoError(t, m.Release())
	require.Equal(t, 0, f.Calls("cuIpcCloseMemHandle"))
	m.Retain()
	require.NoError(t, m.Release())
	require.NoError(t, m.Release())
	require.Equal(t, 1, f.Calls("cuIpcCloseMemHandle"))

	own, _ := f.Export(os.Getpid(), 4096)
	_, err = c.OpenMemory(own)
	require.ErrorIs(t, err, cuda.InvalidContext)
	f.Fail("cuMemGetAddressRange_v2", 1, int(cuda.NotFound))
	_, err = c.OpenMemory(h)
	require.ErrorIs(t, err, cuda.NotFound)
	_, err = c.OpenMemory(cuda.MemHandle{})
	require.ErrorIs(t, err, cuda.InvalidValue)
	if n, _ := c.Mappings(); n != 0 {
		t.Errorf("%d mappings after failures", n)
	}
	require.NoError(t, c.Release())
	cudatest.Clean(t, f)
}

// The pin outlives the device that made it.
func TestPinHoldsItsContext(t *testing.T) {
	d, f := cudatest.Fake(t, fakecuda.Options{Devices: 2})
	pool := make([]byte, 1<<16)
	a, err := d.Retain(d.Devices()[0])
	require.NoError(t, err)
	p, err := d.PinHost(a.Device(), pool)
	require.NoError(t, err)
	b, err := d.Retain(d.Devices()[1])
	require.NoError(t, err)
	q, err := d.PinHost(b.Device(), pool)
	require.NoError(t, err)
	require.Same(t, p, q)
	require.NoError(t, p.Unpin())
	require.NoError(t, a.Release())

	if got := d.PinnedFrom(pool[100:200]); got != 100 {
		t.Errorf("%d bytes of 100 are pinned", got)
	}
	if got := d.PinnedFrom(make([]byte, 10)); got != 0 {
		t.Errorf("%d bytes of other memory are pinned", got)
	}
	s, err := b.NewStream()
	require.NoError(t, err)
	x, err := b.Alloc(1 << 16)
	require.NoError(t, err)
	require.NoError(t, s.Fill(x.Address, 9, 1<<16))
	require.NoError(t, s.Copy(uint64(uintptr(unsafe.Pointer(&pool[0]))), x.Address, 1<<16))
	require.NoError(t, s.Wait())
	if !bytes.Equal(pool, bytes.Repeat([]byte{9}, 1<<16)) {
		t.Error("the copy did not arrive")
	}
	require.NoError(t, s.Destroy())
	require.NoError(t, x.Free())
	require.NoError(t, q.Unpin())
	require.ErrorIs(t, q.Unpin(), cuda.ErrReleased)
	require.NoError(t, b.Release())
	cudatest.Clean(t, f)

	_, err = d.PinHost(d.Devices()[0], nil)
	require.ErrorIs(t, err, cuda.ErrHandle)
	f.Fail("cuMemHostGetDevicePointer_v2", 1, int(cuda.InvalidValue))
	_, err = d.PinHost(d.Devices()[0], pool)
	require.ErrorIs(t, err, cuda.InvalidValue)
	cudatest.Clean(t, f)
}

// Exported events stay for clients that look late, and not for ever.
func TestExportedEventsAreKept(t *testing.T) {
	d, f := cudatest.Fake(t, fakecuda.Options{})
	c := retain(t, d)
	s, err := c.NewStream()
	require.NoError(t, err)
	seen := map[cuda.EventHandle]bool{}
	for range 2100 {
		r, err := s.Submit(&cuda.Request{Answer: cuda.SignalEvent})
		require.NoError(t, err)
		if seen[r.Answer.Event] {
			t.Fatal("an event was recorded twice")
		}
		seen[r.Answer.Event] = true
	}
	if n := f.Live().Events; n != 2048 {
		t.Errorf("%d events are kept", n)
	}
	require.NoError(t, s.Destroy())
	require.NoError(t, c.Release())
	cudatest.Clean(t, f)
}

func TestSignals(t *testing.T) {
	var handle [64]byte
	for i := range handle {
		handle[i] = byte(i)
	}
	line := append([]byte{1}, handle[:]...)
	line = binary.BigEndian.AppendUint64(line, 16)
	line = binary.BigEndian.AppendUint64(line, 99)
	for _, b := range [][]byte{{}, handle[:], line} {
		s, err := cuda.ParseSignal(b)
		require.NoError(t, err)
		if got := s.AppendTo(nil); !bytes.Equal(got, b) {
			t.Errorf("%v becomes %x, was %x", s.Kind, got, b)
		}
	}
	s, _ := cuda.ParseSignal(line)
	if s.Kind != cuda.SignalTimeline || s.Offset != 16 || s.Sequence != 99 || s.Buffer != cuda.MemHandle(handle) {
		t.Errorf("got %+v", s)
	}
	bad := func(change func(b []byte) []byte) {
		t.Helper()
		if s, err := cuda.ParseSignal(change(bytes.Clone(line))); !errors.Is(err, cuda.ErrHandle) {
			t.Errorf("got %+v, %v", s, err)
		}
	}
	bad(func(b []byte) []byte { return b[:80] })
	bad(func(b []byte) []byte { b[0] = 2; return b })
	bad(func(b []byte) []byte { b[72] = 4; return b })
	bad(func(b []byte) []byte { b[71] = 0x80; return b })
}

func FuzzParseSignal(f *testing.F) {
	f.Add(make([]byte, 64))
	f.Add(append([]byte{1}, make([]byte, 80)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := cuda.ParseSignal(b); err == nil && !bytes.Equal(s.AppendTo(nil), b) {
			t.Errorf("%x does not come back", b)
		}
	})
}

func FuzzParseExpandable(f *testing.F) {
	f.Add([]byte("\x02e\xcb\x01\x00\x00\x00\x00\x00\x00\x00\x00\x40\x01\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x2d\x00\x00\x00\x2e\x00\x00\x00\x2f\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := cuda.ParseExpandable(b)
		if err == nil && (len(e.FDs) == 0 || len(e.FDs)*4 > len(b) || e.PID < 1) {
			t.Errorf("got %+v from %x", e, b)
		}
	})
}

// Expandable segments of this very process: its descriptors can be taken.
func TestExpandable(t *testing.T) {
	d, f := cudatest.Fake(t, fakecuda.Options{})
	c := retain(t, d)
	const segment = 8192
	handle := binary.LittleEndian.AppendUint64([]byte{2, 'e'}, uint64(os.Getpid()))
	handle = binary.LittleEndian.AppendUint64(handle, segment)
	handle = binary.LittleEndian.AppendUint64(handle, 2)
	for i := range 2 {
		fd, err := unix.MemfdCreate("segment", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		defer func() { _ = unix.Close(fd) }()
		require.NoError(t, unix.Ftruncate(fd, segment))
		_, err = unix.Pwrite(fd, bytes.Repeat([]byte{byte(i + 1)}, segment), 0)
		require.NoError(t, err)
		handle = binary.LittleEndian.AppendUint32(handle, uint32(fd))
	}
	m, err := c.OpenExpandable(handle)
	if err != nil && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS)) {
		t.Skipf("this machine lets no process take descriptors: %v", err)
	}
	require.NoError(t, err)
	got := unsafe.Slice((*byte)(pointer(m.Address)), m.SizeBytes)
	if m.SizeBytes != 2*segment || got[segment-1] != 1 || got[segment] != 2 {
		t.Errorf("%d bytes, %d then %d", m.SizeBytes, got[segment-1], got[segment])
	}
	require.NoError(t, m.Release())
	// Whatever fails, nothing stays mapped.
	for n := 1; ; n++ {
		f.Fail("", n, int(cuda.OutOfMemory))
		m, err := c.OpenExpandable(handle)
		f.Fail("", 0, 0)
		if err == nil {
			require.NoError(t, m.Release())
			require.Greater(t, n, 8)
			break
		}
		require.ErrorIs(t, err, cuda.OutOfMemory)
		if live := f.Live(); live.Mappings != 0 {
			t.Errorf("call %d: %+v", n, live)
		}
	}
	handle[2] = 0 // no such process
	handle[3] = 0xff
	handle[4] = 0x7f
	_, err = c.OpenExpandable(handle)
	if !errors.Is(err, cuda.ErrUnsupported) || !strings.Contains(err.Error(), "PYTORCH_CUDA_ALLOC_CONF") {
		t.Error(err)
	}
	handle[0] = 9
	_, err = c.OpenExpandable(handle)
	require.ErrorIs(t, err, cuda.ErrUnsupported)
	require.NoError(t, c.Release())
}

// pointer is an address outside the Go heap.
func pointer(address uint64) unsafe.Pointer {
	p := uintptr(address)
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}
