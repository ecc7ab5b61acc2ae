package torchpickle

import (
	"bytes"
	"encoding/binary"
)

func (m *machine) pushInt(op byte) error {
	switch op {
	case opBinInt1:
		b, err := m.take(1)
		if err != nil {
			return err
		}
		return m.push(value{kind: kindInt, a: int64(b[0])})
	case opBinInt2:
		b, err := m.take(2)
		if err != nil {
			return err
		}
		return m.push(value{kind: kindInt, a: int64(binary.LittleEndian.Uint16(b))})
	case opBinInt:
		b, err := m.take(4)
		if err != nil {
			return err
		}
		return m.push(value{kind: kindInt, a: int64(int32(binary.LittleEndian.Uint32(b)))})
	}
	n, err := m.takeLen(1) // LONG1: two's complement of up to 255 bytes
	if err != nil {
		return err
	}
	at := m.pos
	m.pos += n
	if n > 8 {
		return m.push(value{kind: kindBig, a: int64(at), b: int64(at + n)})
	}
	var u uint64
	for i, c := range m.src[at:m.pos] {
		u |= uint64(c) << (8 * i)
	}
	if 0 < n && n < 8 && m.src[m.pos-1]&0x80 != 0 {
		u |= ^uint64(0) << (8 * n)
	}
	return m.push(value{kind: kindInt, a: int64(u)})
}

func (m *machine) pushBytes(op byte) error {
	width, k := 4, kindBytes
	switch op {
	case opShortBinBytes:
		width = 1
	case opBinBytes8:
		width = 8
	case opShortBinUnicode:
		width, k = 1, kindText
	case opBinUnicode:
		k = kindText
	case opBinUnicode8:
		width, k = 8, kindText
	}
	n, err := m.takeLen(width)
	if err != nil {
		return err
	}
	at := m.pos
	m.pos += n
	return m.push(value{kind: k, a: int64(at), b: int64(m.pos)})
}

func (m *machine) tuple(n int) error {
	items, err := m.popN(n)
	if err != nil {
		return err
	}
	if err := m.charge(n); err != nil {
		return err
	}
	at := len(m.cells)
	m.cells = append(m.cells, items...)
	return m.push(value{kind: kindTuple, a: int64(at), b: int64(n)})
}

// items returns a tuple's values, valid until the next tuple is made.
func (m *machine) items(v value) []value { return m.cells[v.a : v.a+v.b] }

// text returns the bytes of a kindText, kindBytes or kindBig value.
func (m *machine) text(v value) []byte { return m.src[v.a:v.b] }

func (m *machine) pushEmpty(op byte) error {
	if op == opEmptyDict {
		if len(m.dicts) >= maxDicts {
			return errAt(ErrLimit, m.pos-1, "more than %d dicts", maxDicts)
		}
		m.dicts = append(m.dicts, dict{})
		return m.push(value{kind: kindDict, a: int64(len(m.dicts) - 1)})
	}
	n := len(m.lists)
	if n >= maxLists {
		return errAt(ErrLimit, m.pos-1, "more than %d lists", maxLists)
	}
	if n < cap(m.lists) { // reuse the memory of an earlier stream's list
		m.lists = m.lists[:n+1]
		m.lists[n] = m.lists[n][:0]
	} else {
		m.lists = append(m.lists, nil)
	}
	return m.push(value{kind: kindList, a: int64(n)})
}

// appendItems adds the top n values to the list below them.
func (m *machine) appendItems(n int) error {
	items, err := m.popN(n)
	if err != nil {
		return err
	}
	if len(m.stack) <= m.floor() || m.stack[len(m.stack)-1].kind != kindList {
		return errAt(ErrMalformed, m.pos-1, "append to something that is not a list")
	}
	list := &m.lists[m.stack[len(m.stack)-1].a]
	if len(*list)+n > maxTensors {
		return errAt(ErrLimit, m.pos-1, "more than %d items in a list", maxTensors)
	}
	if err := m.charge(n); err != nil {
		return err
	}
	*list = append(*list, items...)
	return nil
}

