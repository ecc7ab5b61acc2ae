package conformance

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// frame is one frame, in hexadecimal in the recordings.
type frame []byte

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *frame) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	*f = b
	return err
}

// exchange is one request with its reply; Recv is nil where the real server did not answer.
type exchange struct {
	Name string  `json:"name"`
	Op   string  `json:"op"`
	Send []frame `json:"send"`
	Recv []frame `json:"recv"`
}

// request is one recorded request; Expect, where set, is what the real server does with it.
type request struct {
	Name   string  `json:"name"`
	Op     string  `json:"op"`
	Frames []frame `json:"frames"`
	Expect string  `json:"expect"`
}

// recorded reads a file of testdata.
func recorded[T any](t *testing.T, name string) []T {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var out []T
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatalf("%s is empty", name)
	}
	return out
}

func raw(frames []frame) [][]byte {
	out := make([][]byte, len(frames))
	for i, f := range frames {
		out[i] = f
	}
	return out
}
