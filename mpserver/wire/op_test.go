package wire

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGoldenOperations(t *testing.T) {
	g := loadGolden(t)
	require.Len(t, g.Operations, int(NumOps)-2, "operations that we know")
	for _, o := range g.Operations {
		op, err := ParseOp(unhex(t, o.Wire))
		require.NoError(t, err)
		byName, err := ParseOp(AppendString(nil, o.Op))
		require.NoError(t, err)
		if op != byName || op.String() != o.Op || op.Arity() != len(o.Params) {
			t.Errorf("%s: got %v by id, %v by name, arity %d, want %d", o.Op, op, byName, op.Arity(), len(o.Params))
		}
		if o.LegacyID != nil && int(op) != *o.LegacyID {
			t.Errorf("%s: got value %d, want its id %d", o.Op, op, *o.LegacyID)
		}
		if got := hex.EncodeToString(AppendOp(nil, op)); got != o.Wire {
			t.Errorf("%s: got frame %s, want %s", o.Op, got, o.Wire)
		}
	}
}

func TestParseOp(t *testing.T) {
	f := func(frame []byte, want Op) {
		t.Helper()
		got, err := ParseOp(frame)
		if err != nil || got != want {
			t.Errorf("%x: got %v (%v), want %v", frame, got, err, want)
		}
	}
	f([]byte{24}, OpNoop)
	f([]byte{mpUint8, 24}, OpNoop)
	f([]byte{mpUint64, 0, 0, 0, 0, 0, 0, 0, 24}, OpNoop)
	f([]byte{mpInt8, 24}, OpNoop)
	f([]byte{mpInt64, 0, 0, 0, 0, 0, 0, 0, 24}, OpNoop)
	f([]byte{mpStr8, 4, 'n', 'o', 'o', 'p'}, OpNoop)
	f([]byte{mpStr32, 0, 0, 0, 4, 'p', 'i', 'n', 'g'}, OpPing)
	// Not operations, but honest questions.
	f([]byte{0}, OpUnknown)
	f([]byte{11}, OpUnknown)
	f([]byte{34}, OpUnknown) // our own number of subscribe_kv_events is not on the wire
	f([]byte{35}, OpUnknown)
	f([]byte{36}, OpUnknown)
	f([]byte{99}, OpUnknown)
	f([]byte{mpNegFix}, OpUnknown)
	f([]byte{mpUint64, 255, 255, 255, 255, 255, 255, 255, 255}, OpUnknown)
	f([]byte{mpUint16, 1, 24}, OpUnknown)
	f(AppendString(nil, ""), OpUnknown)
	f(AppendString(nil, "no_such_op"), OpUnknown)
	f(AppendString(nil, "unknown"), OpUnknown)
	f(AppendString(nil, "retired_11"), OpUnknown)
	f(AppendString(nil, "NOOP"), OpUnknown)

	bad := func(frame []byte, want error) {
		t.Helper()
		if op, err := ParseOp(frame); err == nil {
			t.Errorf("%x: accepted as %v", frame, op)
		} else {
			require.ErrorIs(t, err, want)
		}
	}
	bad(nil, ErrTruncated)
	bad([]byte{0xc1}, ErrType)
	bad([]byte{24, 1}, ErrTrailing)
	bad([]byte{mpUint16, 24}, ErrTruncated)
	bad(AppendFloat(nil, 1.5), ErrType)
	bad([]byte{mpTrue}, ErrType)
	bad([]byte{mpNil}, ErrType)
	bad(AppendBytes(nil, []byte("noop")), ErrType)
	bad([]byte{mpFixArray | 1, 24}, ErrType)
	bad([]byte{mpFixStr | 4, 'n', 'o', 'o'}, ErrTruncated)
	bad([]byte{mpFixStr | 1, 0xff}, ErrUTF8)
}

func TestOpOutOfRange(t *testing.T) {
	if got := Op(200).String(); got != "unknown" {
		t.Errorf("String: got %q", got)
	}
	if got := Op(200).Arity(); got != -1 {
		t.Errorf("Arity: got %d", got)
	}
}

// A refusal must name another operation than the request, or it would be
// taken for its value.
func TestRefusalNamesAnotherOperation(t *testing.T) {
	for op := OpUnknown; op < NumOps; op++ {
		got, err := ParseOp(RefusalFrame(op))
		require.NoError(t, err)
		if got == op || got == OpUnknown {
			t.Errorf("%v is refused with the frame of %v", op, got)
		}
	}
}

// TestGoldenCompat runs the frames that the reference takes or drops through
// the same checks as a server: operation, number of frames, each argument.
func TestGoldenCompat(t *testing.T) {
	valid := func(frames []string) bool {
		op, err := ParseOp(unhex(t, frames[1]))
		if err != nil || op == OpUnknown || op.Arity() != len(frames)-2 {
			return false
		}
		for i, c := range arguments[op.String()] {
			if _, err := c(unhex(t, frames[2+i])); err != nil {
				return false
			}
		}
		return true
	}
	for _, c := range loadGolden(t).Compat {
		if got, want := valid(c.Frames), c.Expect != "no_reply"; got != want {
			t.Errorf("%s: valid %v, the reference %s", c.Name, got, c.Expect)
		}
	}
}
