package nixl

import (
	"bytes"
	"errors"
	"os"
	"testing"
)

// goldenBlob is the metadata of an agent "alpha" with UCX and one region of
// 1 MiB, made by NIXL 1.5.1's Python binding.
func goldenBlob(t testing.TB) []byte {
	t.Helper()
	blob, err := os.ReadFile("testdata/metadata_1.5.1.bin")
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

func TestParseMetadata(t *testing.T) {
	info, err := ParseMetadata(goldenBlob(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Agent != "alpha" || len(info.Backends) != 1 || info.Backends[0] != "UCX" || info.conn == "" {
		t.Errorf("got %+v", info)
	}
	if len(info.Regions) != 1 {
		t.Fatalf("regions: %+v", info.Regions)
	}
	if r := info.Regions[0]; r.Backend != "UCX" || r.Mem != DRAM || r.Len != 1<<20 || r.Dev != 0 || r.Addr == 0 {
		t.Errorf("region: %+v", r)
	}
}

// Every truncation, and every prefix with garbage behind it, is found before
// the library sees it.
func TestParseMetadataFindsTruncation(t *testing.T) {
	blob := goldenBlob(t)
	for n := range blob {
		if _, err := ParseMetadata(blob[:n]); !errors.Is(err, ErrBadMetadata) {
			t.Fatalf("%d of %d bytes: %v, want ErrBadMetadata", n, len(blob), err)
		}
	}
	if _, err := ParseMetadata(append(bytes.Clone(blob), 0)); !errors.Is(err, ErrBadMetadata) {
		t.Errorf("a byte too many: %v", err)
	}
}

func TestFrame(t *testing.T) {
	framed := frame("alpha", []byte("blob"))
	name, blob, err := unframe(framed)
	if err != nil || name != "alpha" || string(blob) != "blob" {
		t.Fatalf("unframe = %q, %q, %v", name, blob, err)
	}
	for i := range framed {
		bad := bytes.Clone(framed)
		bad[i] ^= 0x10
		if _, _, err := unframe(bad); err == nil {
			t.Errorf("byte %d damaged: no error", i)
		}
		if _, _, err := unframe(framed[:i]); err == nil {
			t.Errorf("cut to %d bytes: no error", i)
		}
	}
}

func FuzzParseMetadata(f *testing.F) {
	f.Add(goldenBlob(f))
	f.Add([]byte("nixlSerDes|"))
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := ParseMetadata(b)
		if (info == nil) == (err == nil) {
			t.Errorf("info %v, error %v", info, err)
		}
		if err == nil && len(info.Regions) > len(b)/24 {
			t.Errorf("%d regions out of %d bytes", len(info.Regions), len(b))
		}
	})
}

func FuzzUnframe(f *testing.F) {
	f.Add(frame("alpha", []byte("blob")))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, blob, err := unframe(b)
		if err == nil && !bytes.Equal(frame(name, blob), b) {
			t.Error("a frame that is accepted is not the one that would be made")
		}
	})
}
