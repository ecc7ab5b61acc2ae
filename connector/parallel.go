package connector

import "fmt"

// Parallel says how an engine is spread over ranks and servers; it decides what
// the keys of its requests say (wire-protocol 14.2).
type Parallel struct {
	// WorldSize is tensor times pipeline parallel size. 0 means 1.
	WorldSize int
	// TPSize is the tensor parallel size. 0 means WorldSize.
	TPSize int
	// DCPSize is the decode context parallel size. 0 means 1.
	DCPSize int
	// Interleave is cp_kv_cache_interleave_size. 0 means 1.
	Interleave int
	// MLA says that every rank of a stage holds the same KV: one writes.
	MLA bool
	// Servers is the number of servers, each with an equal run of ranks. 0
	// means 1.
	Servers int
}

func (p Parallel) withDefaults() Parallel {
	if p.WorldSize == 0 {
		p.WorldSize = 1
	}
	if p.TPSize == 0 {
		p.TPSize = p.WorldSize
	}
	p.DCPSize = max(1, p.DCPSize)
	p.Interleave = max(1, p.Interleave)
	p.Servers = max(1, p.Servers)
	return p
}

// Check says what of p cannot work. It is an [ErrConfig].
func (p Parallel) Check() error {
	p = p.withDefaults()
	switch {
	case p.WorldSize < 0 || p.TPSize < 0 || p.WorldSize%p.TPSize != 0:
		return fmt.Errorf("%w: world size %d is no multiple of the tensor parallel size %d", ErrConfig, p.WorldSize, p.TPSize)
	case p.WorldSize%p.Servers != 0:
		return fmt.Errorf("%w: world size %d is no multiple of the %d servers of lmcache.mp.server_urls", ErrConfig, p.WorldSize, p.Servers)
	case p.Servers > 1 && p.WorldSize != p.TPSize:
		return fmt.Errorf("%w: several servers and pipeline parallelism exclude each other", ErrConfig)
	case p.WorldSize/p.Servers < p.DCPSize:
		return fmt.Errorf("%w: %d ranks a server cannot hold %d context shards: use fewer servers", ErrConfig, p.WorldSize/p.Servers, p.DCPSize)
	}
	return nil
}

// KVWorldSize is the number of shards that a chunk has on a server.
func (p Parallel) KVWorldSize() int {
	p = p.withDefaults()
	if p.MLA {
		return p.WorldSize / p.TPSize * p.DCPSize
	}
	return p.WorldSize / p.Servers
}

// KVWorkerID is the shard of a rank.
func (p Parallel) KVWorkerID(rank int) int {
	p = p.withDefaults()
	if p.MLA {
		return rank/p.TPSize*p.DCPSize + rank%p.TPSize%p.DCPSize
	}
	return rank % (p.WorldSize / p.Servers)
}

// Readers is the number of ranks that load each object.
func (p Parallel) Readers() int {
	p = p.withDefaults()
	if !p.MLA {
		return 1
	}
	return (p.TPSize/p.Servers + p.DCPSize - 1) / p.DCPSize
}

// Writes says whether a rank stores: of ranks with the same KV, one does.
func (p Parallel) Writes(rank int) bool {
	p = p.withDefaults()
	if !p.MLA {
		return true
	}
	if p.DCPSize > 1 {
		return rank%min(p.WorldSize/p.Servers, p.TPSize) < p.DCPSize
	}
	return rank%(p.TPSize/p.Servers) == 0
}

// Server is the index of the server that a rank talks to.
func (p Parallel) Server(rank int) int {
	p = p.withDefaults()
	return rank / (p.WorldSize / p.Servers)
}

// tpArgument is the second argument of LOOKUP and FREE_LOOKUP_LOCKS.
func (p Parallel) tpArgument() int {
	p = p.withDefaults()
	return p.TPSize / p.Servers
}

// KeyModel is the model name in keys: with context parallelism and interleaving
// the bytes of a shard are others, and so is the name.
func (p Parallel) KeyModel(model string) string {
	p = p.withDefaults()
	if p.DCPSize > 1 && p.Interleave != 1 {
		return fmt.Sprintf("%s##lmcache-dcp-layout-v1-d%d-interleave%d", model, p.DCPSize, p.Interleave)
	}
	return model
}
