package torchpickle

import "encoding/binary"

// machine runs one pickle stream over src. It knows how to build values; what
// globals, calls and persistent ids mean is the parser's business.
type machine struct {
	p     *parser
	inner bool // a stream of torch.save inside the bytes of a storage

	src []byte // values refer to it by offset
	pos int

	stack []value
	marks []int
	memo  []value
	cells []value // items of tuples
	lists [][]value
	dicts []dict
}

// begin prepares for the stream at src[pos:]. Memory of earlier streams is
// reused, their contents are gone.
func (m *machine) begin(src []byte, pos int) {
	m.src, m.pos = src, pos
	m.stack, m.marks, m.memo = m.stack[:0], m.marks[:0], m.memo[:0]
	m.cells, m.lists, m.dicts = m.cells[:0], m.lists[:0], m.dicts[:0]
}

// run executes until STOP and returns the one value left. m.pos is then the
// byte behind STOP.
func (m *machine) run() (value, error) {
	proto, err := m.take(2)
	if err != nil {
		return value{}, err
	}
	if proto[0] != opProto || proto[1] < minProtocol || proto[1] > maxProtocol {
		return value{}, errAt(ErrMalformed, m.pos-2, "no pickle of protocol %d to %d begins here", minProtocol, maxProtocol)
	}
	for {
		if m.p.left.ops--; m.p.left.ops < 0 {
			return value{}, errAt(ErrLimit, m.pos, "too many operations for its size")
		}
		if m.pos >= len(m.src) {
			return value{}, errAt(ErrMalformed, m.pos, "ends without STOP")
		}
		op := m.src[m.pos]
		m.pos++
		if op == opStop {
			if len(m.stack) != 1 || len(m.marks) != 0 {
				return value{}, errAt(ErrMalformed, m.pos-1, "STOP with %d values on the stack", len(m.stack))
			}
			return m.stack[0], nil
		}
		if err := m.step(op); err != nil {
			return value{}, err
		}
	}
}

// step executes one operation other than STOP.
func (m *machine) step(op byte) error {
	switch op {
	case opNone:
		return m.push(value{kind: kindNone})
	case opNewTrue:
		return m.push(value{kind: kindBool, a: 1})
	case opNewFalse:
		return m.push(value{kind: kindBool})
	case opBinInt, opBinInt1, opBinInt2, opLong1:
		return m.pushInt(op)
	case opBinUnicode, opShortBinUnicode, opBinUnicode8, opBinBytes, opShortBinBytes, opBinBytes8:
		return m.pushBytes(op)
	case opEmptyTuple:
		return m.push(value{kind: kindTuple})
	case opTuple1, opTuple2, opTuple3:
		return m.tuple(int(op-opTuple1) + 1)
	case opTuple:
		n, err := m.popMark()
		if err != nil {
			return err
		}
		return m.tuple(n)
	case opMark:
		if len(m.marks) >= maxMarks {
			return errAt(ErrLimit, m.pos-1, "more than %d open marks", maxMarks)
		}
		m.marks = append(m.marks, len(m.stack))
		return nil
	case opEmptyList, opEmptyDict:
		return m.pushEmpty(op)
	case opAppend:
		return m.appendItems(1)
	case opAppends:
		n, err := m.popMark()
		if err != nil {
			return err
		}
		return m.appendItems(n)
	case opSetItem:
		return m.setItems(2)
	case opSetItems:
		n, err := m.popMark()
		if err != nil {
			return err
		}
		return m.setItems(n)
	case opMemoize, opBinPut, opLongBinPut:
		return m.put(op)
	case opBinGet, opLongBinGet:
		return m.get(op)
	case opGlobal, opStackGlobal:
		return m.global(op)
	case opReduce:
		return m.reduce()
	case opBinPersID:
		return m.persistentID()
	case opFrame:
		return m.frame()
	}
	return errAt(ErrForbidden, m.pos-1, "operation 0x%02x is not used by lists of tensors", op)
}

// take returns the next n bytes of the stream.
func (m *machine) take(n int) ([]byte, error) {
	if n > len(m.src)-m.pos {
		return nil, errAt(ErrMalformed, m.pos, "%d bytes announced, %d left", n, len(m.src)-m.pos)
	}
	b := m.src[m.pos : m.pos+n]
	m.pos += n
	return b, nil
}

// takeLen reads a little-endian length of the given width, 1, 4 or 8 bytes,
// that must not reach beyond the stream.
func (m *machine) takeLen(width int) (int, error) {
	b, err := m.take(width)
	if err != nil {
		return 0, err
	}
	var n uint64
	switch width {
	case 1:
		n = uint64(b[0])
	case 4:
		n = uint64(binary.LittleEndian.Uint32(b))
	default:
		n = binary.LittleEndian.Uint64(b)
	}
	if left := len(m.src) - m.pos; n > uint64(left) {
		return 0, errAt(ErrMalformed, m.pos, "%d bytes announced, %d left", n, left)
	}
	return int(n), nil
}

func (m *machine) push(v value) error {
	if len(m.stack) >= maxStack {
		return errAt(ErrLimit, m.pos, "more than %d values on the stack", maxStack)
	}
	m.stack = append(m.stack, v)
	return nil
}

// floor is the lowest stack position that may be popped: values below an open
// mark are out of reach, as in CPython.
func (m *machine) floor() int {
	if n := len(m.marks); n > 0 {
		return m.marks[n-1]
	}
	return 0
}

func (m *machine) pop() (value, error) {
	n := len(m.stack)
	if n <= m.floor() {
		return value{}, errAt(ErrMalformed, m.pos-1, "operand missing on the stack")
	}
	v := m.stack[n-1]
	m.stack = m.stack[:n-1]
	return v, nil
}

// popMark closes the last mark and returns how many values lie above it; they
// stay on the stack.
func (m *machine) popMark() (int, error) {
	n := len(m.marks)
	if n == 0 {
		return 0, errAt(ErrMalformed, m.pos-1, "no mark on the stack")
	}
	at := m.marks[n-1]
	m.marks = m.marks[:n-1]
	return len(m.stack) - at, nil
}

// popN takes the top n values off the stack; the result is valid until the
// next push.
func (m *machine) popN(n int) ([]value, error) {
	at := len(m.stack) - n
	if at < m.floor() {
		return nil, errAt(ErrMalformed, m.pos-1, "%d operands missing on the stack", m.floor()-at)
	}
	top := m.stack[at:]
	m.stack = m.stack[:at]
	return top, nil
}

// charge accounts for n values that are kept until the stream ends.
func (m *machine) charge(n int) error {
	if m.p.left.records -= n; m.p.left.records < 0 {
		return errAt(ErrLimit, m.pos, "too many values for its size")
	}
	return nil
}
