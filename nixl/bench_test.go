package nixl_test

import (
	"fmt"
	"testing"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// benchPair is two nodes of one process and lists of scattered blocks of both.
type benchPair struct {
	n, far        *node
	r             *nixl.Remote
	local, remote []nixl.Desc
}

func newBenchPair(b *testing.B, count, size int) *benchPair {
	b.Helper()
	p := &benchPair{n: newNode(b, 2*count*size, nixl.Config{}), far: newNode(b, 2*count*size, nixl.Config{})}
	p.r = addRemote(b, p.n.Agent, p.far.Agent)
	for i := range count {
		p.local = append(p.local, p.n.buf.Desc(2*i*size, size))
		p.remote = append(p.remote, p.far.buf.Desc(2*i*size, size))
	}
	return p
}

// The call path: repost and poll of one small transfer.
func BenchmarkRepost(b *testing.B) {
	for _, size := range []int{8, 4096, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := newBenchPair(b, 1, size)
			x := p.n.xfer(b, p.r, nixl.Read, p.local[0], p.remote[0])
			b.ReportAllocs()
			for b.Loop() {
				done, err := x.Post()
				for !done && err == nil {
					done, err = x.Poll()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Asking about a transfer that has ended costs no call into the library.
func BenchmarkPollEnded(b *testing.B) {
	p := newBenchPair(b, 1, 8)
	x := p.n.xfer(b, p.r, nixl.Read, p.local[0], p.remote[0])
	if err := x.Run(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if done, err := x.Poll(); !done || err != nil {
			b.Fatal(done, err)
		}
	}
}

// From two lists of descriptors to a request, and back.
func BenchmarkBuild(b *testing.B) {
	for _, count := range []int{1, 64, 4096} {
		p := newBenchPair(b, count, 4096)
		b.Run(fmt.Sprintf("descriptors/%d", count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x, err := p.r.NewTransfer(nixl.Read, p.n.ucx, dram(p.local...), dram(p.remote...), nixl.XferOptions{})
				if err != nil {
					b.Fatal(err)
				}
				_ = x.Close()
			}
		})
		local, err := p.n.ucx.PrepLocal(dram(p.local...))
		if err != nil {
			b.Fatal(err)
		}
		remote, err := p.r.Prep(p.n.ucx, dram(p.remote...))
		if err != nil {
			b.Fatal(err)
		}
		idx := make([]int32, count)
		for i := range idx {
			idx[i] = int32(i)
		}
		b.Run(fmt.Sprintf("prepared/%d", count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x, err := nixl.NewTransfer(nixl.Read, local, idx, remote, idx, nixl.XferOptions{})
				if err != nil {
					b.Fatal(err)
				}
				_ = x.Close()
			}
		})
	}
}

func BenchmarkRegister(b *testing.B) {
	n := newNode(b, 4096, nixl.Config{})
	buf, err := nixl.MapBuffer(1<<20, nixl.MapOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer buf.Close()
	b.ReportAllocs()
	for b.Loop() {
		reg, err := n.ucx.Register(buf.Region())
		if err != nil {
			b.Fatal(err)
		}
		if err := reg.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
