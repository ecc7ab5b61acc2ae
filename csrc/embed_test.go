package csrc

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
)

func TestPTXIsOfThisSource(t *testing.T) {
	sum := sha256.Sum256([]byte(Source))
	if got, want := SourceHash(), hex.EncodeToString(sum[:]); got != want {
		t.Errorf("kernels.ptx was made from source %.12s…, kernels.cu is %.12s…: run make kernels", got, want)
	}
	for _, name := range []string{Pull, Transpose} {
		if !strings.Contains(PTX, ".entry "+name+"(") {
			t.Errorf("no kernel %s", name)
		}
	}
	if !strings.Contains(PTX, ".target sm_75") {
		t.Error("not for compute capability 7.5")
	}
}
