package pd

import (
	"context"
	"time"
)

// SharedMemory names a part of Options.Memory that other processes of this host
// can map: readers of this package then copy from it themselves.
type SharedMemory struct {
	// Path of the file in /dev/shm, or of any file that is mapped shared.
	Path string
	// Addr is where byte 0 of the file is mapped here, Bytes how much of it.
	Addr  uintptr
	Bytes int64
}

// directOffer is what this rank tells readers on its host; nil for nothing.
func (o *Options) directOffer() []byte { return nil }

// directSource is a producer's memory as this process reaches it.
type directSource struct{}

func (p *Peer) openDirect(_ []byte, _ *AgentMetadata) *directSource { return nil }

func (d *directSource) close() {}

// directCopy is one copy around NIXL.
type directCopy struct {
	spans []span
	bytes int64
	took  time.Duration
}

// prepare says whether all spans can be reached.
func (d *directSource) prepare(_ []span) (directCopy, bool) { return directCopy{}, false }

// runDirect copies what can be copied.
func (x *pull) runDirect(_ context.Context) error { return nil }
