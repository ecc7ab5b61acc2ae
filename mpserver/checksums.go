package mpserver

import (
	"context"
	"crypto/md5" //nolint:gosec // what the reference computes: it finds wrong bytes, and keeps nobody out
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
)

const (
	// checksumScratch is what is copied out of an engine at a time.
	checksumScratch = 8 << 20
	// checksumLimit bounds one request. The engine is not held up by it.
	checksumLimit = 30 * time.Second
	// maxDigests bounds the answer.
	maxDigests = 1 << 20
)

// hashable are the formats of which POST /cache/checksums makes checksums
// (lmcache 0.5.6, v1/multiprocess/http_apis/cache_api.py).
var hashable = map[kvlayout.Format]bool{
	kvlayout.FormatPlaneFirst: true, kvlayout.FormatBlockPlanes: true, kvlayout.FormatLatent: true,
	kvlayout.FormatIndexer: true, kvlayout.FormatPlaneFirstHND: true, kvlayout.FormatBlockPlanesHND: true,
}

// Checksums hashes blocks in the memory of a worker that the server copies for,
// never what is stored of them. It is [httpapi.Checksummer].
func (s *Server) Checksums(ctx context.Context, q *httpapi.ChecksumRequest) ([][]string, error) {
	if s.opt.TransferMode == TransferEngineDriven {
		return nil, httpapi.Failf(http.StatusNotImplemented, "checksum not supported for this engine type")
	}
	in := s.instances.copied(q.InstanceID)
	switch {
	case in == nil:
		return nil, httpapi.Failf(http.StatusNotFound, "instance_id %d not registered", q.InstanceID)
	case len(q.BlockIDs) == 0:
		return nil, httpapi.Failf(http.StatusBadRequest, "block_ids is required")
	case q.ChunkBlocks <= 0:
		return nil, httpapi.Failf(http.StatusBadRequest, "chunk_size must be positive")
	}
	kv := in.layout.kv
	if err := checkHashable(kv, q.BlockIDs); err != nil {
		return nil, err
	}
	if n := q.Chunks(); n > maxDigests || q.Layerwise && n > maxDigests/kv.NumLayers {
		return nil, httpapi.Failf(http.StatusBadRequest, "more than %d checksums were asked for: send fewer block_ids at a time", maxDigests)
	}
	ctx, cancel := context.WithTimeout(ctx, checksumLimit)
	defer cancel()
	hashing := in.driven.hashing // one at a time
	select {
	case hashing <- struct{}{}:
		defer func() { <-hashing }()
	case <-ctx.Done():
		return nil, errChecksumsLate
	}
	g := &gatherer{ctx: ctx, d: in.driven, plan: new(copyplan.Plan)}
	release, err := s.checksumBuffer(g)
	if err != nil {
		return nil, err
	}
	if g.stream, err = in.driven.dev.NewStream(fmt.Sprintf("checksums %d", q.InstanceID)); err != nil {
		release()
		return nil, checksumError(q.InstanceID, err)
	}
	defer s.retiring.run(func() {
		if s.closeStream(g.d, g.stream) {
			release()
		}
	})
	rows, err := g.rows(kv, q)
	if err != nil {
		return nil, checksumError(q.InstanceID, err)
	}
	return rows, nil
}

// checksumBuffer gives g memory to copy to. A GPU only reaches the pool.
func (s *Server) checksumBuffer(g *gatherer) (release func(), err error) {
	if g.d.gpu == nil {
		g.pool = make([]byte, checksumScratch)
		g.end = checksumScratch
		return func() {}, nil
	}
	size := min(checksumScratch, s.arena.SizeBytes()/4)
	res, err := s.cache.Reserve(g.ctx, l1cache.ReserveRequest{
		Scope:  l1cache.Scope{Layout: scratchScope, Salt: strconv.FormatUint(scratchSeq.Add(1), 10)},
		Hashes: make([]l1cache.Hash, 1), SizeBytes: size,
	})
	if err != nil {
		return nil, httpapi.Failf(http.StatusServiceUnavailable, "no room in L1 to copy blocks to: %v", err)
	}
	g.pool, g.start = s.arena.Bytes(), res.Slots()[0].Offset
	g.end = g.start + size
	g.used = g.start
	return res.Release, nil
}

var errChecksumsLate = httpapi.Failf(http.StatusServiceUnavailable, "not done within %v: send fewer block_ids at a time", checksumLimit)

// checksumError is what a client hears of a failed gathering.
func checksumError(id int64, err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return errChecksumsLate
	case errors.Is(err, device.ErrClosed), errors.Is(err, device.ErrMemory), errors.Is(err, device.ErrLost):
		return httpapi.Failf(http.StatusNotFound, "instance_id %d not registered: it has ended meanwhile", id)
	}
	return err
}

