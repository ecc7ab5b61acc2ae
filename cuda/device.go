package cuda

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
)

// Device is a GPU, or a MIG instance of one.
type Device struct {
	// Ordinal in this process. It means nothing to another one.
	Ordinal int
	// UUID as torch and the wire write it: 8-4-4-4-12 lower-case hex. Of a MIG
	// instance it is the instance's.
	UUID string
	Name string
	// MemoryBytes of the device.
	MemoryBytes int64
	// PCIBusID as the driver writes it, "0000:18:00.0", or "".
	PCIBusID string
	// MaxPitch is the largest distance of rows in a 2-D copy, in bytes.
	MaxPitch int64
	// Multiprocessors, and the compute capability as major·10 + minor.
	Multiprocessors, Capability int
	// CopyEngines that run beside each other.
	CopyEngines int

	handle uint64 // CUdevice
}

// Attributes of a device (cuda.h, CUdevice_attribute).
const (
	attrMaxPitch        = 11
	attrMultiprocessors = 16
	attrAsyncEngines    = 40
	attrMajor           = 75
	attrMinor           = 76
)

// ParseUUID makes the form of [Device.UUID] from any of "GPU-…", "MIG-…" and
// the bare hex.
func ParseUUID(s string) (string, error) {
	bare := strings.ToLower(s)
	bare = strings.TrimPrefix(strings.TrimPrefix(bare, "gpu-"), "mig-")
	raw, err := hex.DecodeString(strings.ReplaceAll(bare, "-", ""))
	if err != nil || len(raw) != 16 {
		return "", fmt.Errorf("%w: %q is no UUID of a device", ErrHandle, s)
	}
	return formatUUID(raw), nil
}

func formatUUID(raw []byte) string {
	h := hex.EncodeToString(raw)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}

// look asks for what there is to know of a device.
func (d *Driver) look(ordinal int) (*Device, error) {
	f := capi.Frame{In: [8]uint64{uint64(ordinal)}}
	if err := d.call(nil, capi.DeviceGet, &f); err != nil {
		return nil, err
	}
	dev := &Device{Ordinal: ordinal, handle: f.Out[0]}
	f = capi.Frame{In: [8]uint64{dev.handle}}
	if err := d.call(nil, capi.DeviceGetUUID, &f); err != nil {
		return nil, err
	}
	dev.UUID = formatUUID(f.Blob[:16])
	if err := d.call(dev, capi.DeviceTotalMem, &f); err != nil {
		return nil, err
	}
	dev.MemoryBytes = int64(f.Out[0])
	f.Blob = [128]byte{}
	if err := d.call(dev, capi.DeviceGetName, &f); err != nil {
		return nil, err
	}
	dev.Name = text(&f)
	f.Blob = [128]byte{}
	if d.call(dev, capi.DeviceGetPCIBusID, &f) == nil {
		dev.PCIBusID = strings.ToLower(text(&f))
	}
	pitch, major, minor := 0, 0, 0
	for _, a := range []struct {
		to        *int
		attribute uint64
	}{{&pitch, attrMaxPitch}, {&dev.Multiprocessors, attrMultiprocessors}, {&dev.CopyEngines, attrAsyncEngines}, {&major, attrMajor}, {&minor, attrMinor}} {
		f := capi.Frame{In: [8]uint64{a.attribute, dev.handle}}
		if err := d.call(dev, capi.DeviceGetAttribute, &f); err != nil {
			return nil, err
		}
		*a.to = int(f.Out[0])
	}
	dev.MaxPitch, dev.Capability = int64(pitch), major*10+minor
	return dev, nil
}

// text is the C string in the frame.
func text(f *capi.Frame) string {
	s, _, _ := bytes.Cut(f.Blob[:], []byte{0})
	return string(s)
}

// CanAccess says whether a device can read and write another's memory
// directly, over NVLink or PCIe.
func (d *Driver) CanAccess(dev, peer *Device) bool {
	f := capi.Frame{In: [8]uint64{dev.handle, peer.handle}}
	return d.call(dev, capi.DeviceCanAccessPeer, &f) == nil && f.Out[0] != 0
}
