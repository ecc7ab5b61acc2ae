package torchpickle

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
)

// legacyMagic is 0x1950a86a20f9469cfc6c, little endian: how torch.save's
// legacy form begins (torch/serialization.py, MAGIC_NUMBER).
var legacyMagic = []byte{0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19}

// legacyVersion is torch/serialization.py, PROTOCOL_VERSION.
const legacyVersion = 1001

// pendingStorage is the storage that the fourth of the five streams describes
// by its persistent id, before its bytes are known.
type pendingStorage struct {
	wanted bool             // an id may come now
	dtype  torchdtype.DType // zero for UntypedStorage
	key    value            // text in the stream
	numel  int64            // elements, or bytes where dtype is zero
}

// load is torch.storage._load_from_bytes for one storage in the CPU's memory:
// five pickles (magic, version, header, persistent id, keys), then the number
// of elements and their bytes. at is the position in the outer stream.
func (p *parser) load(blob []byte, at int) (value, error) {
	data, err := p.loadStreams(&p.inner, blob)
	if err != nil {
		return value{}, fmt.Errorf("in the storage loaded at byte %d: %w", at, err)
	}
	if err := p.outer.charge(1); err != nil {
		return value{}, err
	}
	p.storages = append(p.storages, storage{dtype: p.pending.dtype, data: data})
	return value{kind: kindStorage, a: int64(len(p.storages) - 1)}, nil
}

func (p *parser) loadStreams(m *machine, blob []byte) ([]byte, error) {
	p.pending = pendingStorage{}
	m.begin(blob, 0)
	v, err := m.run()
	if err != nil {
		return nil, err
	}
	if v.kind != kindBig || !bytes.Equal(m.text(v), legacyMagic) {
		return nil, errAt(ErrMalformed, 0, "not the legacy form of torch.save")
	}

	m.begin(blob, m.pos)
	if v, err = m.run(); err != nil {
		return nil, err
	}
	if v.kind != kindInt || v.a != legacyVersion {
		return nil, errAt(ErrMalformed, m.pos, "version of torch.save is not %d", legacyVersion)
	}

	m.begin(blob, m.pos)
	if v, err = m.run(); err != nil {
		return nil, err
	}
	if v.kind != kindDict || !m.dicts[v.a].littleEndian || m.dicts[v.a].version != legacyVersion {
		return nil, errAt(ErrMalformed, m.pos, "header is not that of a little-endian machine")
	}

	m.begin(blob, m.pos)
	p.pending.wanted = true
	v, err = m.run()
	p.pending.wanted = false
	if err != nil {
		return nil, err
	}
	if v.kind != kindStorage {
		return nil, errAt(ErrMalformed, m.pos, "a saved %v, want a storage", v.kind)
	}

	m.begin(blob, m.pos)
	if v, err = m.run(); err != nil {
		return nil, err
	}
	if v.kind != kindList || len(m.lists[v.a]) != 1 || m.lists[v.a][0].kind != kindText ||
		!bytes.Equal(m.text(m.lists[v.a][0]), m.text(p.pending.key)) {
		return nil, errAt(ErrMalformed, m.pos, "the saved keys are not the key of the storage")
	}
	return p.storageBytes(m)
}

// storageBytes reads the element count and takes the rest of the stream,
// which must be exactly that many elements.
func (p *parser) storageBytes(m *machine) ([]byte, error) {
	head, err := m.take(8)
	if err != nil {
		return nil, err
	}
	numel := binary.LittleEndian.Uint64(head)
	data := m.src[m.pos:]
	size := uint64(max(1, p.pending.dtype.Size))
	left := uint64(len(data))
	if numel != uint64(p.pending.numel) || numel > left || numel*size != left {
		return nil, errAt(ErrMalformed, m.pos, "%d elements of %d bytes described, %d announced, %d bytes there",
			p.pending.numel, size, numel, left)
	}
	return data, nil
}

// persistentID accepts ("storage", class, key, "cpu", numel, None), once, in
// the stream that describes a storage.
func (m *machine) persistentID() error {
	at := m.pos - 1
	v, err := m.pop()
	if err != nil {
		return err
	}
	pending := &m.p.pending
	if !m.inner || !pending.wanted {
		return errAt(ErrForbidden, at, "a persistent id outside a storage's description")
	}
	if v.kind != kindTuple || v.b != 6 {
		return errAt(ErrMalformed, at, "persistent id is not a tuple of 6")
	}
	id := m.items(v)
	if id[0].kind != kindText || string(m.text(id[0])) != "storage" || id[2].kind != kindText || id[4].kind != kindInt {
		return errAt(ErrMalformed, at, "persistent id does not describe a storage")
	}
	if id[3].kind != kindText || string(m.text(id[3])) != "cpu" {
		return errAt(ErrForbidden, at, "storage is not in CPU memory: move tensors to the CPU before pickling them")
	}
	if id[5].kind != kindNone {
		return errAt(ErrForbidden, at, "storage is a view of another one")
	}
	if id[4].a < 0 {
		return errAt(ErrMalformed, at, "storage of %d elements", id[4].a)
	}
	*pending = pendingStorage{key: id[2], numel: id[4].a}
	switch {
	case id[1].kind == kindGlobal && id[1].a == globalStorage:
		pending.dtype = dtypes[id[1].b]
	case id[1].kind == kindGlobal && id[1].a == globalUntypedStorage:
	default:
		return errAt(ErrMalformed, at, "storage class is a %v", id[1].kind)
	}
	return m.push(value{kind: kindStorage, a: -1})
}