// checkHashable checks formats, in the order of layers, and block ids.
func checkHashable(kv *kvlayout.Layout, ids []int64) error {
	formats := make([]*kvlayout.KernelGroup, kv.NumLayers)
	for i := range kv.Kernel {
		for _, l := range kv.Kernel[i].Layers {
			formats[l] = &kv.Kernel[i]
		}
	}
	for l, g := range formats {
		switch {
		case g == nil:
			return httpapi.Failf(http.StatusNotImplemented, "checksum not supported: layer %d is in no KV group", l)
		case !hashable[g.Format]:
			return httpapi.Failf(http.StatusNotImplemented, "checksum not supported for GPU KV format %s", g.Format)
		}
	}
	for l, g := range formats {
		for _, id := range ids {
			if id < 0 || id >= g.NumBlocks {
				return httpapi.Failf(http.StatusBadRequest, "block id %d is out of range: layer %d has %d blocks", id, l, g.NumBlocks)
			}
		}
	}
	return nil
}

// gatherer copies pieces of engine memory into a buffer and hashes them there,
// in order.
type gatherer struct {
	ctx    context.Context
	d      *serverDriven
	stream device.Stream
	pool   []byte
	plan   *copyplan.Plan
	// start and end are the part of pool that is ours, used what the plan has
	// taken so far.
	start, end, used int64
	todo             []span // of pool, in order
	wide             []byte
}

// span is a part of the buffer and what it is hashed into.
type span struct {
	bytes int64
	into  hash.Hash
	bf16  bool
}

// rows hashes all chunks.
func (g *gatherer) rows(kv *kvlayout.Layout, q *httpapi.ChecksumRequest) ([][]string, error) {
	rows := make([][]string, 1)
	if q.Layerwise {
		rows = make([][]string, kv.NumLayers)
	}
	sums := make([]hash.Hash, len(rows))
	for from := 0; from < len(q.BlockIDs); {
		to := len(q.BlockIDs)
		if q.ChunkBlocks < int64(to-from) {
			to = from + int(q.ChunkBlocks)
		}
		for i := range sums {
			sums[i] = md5.New() //nolint:gosec // see the import
		}
		for l := range kv.NumLayers {
			dtype, pieces, err := kv.GatherOrder(l, q.BlockIDs[from:to])
			if err != nil {
				return nil, err
			}
			sum := sums[0]
			if q.Layerwise {
				sum = sums[l]
			}
			if err := g.add(pieces, sum, dtype == "bfloat16"); err != nil {
				return nil, err
			}
		}
		if err := g.flush(); err != nil {
			return nil, err
		}
		for i := range sums {
			rows[i] = append(rows[i], hex.EncodeToString(sums[i].Sum(nil)))
		}
		from = to
	}
	return rows, nil
}

// add plans the pieces, and hashes what is planned whenever the buffer is full.
func (g *gatherer) add(pieces iter.Seq[kvlayout.Piece], into hash.Hash, bf16 bool) error {
	for p := range pieces {
		for p.Bytes > 0 {
			if g.end-g.used < 2 {
				if err := g.flush(); err != nil {
					return err
				}
			}
			n := min(p.Bytes, (g.end-g.used)&^1) // no bfloat16 in halves
			g.plan.AddRun(copyplan.Run{Storage: p.Storage, Engine: p.Offset, Object: g.used, Bytes: n})
			if last := len(g.todo) - 1; last >= 0 && g.todo[last].into == into {
				g.todo[last].bytes += n
			} else {
				g.todo = append(g.todo, span{n, into, bf16})
			}
			g.used += n
			p.Offset += n
			p.Bytes -= n
		}
	}
	return nil
}

// flush copies what is planned, waits for it and hashes it.
func (g *gatherer) flush() error {
	if g.used == g.start {
		return nil
	}
	done := make(chan error, 1)
	job := &device.Job{Direction: copyplan.Store, Plan: g.plan, Engine: g.d.memory, Pool: g.pool, Done: func(err error) { done <- err }}
	if _, err := g.stream.Submit(job); err != nil {
		return err
	}
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-g.ctx.Done():
		g.stream.Cancel(job) // the job keeps buffer and plan
		return g.ctx.Err()
	}
	at := g.start
	for _, sp := range g.todo {
		b := g.pool[at : at+sp.bytes]
		if sp.bf16 {
			g.widen(sp.into, b)
		} else {
			_, _ = sp.into.Write(b) // a hash never fails
		}
		at += sp.bytes
	}
	g.plan.Reset()
	g.used, g.todo = g.start, g.todo[:0]
	return nil
}

// widen hashes bfloat16 values as the float32 that they are.
func (g *gatherer) widen(into hash.Hash, b []byte) {
	const values = 32 << 10
	if g.wide == nil {
		g.wide = make([]byte, 4*values)
	}
	for len(b) > 0 {
		n := min(len(b)/2, values)
		for i := range n {
			g.wide[4*i+2], g.wide[4*i+3] = b[2*i], b[2*i+1]
		}
		_, _ = into.Write(g.wide[:4*n])
		b = b[2*n:]
	}
}