// setItems adds the top n values, keys and values in turn, to the dict below
// them. Only what torch.save's header is asked for is kept.
func (m *machine) setItems(n int) error {
	items, err := m.popN(n)
	if err != nil {
		return err
	}
	if n%2 != 0 || len(m.stack) <= m.floor() || m.stack[len(m.stack)-1].kind != kindDict {
		return errAt(ErrMalformed, m.pos-1, "items set on something that is not a dict")
	}
	d := &m.dicts[m.stack[len(m.stack)-1].a]
	for i := 0; i < n; i += 2 {
		d.entries++
		k, v := items[i], items[i+1]
		if k.kind != kindText {
			continue
		}
		switch string(m.text(k)) {
		case "protocol_version":
			if d.version = 0; v.kind == kindInt {
				d.version = v.a
			}
		case "little_endian":
			d.littleEndian = v.kind == kindBool && v.a == 1
		}
	}
	return nil
}

// put stores the top of the stack in the memo. Picklers number their entries
// from 0 without gaps, so an index beyond the next one is an error and no
// index makes the memo grow by more than one entry.
func (m *machine) put(op byte) error {
	index := len(m.memo)
	switch op {
	case opBinPut:
		b, err := m.take(1)
		if err != nil {
			return err
		}
		index = int(b[0])
	case opLongBinPut:
		b, err := m.take(4)
		if err != nil {
			return err
		}
		index = int(binary.LittleEndian.Uint32(b))
	}
	if len(m.stack) <= m.floor() {
		return errAt(ErrMalformed, m.pos-1, "nothing on the stack to remember")
	}
	v := m.stack[len(m.stack)-1]
	switch {
	case index < len(m.memo):
		m.memo[index] = v
	case index == len(m.memo):
		if err := m.charge(1); err != nil {
			return err
		}
		m.memo = append(m.memo, v)
	default:
		return errAt(ErrMalformed, m.pos-1, "memo entry %d set before %d", index, len(m.memo))
	}
	return nil
}

func (m *machine) get(op byte) error {
	width := 1
	if op == opLongBinGet {
		width = 4
	}
	b, err := m.take(width)
	if err != nil {
		return err
	}
	index := uint32(b[0])
	if width == 4 {
		index = binary.LittleEndian.Uint32(b)
	}
	if uint64(index) >= uint64(len(m.memo)) {
		return errAt(ErrMalformed, m.pos-width, "memo entry %d read, %d exist", index, len(m.memo))
	}
	return m.push(m.memo[index])
}

// frame checks that a frame's bytes are there. Frames exist for streaming
// readers; their contents are ordinary operations.
func (m *machine) frame() error {
	_, err := m.takeLen(8)
	return err
}

// global resolves a name against the short list of this kind of stream.
func (m *machine) global(op byte) error {
	at := m.pos - 1
	var module, name []byte
	if op == opGlobal {
		for _, part := range []*[]byte{&module, &name} {
			rest := m.src[m.pos:]
			n := bytes.IndexByte(rest[:min(len(rest), maxName+1)], '\n')
			if n < 0 {
				return errAt(ErrForbidden, at, "a global's name does not end within %d bytes", maxName)
			}
			*part = rest[:n]
			m.pos += n + 1
		}
	} else {
		v, err := m.popN(2)
		if err != nil {
			return err
		}
		if v[0].kind != kindText || v[1].kind != kindText {
			return errAt(ErrMalformed, at, "a global named by %v and %v", v[0].kind, v[1].kind)
		}
		module, name = m.text(v[0]), m.text(v[1])
		if len(module) > maxName || len(name) > maxName {
			return errAt(ErrForbidden, at, "a global's name is longer than %d bytes", maxName)
		}
	}
	resolve := outerGlobal
	if m.inner {
		resolve = innerGlobal
	}
	v, ok := resolve(module, name)
	if !ok {
		return errAt(ErrForbidden, at, "global %q of module %q is not one of a plain tensor", name, module)
	}
	return m.push(v)
}
