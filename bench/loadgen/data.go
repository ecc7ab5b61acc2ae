package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/torchpickle"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// emptyBin is the data of a commit whose bytes are in shared memory.
var emptyBin = wire.AppendBytes(nil, nil)

// dataPlane holds the bytes that a client stores and compares. A chunk is a
// fixed random pattern whose first 8 bytes, the stamp, name the prompt and the
// chunk.
type dataPlane struct {
	c          *client
	chunkBytes int
	pool       []byte // the server's segment, nil in pickle mode
	src        [][]byte
	dst        []byte

	pickled []byte // the commit's data frame, stamps to be patched
	stampAt []int
	reads   int
}

const stampBytes = 8

func newDataPlane(c *client, name string, size int64) (*dataPlane, error) {
	l := layouts[c.cfg.Layout]
	d := &dataPlane{c: c, chunkBytes: l.chunkBytes(c.chunkTokens)}
	rng := rand.NewChaCha8([32]byte{byte(c.index), byte(c.index >> 8), 7})
	distinct := c.chunks
	if !c.cfg.moves() {
		distinct = 1 // a lookup that hits may have hundreds of chunks; nobody compares them
	}
	for i := range c.chunks {
		if i >= distinct {
			d.src = append(d.src, d.src[0])
			continue
		}
		b := make([]byte, d.chunkBytes)
		if _, err := rng.Read(b); err != nil {
			return nil, err
		}
		d.src = append(d.src, b)
	}
	d.dst = make([]byte, d.chunkBytes)
	if c.cfg.Mode == "pickle" {
		return d, d.encode(l.shape(c.chunkTokens))
	}
	f, err := os.OpenFile("/dev/shm/"+strings.TrimPrefix(name, "/"), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the server's pool (the load generator must run on its machine and as its user): %w", err)
	}
	defer f.Close()
	d.pool, err = syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return d, err
}

// encode makes the pickle once and finds where its stamps are.
func (d *dataPlane) encode(shape []int64) error {
	t, _ := torchdtype.Lookup(dtype)
	e, err := torchpickle.NewEncoder(t, shape)
	if err != nil {
		return err
	}
	n := e.Size(len(d.src))
	d.pickled = wire.AppendBytesHead(make([]byte, 0, n+5), n)
	d.pickled = e.Append(d.pickled, d.src)
	at := 0
	for i, s := range d.src {
		k := bytes.Index(d.pickled[at:], s[:min(64, len(s))])
		if k < 0 {
			return fmt.Errorf("chunk %d is not in its own pickle", i)
		}
		d.stampAt = append(d.stampAt, at+k)
		at += k + len(s)
	}
	return nil
}

func (d *dataPlane) close() error {
	if d == nil || d.pool == nil {
		return nil
	}
	return syscall.Munmap(d.pool)
}

func stamp(dst []byte, token uint32, chunk int) {
	binary.LittleEndian.PutUint64(dst, uint64(token)<<24|uint64(chunk))
}

// slot is the memory of a slot, if it lies in the pool and has the size of a chunk.
func (d *dataPlane) slot(s *wire.Slot) ([]byte, error) {
	if s.Length != int64(d.chunkBytes) || s.Offset < 0 || s.Offset > int64(len(d.pool))-s.Length || s.DType != dtype {
		return nil, fmt.Errorf("the server gave a slot of %d bytes of %s at %d; a chunk has %d of %s, the pool %d",
			s.Length, s.DType, s.Offset, d.chunkBytes, dtype, len(d.pool))
	}
	return d.pool[s.Offset:][:s.Length:s.Length], nil
}

// write fills the slots that a prepare_store granted.
func (d *dataPlane) write(r *wire.PrepareStoreReply, token uint32) error {
	for i := range r.Slots {
		mem, err := d.slot(&r.Slots[i])
		if err != nil {
			return err
		}
		chunk := r.ChunkIndices[i]
		if chunk >= len(d.src) {
			return fmt.Errorf("the server gave a slot for chunk %d of %d", chunk, len(d.src))
		}
		copy(mem, d.src[chunk])
		stamp(mem, token, chunk)
	}
	return nil
}

// pickle is the data frame of a commit, valid until the next call.
func (d *dataPlane) pickle(token uint32) []byte {
	for i, at := range d.stampAt {
		stamp(d.pickled[at:], token, i)
	}
	return d.pickled
}

// read copies what a prepare_retrieve offers out of the pool, as a worker does,
// and compares some of it. In pickle mode the bytes have arrived already. It
// returns the time that comparing took.
func (d *dataPlane) read(r *wire.PrepareRetrieveReply, token uint32) (comparing time.Duration, err error) {
	d.reads++
	compare := d.c.cfg.VerifyEvery > 0 && d.reads%d.c.cfg.VerifyEvery == 0
	if compare {
		defer func() {
			d.c.st.inc("verified", 1)
			if errors.Is(err, errDiffers) {
				d.c.st.inc("verify_failed", 1)
				err = nil
			}
		}()
	}
	if d.c.cfg.Mode == "pickle" {
		if !compare {
			return 0, nil
		}
		begin := time.Now()
		err := d.comparePickle(r.Data, token)
		return time.Since(begin), err
	}
	if len(r.Slots) != d.c.chunks {
		return 0, fmt.Errorf("prepare_retrieve of %d chunks gave %d slots", d.c.chunks, len(r.Slots))
	}
	for i := range r.Slots {
		mem, err := d.slot(&r.Slots[i])
		if err != nil {
			return 0, err
		}
		copy(d.dst, mem)
		if compare {
			begin := time.Now()
			err := d.compare(d.dst, token, i)
			comparing += time.Since(begin)
			if err != nil {
				return comparing, err
			}
		}
	}
	return comparing, nil
}

// errDiffers: a retrieve gave other bytes than were stored.
var errDiffers = errors.New("retrieved bytes differ from the stored ones")

func (d *dataPlane) compare(got []byte, token uint32, chunk int) error {
	var want [stampBytes]byte
	stamp(want[:], token, chunk)
	if len(got) != d.chunkBytes || !bytes.Equal(got[:stampBytes], want[:]) || !bytes.Equal(got[stampBytes:], d.src[chunk][stampBytes:]) {
		return errDiffers
	}
	return nil
}

func (d *dataPlane) comparePickle(data []byte, token uint32) error {
	tensors, err := torchpickle.Parse(data)
	if err != nil {
		return fmt.Errorf("prepare_retrieve: %w", err)
	}
	if len(tensors) != d.c.chunks {
		return fmt.Errorf("prepare_retrieve of %d chunks gave %d tensors", d.c.chunks, len(tensors))
	}
	for i := range tensors {
		if tensors[i].NumBytes() != int64(d.chunkBytes) {
			return errDiffers
		}
		if err := tensors[i].CopyTo(d.dst); err != nil {
			return err
		}
		if err := d.compare(d.dst, token, i); err != nil {
			return err
		}
	}
	return nil
}
