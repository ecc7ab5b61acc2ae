package nixl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A framed blob, little endian: magic (8 bytes), length of the name, length of
// the blob, CRC-32C of both (4 bytes each), name, blob. The frame is this
// package's own; what NIXL loads is the blob.
const (
	frameMagic = "nixl-go\x01"
	frameHead  = 20
	// maxBlob bounds what a frame may claim: NIXL's own listener takes 1 GiB.
	maxBlob = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func frame(name string, blob []byte) []byte {
	out := make([]byte, frameHead, frameHead+len(name)+len(blob))
	copy(out, frameMagic)
	binary.LittleEndian.PutUint32(out[8:], uint32(len(name)))
	binary.LittleEndian.PutUint32(out[12:], uint32(len(blob)))
	out = append(append(out, name...), blob...)
	binary.LittleEndian.PutUint32(out[16:], crc32.Checksum(out[frameHead:], castagnoli))
	return out
}

// unframe checks a frame; the blob aliases it.
func unframe(b []byte) (name string, blob []byte, err error) {
	if len(b) < frameHead || string(b[:8]) != frameMagic {
		return "", nil, errors.New("it is no framed blob of this package; a blob of another NIXL peer is loaded with AddRemoteRaw")
	}
	n, size := int(binary.LittleEndian.Uint32(b[8:])), int(binary.LittleEndian.Uint32(b[12:]))
	if n > 255 || size > maxBlob || len(b) != frameHead+n+size {
		return "", nil, fmt.Errorf("%d bytes, the frame says %d", len(b), frameHead+n+size)
	}
	if crc32.Checksum(b[frameHead:], castagnoli) != binary.LittleEndian.Uint32(b[16:]) {
		return "", nil, errors.New("the checksum is wrong")
	}
	return string(b[frameHead : frameHead+n]), b[frameHead+n:], nil
}

// MetadataRegion is one registered region in a peer's metadata.
type MetadataRegion struct {
	Backend string
	Mem     MemType
	Desc
}

// MetadataInfo is what a metadata blob says, as far as it is not opaque.
type MetadataInfo struct {
	Agent    string
	Backends []string // with connection data in the blob; none in a partial blob
	Regions  []MetadataRegion

	conn string // digest of the connection data
}

// ParseMetadata reads a raw blob of NIXL 1.5 (nixlSerDes), as agents of all
// languages make it, without loading it: it finds truncated and damaged blobs,
// which must not reach the library.
func ParseMetadata(blob []byte) (*MetadataInfo, error) {
	r := &serdes{rest: blob}
	info := &MetadataInfo{}
	r.literal("nixlSerDes|")
	info.Agent = string(r.field("Agent"))
	digest := fnvOffset
	for range r.count("Conns") {
		backend := r.field("t")
		info.Backends = append(info.Backends, string(backend))
		conn := r.field("c")
		digest = fnv(fnv(digest, backend), conn)
	}
	if len(info.Backends) > 0 {
		info.conn = fmt.Sprintf("%016x", digest)
	}
	if section := r.field(""); r.err == nil && string(section) != "MemSection" {
		r.fail("a memory section is expected")
	}
	for range r.count("nixlSecElms") {
		r.section(info)
	}
	if r.err == nil && len(r.rest) > 0 {
		r.fail(fmt.Sprintf("%d bytes too many", len(r.rest)))
	}
	if r.err == nil && info.Agent == "" {
		r.fail("it names no agent")
	}
	if r.err != nil {
		return nil, fmt.Errorf("%w: at byte %d of %d: %w", ErrBadMetadata, len(blob)-len(r.rest), len(blob), r.err)
	}
	return info, nil
}

// serdes reads NIXL's serialisation: tag, 64-bit length, value, '|'. The first
// error stays.
type serdes struct {
	rest []byte
	err  error
}

func (r *serdes) fail(text string) {
	if r.err == nil {
		r.err = errors.New(text)
	}
}

func (r *serdes) literal(s string) {
	if r.err != nil {
		return
	}
	if !bytes.HasPrefix(r.rest, []byte(s)) {
		r.fail(fmt.Sprintf("%q is expected", s))
		return
	}
	r.rest = r.rest[len(s):]
}

func (r *serdes) field(tag string) []byte {
	r.literal(tag)
	if r.err != nil {
		return nil
	}
	if len(r.rest) < 9 {
		r.fail("it is cut off")
		return nil
	}
	n := binary.LittleEndian.Uint64(r.rest)
	if n > uint64(len(r.rest)-9) {
		r.fail("it is cut off")
		return nil
	}
	value := r.rest[8 : 8+n]
	if r.rest[8+n] != '|' {
		r.fail("a value does not end where it should")
		return nil
	}
	r.rest = r.rest[9+n:]
	return value
}

// count reads how many elements follow. Each takes at least nine bytes.
func (r *serdes) count(tag string) int {
	v := r.field(tag)
	if r.err != nil {
		return 0
	}
	if len(v) != 8 || binary.LittleEndian.Uint64(v) > uint64(len(r.rest)/9) {
		r.fail("a count makes no sense")
		return 0
	}
	return int(binary.LittleEndian.Uint64(v))
}

// section reads the regions of one backend and memory type.
func (r *serdes) section(info *MetadataInfo) {
	backend := string(r.field("bknd"))
	if kind := r.field("nixlDList"); r.err == nil && string(kind) != "nixlSDList" {
		r.fail("a list of an unknown kind")
	}
	mem := r.field("t")
	if r.err == nil && len(mem) != 4 {
		r.fail("a memory type makes no sense")
	}
	for range r.count("n") {
		v := r.field("")
		if r.err == nil && len(v) < 24 {
			r.fail("a descriptor is too short")
		}
		if r.err != nil {
			return
		}
		info.Regions = append(info.Regions, MetadataRegion{
			Backend: backend, Mem: MemType(int32(binary.LittleEndian.Uint32(mem))),
			Desc: Desc{Addr: uintptr(binary.LittleEndian.Uint64(v)), Len: uintptr(binary.LittleEndian.Uint64(v[8:])), Dev: binary.LittleEndian.Uint64(v[16:])},
		})
	}
}

const fnvOffset uint64 = 14695981039346656037

// fnv continues an FNV-1a digest, with the length so that fields cannot run
// into each other.
func fnv(h uint64, b []byte) uint64 {
	const prime = 1099511628211
	h = (h ^ uint64(len(b))) * prime
	for _, c := range b {
		h = (h ^ uint64(c)) * prime
	}
	return h
}
