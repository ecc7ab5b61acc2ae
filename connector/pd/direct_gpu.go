package pd

import (
	"context"
	"errors"
	"sync"

	"github.com/lmcache-go/lmcache-go/cuda"
)

// maxPieces bounds what one launch of the kernel copies: 1 GiB in pieces of
// pieceBytes, for which the table takes 384 KiB.
const (
	maxPieces  = 16 << 10
	pieceBytes = 64 << 10
)

// gpuPuller reads memory of other processes by a kernel of this rank's GPU.
type gpuPuller struct {
	ctx    *cuda.Context
	blocks int

	mu     sync.Mutex // held while a pull uses what follows
	stream *cuda.Stream
	puller *cuda.Puller
	broken error
}

// mapGPU maps a producer's GPU memory.
func (p *Peer) mapGPU(list []SharedGPU) (_ *directSource, err error) {
	d := &directSource{kind: directGPU}
	var maps []*cuda.Mapping
	d.unmap = func() {
		for _, m := range maps {
			_ = m.Release()
		}
	}
	defer func() {
		if err != nil {
			d.unmap()
		}
	}()
	for _, s := range list {
		m, err := p.opts.CUDA.OpenMemory(s.Handle)
		if err != nil {
			return nil, err
		}
		maps = append(maps, m)
		if s.Bytes < 1 || m.SizeBytes < s.Bytes {
			return nil, cuda.ErrShort
		}
		d.pieces = append(d.pieces, reach{far: uint64(s.Addr), bytes: uint64(s.Bytes), here: uintptr(m.Address)})
	}
	return d, nil
}

// pull copies spans and waits for their end. One pull runs at a time: the kernel
// takes as many multiprocessors as it was given, and one fills the link.
func (g *gpuPuller) pull(ctx context.Context, spans []span) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.ready(); err != nil {
		return err
	}
	var dst, src, size []uint64
	pieces := 0
	flush := func() error {
		if len(dst) == 0 {
			return nil
		}
		err := g.puller.Pull(g.stream, dst, src, size, cuda.PullOptions{Blocks: g.blocks})
		dst, src, size, pieces = dst[:0], src[:0], size[:0], 0
		return err
	}
	var err error
	for _, s := range spans {
		for at := uintptr(0); at < s.bytes && err == nil; at += pieceBytes {
			if pieces == maxPieces {
				if err = flush(); err == nil {
					err = ctx.Err()
				}
			}
			dst = append(dst, uint64(s.local+at))
			src = append(src, uint64(s.remote+at))
			size = append(size, uint64(min(pieceBytes, s.bytes-at)))
			pieces++
		}
	}
	if err == nil {
		err = flush()
	}
	// Also after a failure: what was queued still writes.
	if werr := g.stream.Wait(); werr != nil {
		g.broken = werr
		err = errors.Join(err, werr)
	}
	return err
}

// ready makes stream and kernel for the first pull.
func (g *gpuPuller) ready() (err error) {
	if g.broken != nil || g.puller != nil {
		return g.broken
	}
	if g.stream == nil {
		if g.stream, err = g.ctx.NewStream(); err != nil {
			return err
		}
	}
	g.puller, err = g.ctx.NewPuller(maxPieces)
	return err
}

// close gives everything back; no pull runs any more.
func (g *gpuPuller) close() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken == nil && g.puller != nil {
		g.puller.Close()
	}
	if g.broken == nil && g.stream != nil {
		_ = g.stream.Destroy()
	}
	g.puller, g.stream, g.broken = nil, nil, ErrClosed
}
