package nixl_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// envChild makes this test binary play a role in another process.
const envChild = "LMCACHE_GO_NIXL_CHILD"

// envPython names the interpreter whose environment holds the NIXL wheel; it
// also runs the Python peers.
const envPython = "LMCACHE_GO_PYTHON"

var (
	testLib    *nixl.Library
	errTestLib error
)

func TestMain(m *testing.M) {
	testLib, errTestLib = nixl.Load(nixl.LoadOptions{Python: os.Getenv(envPython)})
	if role := os.Getenv(envChild); role != "" {
		os.Exit(runChild(role))
	}
	if errTestLib != nil {
		fmt.Fprintf(os.Stderr, "nixl: tests that need the library are SKIPPED: %v\n", errTestLib)
	}
	goleak.VerifyTestMain(m)
}

// needLib skips a test that needs the real library, and says why.
func needLib(t testing.TB) *nixl.Library {
	t.Helper()
	if errTestLib != nil {
		t.Skipf("no NIXL library, set %s or %s: %v", envPython, nixl.EnvLibDir, errTestLib)
	}
	return testLib
}

// newAgent makes an agent that ends with the test.
func newAgent(t testing.TB, cfg nixl.Config) *nixl.Agent {
	t.Helper()
	a, err := nixl.NewAgent(needLib(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("closing agent: %v", err)
		}
	})
	return a
}

// node is an agent with UCX and one registered buffer.
type node struct {
	*nixl.Agent
	ucx *nixl.Backend
	buf *nixl.HostBuffer
	reg *nixl.Registration
}

func newNode(t testing.TB, size int, cfg nixl.Config) *node {
	t.Helper()
	n := &node{Agent: newAgent(t, cfg)}
	var err error
	if n.ucx, err = n.Backend(nixl.UCX{}); err != nil {
		t.Fatal(err)
	}
	n.buf, n.reg = newBuffer(t, n.ucx, size)
	return n
}

func newBuffer(t testing.TB, b *nixl.Backend, size int) (*nixl.HostBuffer, *nixl.Registration) {
	t.Helper()
	buf, err := nixl.MapBuffer(size, nixl.MapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := b.Register(buf.Region())
	if err != nil {
		t.Fatal(err)
	}
	// Closed whichever way the test went; the agent may still hold it.
	t.Cleanup(func() { _ = buf.Close() })
	return buf, reg
}

// meet makes two nodes of one process known to each other.
func meet(t testing.TB, a, b *node) (bInA, aInB *nixl.Remote) {
	t.Helper()
	return addRemote(t, a.Agent, b.Agent), addRemote(t, b.Agent, a.Agent)
}

func addRemote(t testing.TB, a, b *nixl.Agent) *nixl.Remote {
	t.Helper()
	blob, err := b.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.AddRemote(t.Context(), blob, b.Name())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// dram are descriptors of one span of host memory.
func dram(d ...nixl.Desc) nixl.Descs { return nixl.Descs{Mem: nixl.DRAM, List: d} }

// fill writes a pattern that depends on the seed and the place.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}

// holds tells whether memory holds the pattern.
func holds(b []byte, seed int) bool {
	for i := range b {
		if b[i] != byte(i*7+i>>8+seed) {
			return false
		}
	}
	return true
}

// eventually waits for a condition that another process or thread brings about.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in 20 s: %s", what)
		}
	}
}
