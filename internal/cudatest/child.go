package cudatest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/lmcache-go/lmcache-go/cuda"
)

// export is the exporter's main.
func export(in io.Reader, out io.Writer) int {
	x := &exporting{lines: map[cuda.MemHandle]*cuda.Mapping{}}
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r request
		if err := dec.Decode(&r); err != nil {
			break
		}
		a, err := x.serve(&r)
		if err != nil {
			a.Err = err.Error()
		}
		if err := enc.Encode(a); err != nil {
			break
		}
	}
	if x.gate != nil && x.blocked {
		_ = x.fire() // streams that wait would keep the process
	}
	return 0
}

const stagingBytes = 16 << 20

// exporting is the exporter's side.
type exporting struct {
	ctx     *cuda.Context
	mem     *cuda.Buffer
	gate    *cuda.Buffer // a number that streams wait for
	count   uint64       // what Blocked waits for next
	blocked bool
	staging *cuda.HostBuffer
	free    *cuda.Stream                     // waits for nothing
	held    *cuda.Stream                     // what Blocked holds up
	lines   map[cuda.MemHandle]*cuda.Mapping // timelines of others
}

func (x *exporting) serve(r *request) (a answer, err error) {
	if x.ctx == nil {
		if err := x.start(); err != nil {
			return a, err
		}
	}
	switch r.Op {
	case "alloc":
		if x.mem, err = x.ctx.Alloc(r.Size); err != nil {
			return a, err
		}
		if err = x.fill(r.Seed); err != nil {
			return a, err
		}
		h, err := x.mem.Handle()
		a.Handle = h[:]
		return a, err
	case "fill":
		return a, x.fill(r.Seed)
	case "read":
		a.Data = make([]byte, 0, r.Size)
		err = x.pieces(r.Offset, r.Size, true, func(b []byte, _ int64) { a.Data = append(a.Data, b...) })
	case "same":
		err = x.pieces(0, x.mem.SizeBytes, true, func(b []byte, at int64) { a.Value += same(b, r.Seed, at) })
	case "signal":
		a.Data, err = x.signal(x.free, r.Kind)
	case "blocked":
		x.count++
		x.blocked = true
		if err := x.held.WaitValue(x.gate.Address, x.count); err != nil {
			return a, err
		}
		a.Data, err = x.signal(x.held, r.Kind)
	case "fire":
		err = x.fire()
	case "wait", "look":
		return x.look(r)
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	return a, err
}

func (x *exporting) start() error {
	drv, err := load()
	if err != nil {
		return err
	}
	devices := drv.Devices()
	if len(devices) == 0 {
		return cuda.ErrNoSuchDevice
	}
	if x.ctx, err = drv.Retain(devices[0]); err != nil {
		return err
	}
	if x.staging, err = x.ctx.AllocHost(stagingBytes); err != nil {
		return err
	}
	if x.gate, err = x.ctx.Alloc(4096); err != nil {
		return err
	}
	if x.free, err = x.ctx.NewStream(); err != nil {
		return err
	}
	if err := x.free.Fill(x.gate.Address, 0, 4096); err != nil {
		return err
	}
	if err := x.free.Wait(); err != nil {
		return err
	}
	x.held, err = x.ctx.NewStream()
	return err
}

// pieces copies a range of the memory through the staging buffer, in or out.
func (x *exporting) pieces(offset, n int64, out bool, f func(b []byte, at int64)) error {
	for at := offset; at < offset+n; at += stagingBytes {
		b := x.staging.Bytes()[:min(stagingBytes, offset+n-at)]
		if !out {
			f(b, at)
		}
		var err error
		if out {
			err = x.free.Copy(x.staging.Address, x.mem.Address+uint64(at), int64(len(b)))
		} else {
			err = x.free.Copy(x.mem.Address+uint64(at), x.staging.Address, int64(len(b)))
		}
		if err == nil {
			err = x.free.Wait()
		}
		if err != nil {
			return err
		}
		if out {
			f(b, at)
		}
	}
	return nil
}

func (x *exporting) fill(seed uint64) error {
	return x.pieces(0, x.mem.SizeBytes, false, func(b []byte, at int64) { write(b, seed, at) })
}

func (x *exporting) signal(s *cuda.Stream, k cuda.SignalKind) ([]byte, error) {
	r, err := s.Submit(&cuda.Request{Answer: k})
	if err != nil {
		return nil, err
	}
	return r.Answer.AppendTo(nil), nil
}

func (x *exporting) fire() error {
	if err := x.free.WriteValue(x.gate.Address, x.count); err != nil {
		return err
	}
	x.blocked = false
	return x.free.Wait()
}

// look waits for a signal of another process, or looks whether it has fired.
func (x *exporting) look(r *request) (a answer, err error) {
	s, err := cuda.ParseSignal(r.Signal)
	if err != nil {
		return a, err
	}
	fired := func() (bool, error) { return true, nil }
	switch s.Kind {
	case cuda.SignalEvent:
		e, err := x.ctx.OpenEvent(s.Event)
		if err != nil {
			return a, err
		}
		defer e.Destroy() //nolint:errcheck // a test's helper
		fired = e.Done
	case cuda.SignalTimeline:
		m := x.lines[s.Buffer]
		if m == nil {
			// Not closed again: the driver would wait for our own stream, which
			// a blocked signal keeps from ending.
			if m, err = x.ctx.OpenMemory(s.Buffer); err != nil {
				return a, err
			}
			x.lines[s.Buffer] = m
		}
		fired = func() (bool, error) {
			err := x.free.Copy(x.staging.Address, m.Address+s.Offset, 8)
			if err == nil {
				err = x.free.Wait()
			}
			return binary.LittleEndian.Uint64(x.staging.Bytes()) >= s.Sequence, err
		}
	case cuda.SignalNone:
	}
	begin := time.Now()
	for {
		ok, err := fired()
		if ok || err != nil || r.Op == "look" {
			if ok {
				a.Value = 1
			}
			a.Seconds = time.Since(begin).Seconds()
			return a, err
		}
		if time.Since(begin) > 10*time.Second {
			return a, fmt.Errorf("the signal did not fire")
		}
		time.Sleep(50 * time.Microsecond) // as an engine does, once in a while
	}
}
