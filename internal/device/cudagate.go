package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lmcache-go/lmcache-go/cuda"
)

// A stream of the GPU must never wait for another process: the driver frees,
// unmaps and unpins nothing in the whole context while one does, and if the
// process has died, that is for ever; and some thousand copies queued behind
// such a wait stop every other stream (both seen on an H200, driver 580). So
// the engine's event is looked at from here, which costs 0.02 µs, and copies are
// queued, and the client is answered, when it has fired.

// gate is what a job waits for before its copies are queued.
type gate struct {
	event          *cuda.Event   // of a CUDA event
	line           *cuda.Mapping // of a timeline; the stream's
	address, value uint64
}

// gate opens what an engine names.
func (s *cudaStream) gate(after cuda.Signal) (g gate, err error) {
	switch after.Kind {
	case cuda.SignalEvent:
		g.event, err = s.dev.ctx.OpenEvent(after.Event)
	case cuda.SignalTimeline:
		if after.Sequence == 0 { // reached from the beginning
			break
		}
		if g.line, err = s.line(after.Buffer); err != nil {
			break
		}
		if int64(after.Offset)+8 > g.line.SizeBytes {
			return gate{}, fmt.Errorf("%w: timeline event at byte %d of %d", cuda.ErrHandle, after.Offset, g.line.SizeBytes)
		}
		g.address, g.value = g.line.Address+after.Offset, after.Sequence
	case cuda.SignalNone:
	}
	return g, err
}

// line is the mapping of an engine's timeline buffer, which all its requests
// name. turn is held.
func (s *cudaStream) line(h cuda.MemHandle) (*cuda.Mapping, error) {
	if m := s.lines[h]; m != nil {
		return m, nil
	}
	m, err := s.dev.ctx.OpenMemory(h)
	if err != nil {
		return nil, err
	}
	if s.lines == nil {
		s.lines = map[cuda.MemHandle]*cuda.Mapping{}
	}
	s.lines[h] = m
	return m, nil
}

// passed says whether the engine has come to the event. An error is no answer
// that copies may rely on. turn is held.
func (s *cudaStream) passed(g *gate) (bool, error) {
	switch {
	case g.event != nil:
		return g.event.Done()
	case g.line != nil:
		n, err := s.peek(g.address)
		return n >= g.value, err
	}
	return true, nil
}

// peek reads a number in device memory. turn is held.
func (s *cudaStream) peek(address uint64) (uint64, error) {
	if s.peeks == nil {
		buf, err := s.dev.ctx.AllocHost(8)
		if err != nil {
			return 0, err
		}
		st, err := s.dev.ctx.NewStream()
		if err != nil {
			return 0, errors.Join(err, buf.Free())
		}
		s.peeks, s.peeked = st, buf
	}
	if err := s.peeks.Copy(s.peeked.Address, address, 8); err != nil {
		return 0, err
	}
	if err := s.peeks.Wait(); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(s.peeked.Bytes()), nil
}

// close gives back what was opened for it.
func (g *gate) close() {
	if g.event != nil {
		_ = g.event.Destroy()
	}
	*g = gate{}
}

// open queues the copies of jobs as their engine comes to their events, until
// the stream is closed.
func (s *cudaStream) open() {
	for {
		s.mu.Lock()
		for len(s.gated) == 0 && !s.closed {
			s.gates.Wait()
		}
		if len(s.gated) == 0 {
			s.opened = true
			s.mu.Unlock()
			s.work.Signal()
			return
		}
		j := s.gated[0]
		s.mu.Unlock()
		s.start(j, s.await(j))
	}
}

// await sleeps until a job may begin, or says why it never will.
func (s *cudaStream) await(j *cudaJob) error {
	for begin := time.Now(); ; {
		s.mu.Lock()
		closed, canceled := s.closed, j.canceled
		s.mu.Unlock()
		switch {
		case closed:
			return ErrClosed
		case canceled:
			return ErrCanceled
		}
		s.turn.Lock()
		ok, err := s.passed(&j.gate)
		s.turn.Unlock()
		switch {
		case err != nil:
			return fmt.Errorf("%w: its event cannot be looked at any more: %w", ErrLost, err)
		case ok:
			return nil
		}
		// The longer an engine takes, the less it matters.
		switch waited := time.Since(begin); {
		case waited < time.Millisecond:
			time.Sleep(20 * time.Microsecond)
		case waited < 10*time.Millisecond:
			time.Sleep(50 * time.Microsecond)
		default:
			time.Sleep(200 * time.Microsecond)
		}
	}
}

// start queues the copies of the first gated job and tells its client, or ends
// it for a reason.
func (s *cudaStream) start(j *cudaJob, reason error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	j.gate.close()
	if reason == nil {
		reason = s.enter(j)
	}
	if reason != nil {
		j.err = fmt.Errorf("%w: %w", ErrUnbegun, reason)
	}
	s.mu.Lock()
	s.gated = slices.Delete(s.gated, 0, 1)
	s.mu.Unlock()
	if reason == nil && j.job.Begun != nil {
		j.job.Begun(eventBytes(&j.receipt.Answer))
	}
	s.hand(j) // from here on j may have ended
}

// enter queues what a job copies, with its answer. turn is held.
func (s *cudaStream) enter(j *cudaJob) error {
	r, err := s.request(j)
	if err == nil {
		r.Answer = j.answer
		j.receipt, err = s.s.Submit(&r)
	}
	if err != nil && !j.receipt.Queued {
		s.recycle(r.Done)
		r.Done = nil
	}
	j.event = r.Done
	if err != nil {
		return submitError(cuda.Signal{}, err)
	}
	return nil
}

// end gives back what the stream had for looking at events.
func (s *cudaStream) end() {
	if s.peeks != nil {
		_ = s.peeks.Destroy()
		_ = s.peeked.Free()
	}
	for _, m := range s.lines {
		_ = m.Release()
	}
	s.lines = nil
}

// eventBytes are what the client gets: not nil, also where there is nothing to
// tell.
func eventBytes(answer *cuda.Signal) []byte {
	if answer.Kind == cuda.SignalNone {
		return []byte{}
	}
	return answer.AppendTo(make([]byte, 0, 81))
}
