package cuda_test

import (
	"fmt"

	"github.com/lmcache-go/lmcache-go/cuda"
)

// A process that shares memory of a GPU, and another one that reads it. The
// handles travel by whatever connects the two.
func Example() {
	share := func(ctx *cuda.Context) (cuda.MemHandle, error) {
		b, err := ctx.Alloc(64 << 20)
		if err != nil {
			return cuda.MemHandle{}, err
		}
		return b.Handle()
	}
	read := func(ctx *cuda.Context, h cuda.MemHandle, into uint64) error {
		peer, err := ctx.OpenMemory(h)
		if err != nil {
			return err
		}
		defer func() { _ = peer.Release() }()
		s, err := ctx.NewStream()
		if err != nil {
			return err
		}
		defer func() { _ = s.Destroy() }()
		if err := s.Copy(into, peer.Address, peer.SizeBytes); err != nil {
			return err
		}
		return s.Wait()
	}
	_, _ = share, read

	drv, err := cuda.Load(cuda.LoadOptions{})
	if err != nil {
		fmt.Println("no GPU here, which is no reason to end")
		return
	}
	for _, dev := range drv.Devices() {
		fmt.Println(dev.UUID, dev.Name)
	}
}

// A decoder's GPU reads a request's blocks from a prefiller's.
func ExamplePuller() {
	pull := func(ctx *cuda.Context, dst, src, size []uint64) error {
		s, err := ctx.NewStream()
		if err != nil {
			return err
		}
		defer func() { _ = s.Destroy() }()
		p, err := ctx.NewPuller(1 << 16)
		if err != nil {
			return err
		}
		defer p.Close()
		// 32 of the GPU's multiprocessors, for a few milliseconds.
		if err := p.Pull(s, dst, src, size, cuda.PullOptions{Blocks: 32}); err != nil {
			return err
		}
		return s.Wait()
	}
	_ = pull
}
