package connector

import (
	"slices"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// BuildMeta turns a step of the engine into transfers for its workers
// (build_connector_meta of vLLM): loads of requests that got their blocks,
// stores of the chunks that the step completes. It also tells the servers which
// blocks were given out. Every worker gets the same meta.
func (s *Scheduler) BuildMeta(step *Step) Meta {
	var m Meta
	m.Flush = step.Preempted
	if s.waiting() {
		for _, t := range s.byID() {
			if t.state == waitingForLoad {
				m.Loads = append(m.Loads, t.load(s))
				t.state = stateReady
			}
		}
	}
	for i := range step.Scheduled {
		if step.Scheduled[i].Kind == New {
			s.advance(&step.Scheduled[i], &m)
		}
	}
	for i := range step.Scheduled {
		sc := &step.Scheduled[i]
		if sc.Kind == New {
			continue
		}
		m.Flush = m.Flush || sc.Kind == Resumed
		if t := s.trackers[sc.Request.ID]; t != nil && sc.Kind == Running {
			t.addBlocks(sc.NewBlocks)
		}
		s.advance(sc, &m)
	}
	s.report(step)
	return m
}

// waiting says whether any request waits for its load to be sent.
func (s *Scheduler) waiting() bool {
	for _, t := range s.trackers {
		if t.state == waitingForLoad {
			return true
		}
	}
	return false
}

// byID lists trackers in a stable order.
func (s *Scheduler) byID() []*tracker {
	out := make([]*tracker, 0, len(s.trackers))
	for _, t := range s.trackers {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b *tracker) int {
		if a.req.ID < b.req.ID {
			return -1
		}
		return 1
	})
	return out
}

// advance counts the tokens of a step and adds the store that they complete.
func (s *Scheduler) advance(sc *Scheduled, m *Meta) {
	t := s.trackers[sc.Request.ID]
	if t == nil {
		return
	}
	t.req = sc.Request
	t.scheduled += sc.Tokens
	if !s.cfg.Role.Stores() {
		return
	}
	if tr, ok := t.store(s); ok {
		m.Stores = append(m.Stores, tr)
	}
}

// report sends REPORT_BLOCK_ALLOCATION: all blocks of new requests, new blocks
// of running ones, with the tokens that lie in them. The statistics that it
// serves are flat: group 0 stands for all.
func (s *Scheduler) report(step *Step) {
	var records []wire.BlockAllocationRecord
	for _, kind := range []bool{true, false} { // new ones first
		for i := range step.Scheduled {
			sc := &step.Scheduled[i]
			t := s.trackers[sc.Request.ID]
			if t == nil || len(t.blocks) == 0 || (sc.Kind == New) != kind {
				continue
			}
			blocks := t.blocks[0]
			if sc.Kind == Running {
				if len(sc.NewBlocks) == 0 || len(sc.NewBlocks[0]) == 0 {
					continue
				}
				blocks = blocks[len(blocks)-len(sc.NewBlocks[0]):]
			}
			size := s.blockTokens[0]
			to := min(len(t.blocks[0])*size, len(t.req.Tokens))
			from := min((len(t.blocks[0])-len(blocks))*size, to)
			ids := make([]int64, 0, to-from)
			for _, id := range t.req.Tokens[from:to] {
				ids = append(ids, int64(id))
			}
			records = append(records, wire.BlockAllocationRecord{RequestID: sc.Request.ID, BlockIDs: blocks, TokenIDs: ids})
		}
	}
	if len(records) == 0 || !s.Healthy() {
		return
	}
	for _, sv := range s.servers {
		sv.client.ReportBlockAllocation(s.instance, s.model, records)
	}
}
