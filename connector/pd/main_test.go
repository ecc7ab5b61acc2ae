package pd

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// envPython names the interpreter whose environment holds the NIXL wheel.
const envPython = "LMCACHE_GO_PYTHON"

// envChild makes this test binary a producer in a process of its own.
const envChild = "LMCACHE_GO_PD_CHILD"

var (
	testLib    *nixl.Library
	errTestLib error
)

func TestMain(m *testing.M) { cudatest.Main(m, testMain) }

func testMain(m *testing.M) {
	testLib, errTestLib = nixl.Load(nixl.LoadOptions{Python: os.Getenv(envPython)})
	if os.Getenv(envChild) != "" {
		os.Exit(runChild())
	}
	if errTestLib != nil {
		fmt.Fprintf(os.Stderr, "pd: tests that need the library are SKIPPED: %v\n", errTestLib)
	}
	goleak.VerifyTestMain(m)
}

func needLib(t testing.TB) *nixl.Library {
	t.Helper()
	if errTestLib != nil {
		t.Skipf("no NIXL library, set %s or %s: %v", envPython, nixl.EnvLibDir, errTestLib)
	}
	return testLib
}

func testModel(kvHeads int) Model {
	return Model{Name: "fake-model", DType: "torch.float32", KVHeads: kvHeads, HeadSize: 8, Layers: 2, AttnBackend: "CPU_ATTN"}
}

// cache is a KV cache of one rank: layers one after the other, heads first.
type cache struct {
	buf     *nixl.HostBuffer
	regions []Region
	block   int
	blocks  int
}

func newCache(t testing.TB, layers, blocks, blockBytes int) *cache {
	t.Helper()
	buf, err := nixl.MapBuffer(layers*blocks*blockBytes, nixl.MapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = buf.Close() }) // the agent may hold it
	c := &cache{buf: buf, block: blockBytes, blocks: blocks}
	for l := range layers {
		c.regions = append(c.regions, Region{
			Name: fmt.Sprintf("model.layers.%d.self_attn.attn", l), Addr: buf.Addr() + uintptr(l*blocks*blockBytes), BlockBytes: blockBytes, Blocks: blocks,
		})
	}
	return c
}

// page is a block of a layer.
func (c *cache) page(layer int, id int64) []byte {
	at := (layer*c.blocks + int(id)) * c.block
	return c.buf.Bytes()[at : at+c.block]
}

// fill writes bytes that depend on everything.
func (c *cache) fill(seed int) {
	for i := range c.buf.Bytes() {
		c.buf.Bytes()[i] = byte(i*31 + i>>8*7 + i>>16*13 + seed)
	}
}

func (c *cache) options(model Model) Options {
	return Options{
		Library: testLib, Model: model, BlockTokens: 16, Regions: c.regions, Memory: []nixl.Region{c.buf.Region()}, Host: "127.0.0.1", NoDirect: true,
	}
}

// newPeer makes a peer that ends with the test.
func newPeer(t testing.TB, o Options) *Peer {
	t.Helper()
	needLib(t)
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return p
}

// releases collects what Released is told.
type releases chan Release

func (r releases) add(x Release) { r <- x }

func (r releases) next(t testing.TB) Release {
	t.Helper()
	return testutil.Receive(t, "a release", r)
}
