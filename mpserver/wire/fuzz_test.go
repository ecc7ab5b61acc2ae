package wire

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// seedFrames returns every frame of the golden file, and the odd ones of the
// verdicts for one codec ("" for none).
func seedFrames(f *testing.F, codec string) [][]byte {
	f.Helper()
	var out [][]byte
	g := loadGolden(f)
	for _, q := range g.Requests {
		for _, frame := range q.Frames[1:] {
			out = append(out, unhex(f, frame))
		}
	}
	for _, q := range g.Responses {
		for _, frame := range q.Frames[1:] {
			out = append(out, unhex(f, frame))
		}
	}
	if codec == "" {
		return out
	}
	data, err := os.ReadFile("testdata/msgspec_verdicts.json")
	require.NoError(f, err)
	var file struct {
		Cases map[string][][]*string `json:"cases"`
	}
	require.NoError(f, json.Unmarshal(data, &file))
	for i, c := range file.Cases[codec] {
		if i%4 == 0 { // seeds, not the test: TestVerdicts runs them all
			out = append(out, unhex(f, *c[0]))
		}
	}
	return out
}

func FuzzParseOp(f *testing.F) {
	for _, frame := range seedFrames(f, "") {
		if len(frame) < 64 {
			f.Add(frame)
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		op, err := ParseOp(frame)
		if err != nil && op != OpUnknown {
			t.Errorf("%v with %v", op, err)
		}
		if op == OpUnknown {
			return
		}
		again, err := ParseOp(AppendOp(nil, op))
		if err != nil || again != op {
			t.Errorf("%v comes back as %v (%v)", op, again, err)
		}
		byName, err := ParseOp(AppendString(nil, op.String()))
		if err != nil || byName != op {
			t.Errorf("%v by name is %v (%v)", op, byName, err)
		}
	})
}

// FuzzDecodeKey checks that a key which decodes means the same after encoding,
// and that one Key used for everything does not leak from frame to frame.
func FuzzDecodeKey(f *testing.F) {
	for _, frame := range seedFrames(f, "key") {
		f.Add(frame)
	}
	used := new(Key)
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := bytes.Clone(frame)
		var k Key
		err := DecodeKey(frame, &k, nil)
		reused := DecodeKey(frame, used, nil)
		if (err == nil) != (reused == nil) {
			t.Fatalf("fresh: %v, reused: %v", err, reused)
		}
		if !bytes.Equal(before, frame) {
			t.Fatal("the frame was written to")
		}
		if err != nil {
			return
		}
		require.Equal(t, &k, used)
		n, err := SkipTokens(k.Tokens, k.TokenCount)
		if err != nil || n != len(k.Tokens) {
			t.Fatalf("tokens: %d bytes of %d (%v)", n, len(k.Tokens), err)
		}
		out := AppendKey(nil, &k)
		var again Key
		require.NoError(t, DecodeKey(out, &again, nil))
		require.Equal(t, k, again)
		require.NoError(t, CheckSalt(k.Salt))
	})
}

// FuzzPayloads runs every decoder over every frame: none panics, none writes to
// the frame, and what one accepts comes out stable: encoded and decoded again it
// is the same.
func FuzzPayloads(f *testing.F) {
	codecs := []recode{
		recodeInt, recodeBool, recodeOptInt, recodeString, recodeStrings, recodeBytes, recodeFloat, recodeKey,
		recodeBlockIDs, recodeContext, recodeContextReply, recodeWrappers, recodeEngineType, recodeHints,
		recodeGroups, recodeAllocations, recodeObjectKeys, recodeLayouts, recodeAddresses, recodeStoreReply,
		recodePrepareStore, recodePrepareRetrieve, recodeBatch, recodeModuleCall, recodeModuleReply,
	}
	for _, frame := range seedFrames(f, "devices") {
		f.Add(frame)
	}
	for _, name := range []string{"cuda_layer0", "cuda_raw", "cuda_vmm_fabric", "cpu_shm"} {
		f.Add(oneWrapper(unhex(f, loadIPC(f).sample(f, name).Body)))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := bytes.Clone(frame)
		for i, c := range codecs {
			out, err := c(frame)
			if err != nil {
				continue
			}
			again, err := c(out)
			if err != nil || !bytes.Equal(out, again) {
				t.Errorf("codec %d: %x, then %x (%v)", i, out, again, err)
			}
		}
		_, _ = ParseMemoryHandle(frame)
		if k, err := ParseObjectKey(string(frame)); err == nil {
			checkNames(t, k)
		}
		if !bytes.Equal(before, frame) {
			t.Error("the frame was written to")
		}
	})
}
