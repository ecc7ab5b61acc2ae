package mpserver

import (
	"context"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

func handleNoop(*Server, context.Context, *request) reply {
	return value(wire.AppendString(nil, "OK"))
}

func handleGetChunkSize(s *Server, _ context.Context, _ *request) reply {
	return value(wire.AppendInt(nil, int64(s.opt.ChunkSize)))
}

// handleGetExperimental lists what a client may use beside the operations:
// without "kv_event_stream" it never subscribes.
func handleGetExperimental(s *Server, _ context.Context, _ *request) reply {
	return value(wire.AppendStrings(nil, s.events.capabilities()))
}

// handlePing answers True, but False once to a worker that is not registered
// here, so that it registers again after a restart or a reap (wire-protocol 3.1).
func handlePing(s *Server, _ context.Context, r *request) reply {
	id, known, err := wire.DecodeOptInt(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	ok := true
	if known {
		ok = s.instances.ping(id, r.client, time.Now())
		if !ok {
			s.met.InstanceEvent("told_to_register")
		}
	}
	return value(wire.AppendBool(nil, ok))
}

// handleClear drops what nobody holds; with force everything, though memory in
// use is only given back when its user is done.
func handleClear(s *Server, _ context.Context, r *request) reply {
	force, err := wire.DecodeBool(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	s.clear(force, "rpc")
	return empty
}

func (s *Server) clear(force bool, from string) {
	n := s.cache.Clear(force)
	s.log.Info("cleared the cache", "component", "l1", "objects", n, "force", force, "from", from)
}

// handleReportBlockAllocation counts what becomes of the blocks of the engine's
// own cache.
func handleReportBlockAllocation(s *Server, _ context.Context, r *request) reply {
	id, errID := wire.DecodeInt(r.payloads[0])
	model, errModel := wire.DecodeString(r.payloads[1])
	records, errRecords := wire.DecodeBlockAllocationRecords(r.payloads[2])
	if errID != nil || errModel != nil || errRecords != nil {
		return s.failed(r, "payload")
	}
	list := make([]metrics.BlockAllocation, len(records))
	for i := range records {
		list[i] = metrics.BlockAllocation{RequestID: records[i].RequestID, Blocks: records[i].BlockIDs, Tokens: records[i].TokenIDs}
	}
	s.met.BlocksAllocated(id, model, list, time.Now())
	return empty
}
