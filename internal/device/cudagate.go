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
// queued when it has fired. The client's answer is then an event that is
// recorded in a second stream, behind a wait for a number of our own, which the
// first stream writes behind the copies, and which we can always write.

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

// flag is a number in device memory that only grows: how many promised answers
// of one stream may be given.
type flag struct{ address, value uint64 }

// flagsMax is the size of the device's buffer for flags, in bytes.
const flagsMax = 32 << 10

// takeFlag gives a stream its flag.
func (d *CUDA) takeFlag() (*flag, error) {
	d.flagMu.Lock()
	defer d.flagMu.Unlock()
	if n := len(d.flagFree); n > 0 {
		f := d.flagFree[n-1]
		d.flagFree = d.flagFree[:n-1]
		return f, nil
	}
	if d.flags == nil {
		b, err := d.ctx.Alloc(flagsMax)
		if err != nil {
			return nil, err
		}
		st, err := d.ctx.NewStream()
		if err == nil {
			if err = st.Fill(b.Address, 0, flagsMax); err == nil {
				err = st.Wait()
			}
			err = errors.Join(err, st.Destroy())
		}
		if err != nil {
			return nil, errors.Join(err, b.Free())
		}
		d.flags = b
	}
	if d.flagNext >= flagsMax {
		return nil, fmt.Errorf("%w: more than %d streams of one GPU", ErrBusy, flagsMax/8)
	}
	f := &flag{address: d.flags.Address + d.flagNext}
	d.flagNext += 8
	return f, nil
}

// giveFlag takes it back. Its number goes on where it was.
func (d *CUDA) giveFlag(f *flag) {
	d.flagMu.Lock()
	defer d.flagMu.Unlock()
	d.flagFree = append(d.flagFree, f)
}

// promise makes the answer to a job whose copies are not queued yet. turn is held.
func (s *cudaStream) promise(j *cudaJob, kind cuda.SignalKind) (answer cuda.Signal, err error) {
	if s.answers == nil {
		if s.answers, err = s.dev.ctx.NewStream(); err != nil {
			return answer, err
		}
	}
	if s.flag == nil {
		if s.flag, err = s.dev.takeFlag(); err != nil {
			return answer, err
		}
	}
	if err := s.answers.WaitValue(s.flag.address, s.flag.value+1); err != nil {
		return answer, err
	}
	s.flag.value++
	j.ticket = s.flag.value
	receipt, err := s.answers.Submit(&cuda.Request{Answer: kind})
	if err != nil {
		// Nobody has this answer. To let its wait end now would give the answers
		// before it too; it ends with the next one, or with the stream.
		j.ticket = 0
	}
	return receipt.Answer, err
}

// keepPromise lets the answer of j be given when the stream has come to here.
// turn is held.
func (s *cudaStream) keepPromise(j *cudaJob) {
	if j.ticket == 0 {
		return
	}
	if err := s.s.WriteValue(s.flag.address, j.ticket); err != nil {
		s.broken = true
	}
	j.ticket = 0
}

// errBroken is why a stream takes no more jobs.
var errBroken = errors.New("an earlier load failed after it was answered")

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

// start queues the copies of the first gated job, or ends it for a reason.
func (s *cudaStream) start(j *cudaJob, reason error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	j.gate.close()
	if reason == nil && s.broken {
		reason = fmt.Errorf("%w: %w", ErrCopy, errBroken)
	}
	if reason == nil {
		reason = s.copies(j)
	}
	j.err = reason
	// Whoever is told that a load is done reads what it loaded. One that failed
	// is never told so; its engine has to register again.
	if reason != nil && j.loads() && !errors.Is(reason, ErrClosed) {
		s.broken = true
	}
	if !s.broken {
		s.keepPromise(j)
	}
	s.mu.Lock()
	s.gated = slices.Delete(s.gated, 0, 1)
	s.mu.Unlock()
	s.hand(j) // from here on j may have ended
}

// copies queues what a job copies. turn is held.
func (s *cudaStream) copies(j *cudaJob) error {
	r, err := s.request(j)
	if err == nil {
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

// end gives back what the stream had for waiting and answering. Nothing of it
// is queued any more but answers that were never to be given.
func (s *cudaStream) end() {
	if s.flag != nil {
		s.turn.Lock()
		_ = s.s.WriteValue(s.flag.address, s.flag.value)
		_ = s.s.Wait()
		s.turn.Unlock()
		s.dev.giveFlag(s.flag)
	}
	if s.answers != nil {
		_ = s.answers.Wait()
		_ = s.answers.Destroy()
	}
	if s.peeks != nil {
		_ = s.peeks.Destroy()
		_ = s.peeked.Free()
	}
	for _, m := range s.lines {
		_ = m.Release()
	}
	s.lines = nil
}
