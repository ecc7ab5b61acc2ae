package wire

import (
	"bytes"
	"fmt"
	"math"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
)

// DecodeDeviceWrappers reads the kv_cache of register_kv_cache: one wrapper for
// each tensor, in the order that layer indices count in. Tensors of a device
// that cannot be served are an [ErrUnsupportedDevice].
func DecodeDeviceWrappers(frame []byte) ([]DeviceWrapper, error) {
	r := reader{b: frame}
	var ws []DeviceWrapper
	r.list("kv_cache", func(int) {
		code, body := r.ext()
		if r.err == nil && code != deviceExt {
			r.fail(fmt.Errorf("%w: extension code %d, want %d", ErrType, code, deviceExt))
		}
		if r.err != nil {
			return
		}
		w, err := decodeDeviceBody(body)
		if err != nil {
			r.fail(err)
			return
		}
		ws = append(ws, w)
	})
	if err := r.done(); err != nil {
		return nil, err
	}
	return ws, nil
}

// decodeDeviceBody reads the data of a wrapper's extension.
func decodeDeviceBody(body []byte) (DeviceWrapper, error) {
	tag, err := deviceTag(body)
	if err != nil {
		return DeviceWrapper{}, err
	}
	d := deviceReader{reader: reader{b: body}, tag: tag}
	switch tag {
	case TagCUDA:
		c := &CUDAStorage{}
		d.read(c, []string{"handle"}, func(int) { d.cudaHandle(c) })
	case TagCUDARaw:
		c := &CUDARaw{}
		d.read(c, []string{"ipc_handle", "alloc_offset", "nbytes"}, func(i int) {
			switch i {
			case 0:
				d.fixedBin(c.Handle[:])
			case 1:
				c.OffsetBytes = d.count()
			case 2:
				c.SizeBytes = d.count()
			}
		})
	case TagCUDAVMM:
		c := &CUDAVMM{}
		d.read(c, vmmNames, func(i int) { d.vmmField(c, i) })
		if d.err == nil && d.fabric != (c.FabricBlob != nil) {
			d.fail(fmt.Errorf("%w: a fabric_blob goes with kind fabric, and only with it", ErrValue))
		}
	case TagCPUShm:
		c := &CPUShm{}
		d.read(c, []string{"shm_name", "nbytes"}, func(i int) {
			if i == 0 {
				d.set(&c.Name)
			} else {
				c.SizeBytes = d.count()
			}
		})
	case tagMUSA, tagNPU:
		return DeviceWrapper{}, fmt.Errorf("%w (%s tensor)", ErrUnsupportedDevice, tag)
	default:
		return DeviceWrapper{}, fmt.Errorf("device wrapper.type: %w: %s", ErrValue, clip([]byte(tag)))
	}
	if err := d.done(); err != nil {
		return DeviceWrapper{}, err
	}
	return d.out, d.checkView()
}

// deviceTag finds the tag of a wrapper, wherever in the map it stands.
func deviceTag(body []byte) (string, error) {
	r := reader{b: body}
	n := r.fields()
	for i := 0; i < n && r.err == nil; i++ {
		if name := r.key(); string(name) != "type" {
			r.skip()
			continue
		}
		tag := r.str()
		return string(tag), r.err
	}
	if r.err != nil {
		return "", fmt.Errorf("device wrapper: %w", r.err)
	}
	return "", fmt.Errorf("device wrapper.type: %w", ErrMissing)
}

// deviceReader reads the map of one wrapper, whose keys are all required and
// which may have no other.
type deviceReader struct {
	reader
	tag    string
	fabric bool // kind of a cuda_vmm is fabric
	out    DeviceWrapper
}

// read consumes the map; field consumes the value of the own key at an index.
func (d *deviceReader) read(source DeviceSource, own []string, field func(i int)) {
	d.out.Source = source
	names := append([]string{"type", "version", "metadata"}, own...)
	n := d.fields()
	var seen fieldSet
	for range n {
		name := d.key()
		i := indexOf(names, name)
		switch i {
		case -1:
			if d.err == nil {
				d.fail(ErrUnknownKey)
			}
		case 0:
			if got := d.str(); d.err == nil && string(got) != d.tag {
				d.fail(fmt.Errorf("%w: both %s and %s", ErrValue, d.tag, clip(got)))
			}
		case 1:
			if v := d.int(); d.err == nil && v != wireVersion {
				d.fail(fmt.Errorf("%w: version %d, want %d", ErrValue, v, wireVersion))
			}
		case 2:
			d.metadata()
		default:
			field(i - 3)
		}
		if d.err != nil {
			d.err = inField("device wrapper", name, d.err)
			return
		}
		seen.add(i)
	}
	if err := seen.missing("device wrapper", names, 1<<len(names)-1); err != nil {
		d.fail(err)
	}
}

