package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// verdictCodecs holds the codec of each name in testdata/msgspec_verdicts.json.
var verdictCodecs = map[string]recode{
	"int": recodeInt, "bool": recodeBool, "opt_int": recodeOptInt, "string": recodeString, "bytes": recodeBytes,
	"float": recodeFloat, "strings": recodeStrings, "block_ids": recodeBlockIDs, "key": recodeKey,
	"context": recodeContext, "groups": recodeGroups, "hints": recodeHints, "engine_type": recodeEngineType,
	"allocations": recodeAllocations, "object_keys": recodeObjectKeys, "layouts": recodeLayouts,
	"addresses": recodeAddresses, "batch": recodeBatch, "module_call": recodeModuleCall,
	"store_reply": recodeStoreReply, "devices": recodeWrappers,
}

// TestVerdicts compares decoders with msgspec, which the reference decodes
// with, on frames that are wrong or odd in one place each: the same are
// refused, and the others hold the same values.
func TestVerdicts(t *testing.T) {
	data, err := os.ReadFile("testdata/msgspec_verdicts.json")
	require.NoError(t, err)
	var file struct {
		// A case is [frame], which comes out as it is, or [frame, out], where
		// out is null for a refusal.
		Cases map[string][][]*string `json:"cases"`
	}
	require.NoError(t, json.Unmarshal(data, &file))
	for name, cases := range file.Cases {
		t.Run(name, func(t *testing.T) {
			c, ok := verdictCodecs[name]
			require.True(t, ok)
			for _, v := range cases {
				frame := unhex(t, *v[0])
				want := v[len(v)-1]
				out, err := c(frame)
				got := hex.EncodeToString(out)
				switch {
				case want == nil && err == nil:
					t.Errorf("%s: accepted as %s", *v[0], got)
				case want != nil && err != nil:
					if !stricter(name, err) {
						t.Errorf("%s: refused (%v), want %s", *v[0], err, *want)
					}
				case want != nil && got != *want && !sameValue(t, name, out, unhex(t, *want)):
					t.Errorf("%s: got %s, want %s", *v[0], got, *want)
				}
			}
		})
	}
}

// stricter says which refusals are ours alone, on purpose.
func stricter(codec string, err error) bool {
	switch codec {
	case "int": // Python's int() knows digits of other scripts
		return errors.Is(err, ErrType) && strings.Contains(err.Error(), "٣")
	case "object_keys": // ranks have 32 bits
		return errors.Is(err, ErrRange) && strings.Contains(err.Error(), "kv_rank")
	}
	return false
}

// shortest writes integers anew in their shortest form.
func shortest(t *testing.T, ints []byte) []byte {
	t.Helper()
	var out []byte
	for r := (reader{b: ints}); len(r.b) > 0; {
		if v, negative := r.rawInt(); negative {
			out = AppendInt(out, int64(v))
		} else {
			out = AppendUint(out, v)
		}
		require.NoError(t, r.err)
	}
	return out
}

// sameValue compares two encodings that differ: msgspec leaves defaulted fields
// of a decoded dataclass out, keeps the order of hints as they came, and writes
// token_ids and request_configs anew, which we keep as bytes.
func sameValue(t *testing.T, codec string, got, want []byte) bool {
	t.Helper()
	if codec == "key" {
		var a, b Key
		require.NoError(t, DecodeKey(got, &a, nil))
		require.NoError(t, DecodeKey(want, &b, nil))
		if (a.Configs == nil) != (b.Configs == nil) {
			return false
		}
		for _, k := range []*Key{&a, &b} {
			k.Configs, k.Tokens = nil, shortest(t, k.Tokens)
		}
		return bytes.Equal(AppendKey(nil, &a), AppendKey(nil, &b))
	}
	again, err := verdictCodecs[codec](want)
	return err == nil && bytes.Equal(got, again)
}
