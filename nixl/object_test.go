package nixl_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// store is as much of S3 as the OBJ plugin uses: PUT, ranged GET, HEAD.
type store struct {
	mu      sync.Mutex
	objects map[string][]byte
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Method {
	case http.MethodPut:
		body, err := readBody(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.objects[r.URL.Path] = body
		w.Header().Set("ETag", `"`+hex.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(body)))+`"`)
	case http.MethodGet, http.MethodHead:
		body, ok := s.objects[r.URL.Path]
		if !ok {
			http.Error(w, "NoSuchKey", http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	default:
		http.Error(w, r.Method, http.StatusMethodNotAllowed)
	}
}

// readBody undoes aws-chunked, in which the SDK sends what it signs.
func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil || !strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		return body, err
	}
	var out []byte
	for {
		line, rest, ok := bytes.Cut(body, []byte("\r\n"))
		if !ok {
			return nil, fmt.Errorf("a torn chunk")
		}
		size, _, _ := strings.Cut(string(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil || int(n) > len(rest) {
			return nil, fmt.Errorf("a chunk of %q bytes", size)
		}
		if n == 0 {
			return out, nil
		}
		out = append(out, rest[:n]...)
		body = rest[n+2:]
	}
}

// Host memory to an object and back.
func TestObjects(t *testing.T) {
	a := newAgent(t, nixl.Config{})
	server := httptest.NewServer(&store{objects: map[string][]byte{}})
	defer server.Close()
	if _, _, err := a.PluginInfo("OBJ"); err != nil {
		objectsInOtherWheel(t, a.Library(), err)
		return
	}
	obj, err := a.Backend(nixl.ObjectStore{
		Bucket: "kv", Endpoint: server.URL, Region: "us-east-1", AccessKey: "key", SecretKey: "secret",
		Extra: map[string]string{"req_checksum": "required", "resp_checksum": "required"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 20
	buf, _ := newBuffer(t, obj, size)
	reg, err := obj.Register(nixl.ObjectRegion(5, "layer-0", size))
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	move := func(op nixl.Op) {
		t.Helper()
		far := nixl.Descs{Mem: nixl.Object, List: []nixl.Desc{reg.Desc(0, 0, size)}}
		x, err := a.Loopback().NewTransfer(op, obj, dram(buf.Desc(0, size)), far, nixl.XferOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		if err := x.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fill(buf.Bytes(), 3)
	move(nixl.Write)
	clear(buf.Bytes())
	move(nixl.Read)
	if !holds(buf.Bytes(), 3) {
		t.Error("other bytes came back")
	}
	got, err := obj.Query(nixl.ObjectQuery("layer-0"), nixl.ObjectQuery("absent"))
	if err != nil || len(got) != 2 || !got[0].Found || got[1].Found {
		t.Errorf("query: %+v, %v", got, err)
	}
}

// objectsInOtherWheel runs the test with the wheel for CUDA 12, whose OBJ plugin
// needs nothing of CUDA: that of the wheel for CUDA 13 does.
func objectsInOtherWheel(t *testing.T, lib *nixl.Library, why error) {
	t.Helper()
	other := strings.Replace(lib.Path(), ".nixl_cu13.", ".nixl_cu12.", 1)
	if _, err := os.Stat(other); err != nil || other == lib.Path() {
		t.Skipf("this machine lacks what the OBJ plugin needs: %v", why)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run", "^TestObjects$", "-test.v")
	cmd.Env = append(os.Environ(), nixl.EnvLibDir+"="+other)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestObjects") {
		t.Errorf("with %s: %v\n%s", other, err, out)
	}
}