var metadataNames = []string{"dtype", "shape", "stride", "storage_offset", "device_uuid"}

func (d *deviceReader) metadata() {
	m := TensorMetadata{}
	n := d.fields()
	var seen fieldSet
	for range n {
		name := d.key()
		i := indexOf(metadataNames, name)
		switch i {
		case -1:
			if d.err == nil {
				d.fail(ErrUnknownKey)
			}
		case 0:
			d.dtype(&m.DType)
		case 1:
			m.Shape = d.sizes()
		case 2:
			m.Stride = d.sizes()
		case 3:
			m.StorageOffset = d.count()
		case 4:
			d.set(&m.DeviceUUID)
		}
		if d.err != nil {
			d.err = inField("metadata", name, d.err)
			return
		}
		seen.add(i)
	}
	if err := seen.missing("metadata", metadataNames, 1<<5-1); err != nil {
		d.fail(err)
	} else if len(m.Shape) != len(m.Stride) {
		d.fail(fmt.Errorf("%w: %d dimensions and %d strides", ErrValue, len(m.Shape), len(m.Stride)))
	}
	d.out.Metadata = m
}

// dtype consumes a canonical dtype name: aliases and the torch. prefix are not
// allowed here.
func (d *deviceReader) dtype(dst *torchdtype.DType) {
	name := d.str()
	if d.err != nil {
		return
	}
	t, ok := torchdtype.Lookup(string(name))
	if !ok || t.Name != string(name) {
		d.fail(fmt.Errorf("%w: unknown dtype %s", ErrValue, clip(name)))
	}
	*dst = t
}

// sizes consumes an array of integers that are not negative.
func (d *deviceReader) sizes() []int64 {
	n := d.array()
	var v []int64
	for i := 0; i < n && d.err == nil; i++ {
		v = append(v, d.count())
	}
	return v
}

// fixedBin consumes bytes that must fill dst.
func (d *deviceReader) fixedBin(dst []byte) {
	p := d.bin()
	if d.err == nil && len(p) != len(dst) {
		d.fail(fmt.Errorf("%w: %d bytes, want %d", ErrValue, len(p), len(dst)))
	}
	copy(dst, p)
}

// optBin consumes bytes or nil and returns a copy, which is nil only for nil.
func (d *deviceReader) optBin() []byte {
	if d.isNil() {
		return nil
	}
	p := d.bin()
	if d.err != nil {
		return nil
	}
	return append(make([]byte, 0, len(p)), p...)
}

// cudaHandle consumes the tuple that torch's _share_cuda_ returns.
func (d *deviceReader) cudaHandle(c *CUDAStorage) {
	const items = 8
	if n := d.array(); d.err == nil && n != items {
		d.fail(fmt.Errorf("%w: array of %d, want %d", ErrValue, n, items))
	}
	*c = CUDAStorage{
		Ordinal: d.int(), Handle: d.optBin(), SizeBytes: d.count(), OffsetBytes: d.count(),
		RefCounterHandle: d.optBin(), RefCounterOffset: d.count(),
		EventHandle: d.optBin(), EventSync: d.bool(),
	}
}

var vmmNames = []string{"export_id", "kind", "fabric_blob", "alloc_size", "alloc_offset", "nbytes"}

func (d *deviceReader) vmmField(c *CUDAVMM, i int) {
	switch i {
	case 0:
		d.fixedBin(c.ExportID[:])
	case 1:
		d.fabric = d.oneOf([]string{"posix_fd", "fabric"}) == "fabric"
	case 2:
		c.FabricBlob = d.optBin()
	case 3:
		c.AllocSizeBytes = d.count()
	case 4:
		c.OffsetBytes = d.count()
	case 5:
		c.SizeBytes = d.count()
	}
}

// checkView checks that the tensor lies within the memory.
func (d *deviceReader) checkView() error {
	span, ok := d.out.Metadata.ByteSpan()
	if !ok {
		span = math.MaxInt64
	}
	if err := d.out.Source.check(span); err != nil {
		return fmt.Errorf("device wrapper (%s): %w", d.tag, err)
	}
	return nil
}

// Equal reports whether two wrappers name the same view of the same memory.
func (w *DeviceWrapper) Equal(o *DeviceWrapper) bool {
	return bytes.Equal(AppendDeviceWrapper(nil, w), AppendDeviceWrapper(nil, o))
}
