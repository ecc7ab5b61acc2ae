package pair

import (
	"bytes"
	"testing"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// As UCX 1.23 logs it, shortened.
const ucxLog = `[1796085689.741803] [vm:8166 :0]   +--------+-------------+-----------------------------------+
[1796085689.741803] [vm:8166 :0]   | 0b0b4e30-d417-455b-9b18-568705c self cfg#0               |
[1796085689.741803] [vm:8166 :0]   | remote memory write by ucp_put* from host memory to host |
[1796085689.741803] [vm:8166 :0]   +--------+-------------+-----------------------------------+
[1796085689.741803] [vm:8166 :0]   | Range  | Description |              Config               |
[1796085689.741803] [vm:8166 :0]   +--------+-------------+-----------------------------------+
[1796085689.741803] [vm:8166 :0]   | 0..inf | zero-copy   | cma/memory                        |
[1796085689.741803] [vm:8166 :0]   +--------+-------------+-----------------------------------+
[1796085690.859654] [vm:8176 :1] an unrelated line
[1796085690.859654] [vm:8176 :1]   +--------+-------------+------------------------------------------+
[1796085690.859654] [vm:8176 :1]   | 69ca8d9d-45a2-43bd-931d-7c7af27 intra-node cfg#1                |
[1796085690.859654] [vm:8176 :1]   | remote memory write by ucp_put*(multi) from host memory to host |
[1796085690.859654] [vm:8176 :1]   +--------+-------------+------------------------------------------+
[1796085690.859654] [vm:8176 :1]   | Range  | Description |                  Config                  |
[1796085690.859654] [vm:8176 :1]   +--------+-------------+------------------------------------------+
[1796085690.859654] [vm:8176 :1]   | 0..inf | zero-copy   | 52% on tcp/lo and 48% on tcp/eth0        |
[1796085690.859654] [vm:8176 :1]   +--------+-------------+------------------------------------------+
[1796085690.970554] [vm:8176 :3]   +--------+--------------------+------------------------------------+
[1796085690.970554] [vm:8176 :3]   | 69ca8d9d-45a2-43bd-931d-7c7af27 intra-node cfg#1                 |
[1796085690.970554] [vm:8176 :3]   | remote memory read by ucp_get*(multi) into host memory from host |
[1796085690.970554] [vm:8176 :3]   +--------+--------------------+------------------------------------+
[1796085690.970554] [vm:8176 :3]   | Range  |    Description     |               Config               |
[1796085690.970554] [vm:8176 :3]   +--------+--------------------+------------------------------------+
[1796085690.970554] [vm:8176 :3]   | 0..inf | software emulation | tcp/lo                             |
[1796085690.970554] [vm:8176 :3]   +--------+--------------------+------------------------------------+
`

func TestParseLanes(t *testing.T) {
	lanes := ParseLanes(ucxLog)
	if len(lanes) != 3 {
		t.Fatalf("%d lanes: %+v", len(lanes), lanes)
	}
	f := func(l Lane, scope, transport string, write, read, emulated bool) {
		t.Helper()
		if l.Scope != scope || l.Transport() != transport || l.Write() != write || l.Read() != read || l.Emulated() != emulated {
			t.Errorf("%+v: scope %q, transport %q, write %v, read %v, emulated %v", l, l.Scope, l.Transport(), l.Write(), l.Read(), l.Emulated())
		}
	}
	f(lanes[0], "self", "cma/memory", true, false, false)
	f(lanes[1], "intra-node", "52% on tcp/lo and 48% on tcp/eth0", true, false, true)
	f(lanes[2], "intra-node", "tcp/lo (software emulation)", false, true, true)
	kept := choose(lanes)
	if len(kept) != 2 || !kept[0].Write() || kept[0].Scope != "intra-node" || !kept[1].Read() {
		t.Errorf("kept %+v", kept)
	}
	if got := ParseLanes("+---\n| torn"); len(got) != 0 {
		t.Errorf("a torn table: %+v", got)
	}
}

func TestLines(t *testing.T) {
	want := Target{Side: Side{nixl.VRAM, 3, 4096}, Name: "n", Blob: []byte{0, 1, 255}, Addr: 0xdead}
	got, err := ParseTarget(want.Line())
	if err != nil || got.Side != want.Side || got.Name != "n" || got.Addr != want.Addr || !bytes.Equal(got.Blob, want.Blob) {
		t.Errorf("target %+v, %v", got, err)
	}
	r := Result{Iters: 5, CPUNSec: 1000, WallNSec: 2000, BuildNSec: 7, BuildArrayNSec: 3, Descs: 2, BestCPU: 8, BestWall: 9, PreparedNSec: 10}
	if back, err := ParseResult(r.Line()); err != nil || back != r {
		t.Errorf("result %+v, %v", back, err)
	}
	c := Case{Op: nixl.Write, Len: 8, Count: 3, Stride: 16, NSec: 9}
	if c.Span() != 40 || c.Bytes() != 24 {
		t.Errorf("span %d, bytes %d", c.Span(), c.Bytes())
	}
	for _, bad := range []string{"", "target a", "target a ! 0 0 0 0", "result 1 2 x 4 5"} {
		if _, err := ParseTarget(bad); err == nil {
			t.Errorf("ParseTarget(%q): no error", bad)
		}
		if _, err := ParseResult(bad); err == nil {
			t.Errorf("ParseResult(%q): no error", bad)
		}
	}
	if _, err := ParseResult("error it broke"); err == nil || err.Error() != "it broke" {
		t.Errorf("error line: %v", err)
	}
	m := map[string]string{"num_threads": "4", "engine_config": "A=1,B=2"}
	if back := ParseParams(FormatParams(m)); len(back) != 2 || back["engine_config"] != "A=1,B=2" {
		t.Errorf("params %v", back)
	}
}

func TestMemoryPattern(t *testing.T) {
	m, err := NewMemory(Side{Mem: nixl.DRAM, Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer m.host.Close()
	if err := m.Fill(1); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(1, 1, 8, 1, 8); err != nil {
		t.Error(err)
	}
	if m.Check(2, 1, 16, 3, 64) == nil || m.Check(1, 2, 16, 3, 64) == nil {
		t.Error("other patterns are accepted")
	}
	other, err := NewMemory(Side{Mem: nixl.DRAM, Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer other.host.Close()
	if err := other.Fill(2); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		copy(m.host.Bytes()[i*64:i*64+16], other.host.Bytes()[i*64:i*64+16])
	}
	if err := m.Check(2, 1, 16, 3, 64); err != nil {
		t.Error(err)
	}
	m.host.Bytes()[64+16]++ // one byte beyond a descriptor
	if m.Check(2, 1, 16, 3, 64) == nil {
		t.Error("a byte beyond a descriptor is not found")
	}
}
