package main

import (
	"fmt"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// The request cycles. Each function is the continuation of one reply; the last
// one ends the flight.

func (c *client) startOne() error {
	f := c.take()
	switch c.cfg.Ops {
	case "ping":
		return f.post(wire.OpPing, (*flight).simple, c.instance)
	case "noop":
		return f.post(wire.OpNoop, (*flight).simple)
	case "chunk_size":
		return f.post(wire.OpGetChunkSize, (*flight).simple)
	case "store":
		f.token = promptToken(c.index, c.seq, c.cfg.Salt)
		return f.store()
	case "mixed":
		if len(c.set) > 0 && c.rng.Float64() < c.cfg.WarmRatio {
			f.token = c.set[c.rng.IntN(len(c.set))]
		} else {
			f.token = promptToken(c.index, c.seq, c.cfg.Salt)
		}
	case "lookup":
		switch {
		case c.cfg.Hit:
			f.token = c.set[c.seq%uint64(len(c.set))]
		case c.cfg.Prompts > 0:
			f.token = promptToken(c.index, c.seq%uint64(c.cfg.Prompts), c.cfg.Salt)
		default:
			f.token = promptToken(c.index, c.seq, c.cfg.Salt)
		}
	default: // retrieve
		f.token = c.set[c.seq%uint64(len(c.set))]
	}
	return f.lookup()
}

func (f *flight) simple([]byte, bool) error {
	f.c.st.add(f.c.cfg.Ops, time.Since(f.start), 0)
	f.done()
	return nil
}

func (f *flight) lookup() error {
	key := f.c.lookKey.make(&f.rid, f.token)
	f.start = time.Now()
	return f.post(wire.OpLookup, (*flight).looked, key, f.c.one)
}

func (f *flight) looked(_ []byte, present bool) error {
	if present {
		return fmt.Errorf("lookup answered with a value")
	}
	return f.query()
}

func (f *flight) query() error {
	return f.post(wire.OpQueryPrefetchStatus, (*flight).status, f.ridMsg)
}

func (f *flight) status(v []byte, present bool) error {
	c := f.c
	if !present { // still loading
		c.st.inc("query_retries", 1)
		return f.query()
	}
	hits, err := wire.DecodeInt(v)
	if err != nil {
		return fmt.Errorf("query_prefetch_status: %w", err)
	}
	c.st.add("lookup", time.Since(f.start), 0)
	f.hits = int(hits)
	c.st.inc("hit_chunks", f.hits)
	if c.cfg.Hit || c.cfg.Ops == "retrieve" {
		c.st.inc("want_chunks", c.chunks)
	}
	switch {
	case c.cfg.moves() && f.hits == c.chunks:
		return f.retrieve()
	case f.hits > 0: // a partial hit is not used
		return f.post(wire.OpFreeLookupLocks, (*flight).freed, c.lookKey.make(&f.rid, f.token), c.one)
	}
	return f.freed(nil, false)
}

// freed: nothing is held any more.
func (f *flight) freed([]byte, bool) error {
	if f.c.cfg.Ops == "mixed" {
		return f.store()
	}
	return f.end()
}

func (f *flight) end() error {
	return f.post(wire.OpEndSession, (*flight).ended, f.ridMsg)
}

func (f *flight) ended([]byte, bool) error {
	f.c.st.add("cycle", time.Since(f.start), 0)
	f.done()
	return nil
}

func (f *flight) store() error {
	c := f.c
	if c.cfg.Audit > 0 {
		c.recent = append(c.recent, f.token)
	}
	key := c.xferKey.make(&f.rid, f.token)
	f.since = time.Now()
	return f.post(wire.OpPrepareStore, (*flight).prepared, key, c.instance)
}

func (f *flight) prepared(v []byte, present bool) error {
	c := f.c
	if !present {
		return fmt.Errorf("prepare_store answered without a value")
	}
	reply, err := wire.DecodePrepareStore(v)
	if err != nil {
		return fmt.Errorf("prepare_store: %w", err)
	}
	data := emptyBin
	f.bytes = c.moved(c.chunks)
	if c.cfg.Mode == "pickle" {
		data = c.data.pickle(f.token)
	} else {
		c.st.inc("chunks_refused", c.chunks-len(reply.Slots))
		if len(reply.Slots) == 0 {
			c.st.add("store_refused", time.Since(f.since), 0)
			return f.end()
		}
		f.bytes = c.moved(len(reply.Slots))
		if !c.cfg.NoCopy || c.prefilling() {
			if err := c.data.write(reply, f.token); err != nil {
				return err
			}
		}
	}
	return f.post(wire.OpCommitStore, (*flight).stored, c.xferKey.make(&f.rid, f.token), c.instance, data)
}

func (f *flight) stored(v []byte, present bool) error {
	c := f.c
	ok, err := wire.DecodeBool(v)
	if err != nil || !present {
		return fmt.Errorf("commit_store: %w", err)
	}
	if !ok {
		c.st.inc("store_failed", 1)
		return f.end()
	}
	c.st.add("store", time.Since(f.since), f.bytes)
	if c.cfg.Ops == "mixed" || c.prefilling() {
		c.keep(f.token)
	}
	return f.end()
}

// keep remembers a stored prompt, the last --prefill of them.
func (c *client) keep(token uint32) {
	c.set = append(c.set, token)
	if n := max(1, c.cfg.Prefill); len(c.set) > n {
		c.set = c.set[:copy(c.set, c.set[1:])]
	}
}

func (f *flight) retrieve() error {
	key := f.c.xferKey.make(&f.rid, f.token)
	f.since = time.Now()
	return f.post(wire.OpPrepareRetrieve, (*flight).got, key, f.c.instance)
}

func (f *flight) got(v []byte, present bool) error {
	c := f.c
	if !present {
		return fmt.Errorf("prepare_retrieve answered without a value")
	}
	reply, err := wire.DecodePrepareRetrieve(v)
	if err != nil {
		return fmt.Errorf("prepare_retrieve: %w", err)
	}
	if !reply.Success {
		c.st.inc("retrieve_failed", 1)
		return f.end()
	}
	if !c.cfg.NoCopy {
		verifying, err := c.data.read(reply, f.token)
		if err != nil {
			return err
		}
		f.since, f.start = f.since.Add(verifying), f.start.Add(verifying)
	}
	return f.post(wire.OpCommitRetrieve, (*flight).retrieved, c.xferKey.make(&f.rid, f.token), c.instance)
}

func (f *flight) retrieved(v []byte, present bool) error {
	c := f.c
	ok, err := wire.DecodeBool(v)
	if err != nil || !present {
		return fmt.Errorf("commit_retrieve: %w", err)
	}
	if !ok {
		c.st.inc("retrieve_failed", 1)
	} else {
		f.bytes = c.moved(c.chunks)
		c.st.add("retrieve", time.Since(f.since), f.bytes)
	}
	return f.end()
}

// moved is what a transfer of so many chunks moves: nothing with --no-copy.
func (c *client) moved(chunks int) int64 {
	if c.cfg.NoCopy && c.cfg.Mode == "shm" {
		return 0
	}
	return int64(chunks) * int64(c.data.chunkBytes)
}

// prefilling tells whether prompts are being stored before the run.
func (c *client) prefilling() bool { return c.cfg.prefilled() && len(c.set) < c.cfg.Prefill }

// prefill stores the prompts of lookups that hit and of retrieves.
func (c *client) prefill() error {
	if !c.cfg.prefilled() {
		return nil
	}
	for tries := 0; c.prefilling(); tries++ {
		if tries > 2*c.cfg.Prefill {
			return fmt.Errorf("%d of %d prompts could be stored: is the pool too small?", len(c.set), c.cfg.Prefill)
		}
		f := c.take()
		f.token = promptToken(c.index, c.seq, c.cfg.Salt+500)
		if err := f.store(); err != nil {
			return err
		}
		if err := c.drain(); err != nil {
			return err
		}
	}
	return nil
}

// audit looks the last stored prompts up again: what did the server keep?
func (c *client) audit() error {
	for _, token := range c.recent[max(0, len(c.recent)-c.cfg.Audit):] {
		f := c.take()
		f.token = token
		rid, key := f.ridMsg, c.lookKey.make(&f.rid, token)
		f.done()
		if _, _, err := c.call(wire.OpLookup, key, c.one); err != nil {
			return err
		}
		var v []byte
		for ok := false; !ok; {
			var err error
			if v, ok, err = c.call(wire.OpQueryPrefetchStatus, rid); err != nil {
				return err
			}
		}
		hits, err := wire.DecodeInt(v)
		if err != nil {
			return err
		}
		if hits > 0 {
			if _, _, err := c.call(wire.OpFreeLookupLocks, key, c.one); err != nil {
				return err
			}
		}
		if _, _, err := c.call(wire.OpEndSession, rid); err != nil {
			return err
		}
		c.st.inc("audit_hit_chunks", int(hits))
		c.st.inc("audit_want_chunks", c.chunks)
	}
	return nil
}
