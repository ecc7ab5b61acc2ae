package mpserver

import (
	"errors"
	"runtime"
	"strconv"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
)

const (
	// recvBatch is how many messages are taken before the outbox is looked
	// at again, so that a flood of requests does not hold back replies.
	recvBatch = 64
	// maxFrames bounds the frames of a message; the widest operation has
	// identity, uid, op and eight payloads.
	maxFrames = 32
)

// loop owns the sockets: it receives, answers what is cheap, hands the rest to
// lanes, and sends every reply. It never waits for anything but the sockets.
func (s *Server) loop(stop <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer s.loopEnded.Store(true)
	t := s.sock
	frames := make([][]byte, 0, maxFrames)
	for {
		if _, err := t.poller.Poll(-1); err != nil {
			if errors.Is(err, zmq.ETERM) {
				return
			}
			s.log.Error("poll", "component", "mq", "err", err)
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond): // do not spin on a broken socket
			}
		}
		for more := true; more; {
			s.drainWake()
			s.drainMonitor()
			more = false
			for range recvBatch {
				var ok bool
				if frames, ok = s.receive(frames[:0]); !ok {
					break
				}
				more = true
				if len(frames) > 0 {
					s.accept(frames)
				}
			}
			s.flush()
			select {
			case <-stop:
				s.flush()
				return
			default:
			}
		}
	}
}

func (s *Server) drainWake() {
	for {
		if _, err := s.sock.wakeIn.RecvBytes(zmq.DONTWAIT); err != nil {
			return
		}
	}
}

// flush sends what lanes have finished.
func (s *Server) flush() {
	out := s.sock.takeOutbox()
	for i := range out {
		s.sendNow(&out[i])
	}
}

func (s *Server) sendNow(o *outgoing) {
	err := s.sock.send(o) // libzmq has its own copy now
	if o.pooled {
		putBuffer(o.value)
	}
	if err != nil {
		// EHOSTUNREACH: the client has gone; EAGAIN: it does not read.
		reason := "reply_not_read"
		if zmq.AsErrno(err) == zmq.Errno(syscall.EHOSTUNREACH) {
			reason = "reply_client_gone"
		}
		s.met.Dropped(reason)
	}
}

// receive takes one message: identity first, then the frames behind it. It
// reports false when none is waiting. An oversized or impossible message comes
// back with no frames.
func (s *Server) receive(frames [][]byte) ([][]byte, bool) {
	r := s.sock.router
	id, err := r.RecvBytes(zmq.DONTWAIT)
	if err != nil {
		return frames, false
	}
	frames = append(frames, id)
	c := s.clients.get(id)
	fresh := c == nil || c.isGone()
	var fd string
	for {
		more, err := r.GetRcvmore()
		if err != nil || !more {
			break
		}
		var f []byte
		if fresh && fd == "" {
			// The descriptor of the connection is what the monitor's
			// DISCONNECTED event will name.
			var meta map[string]string
			f, meta, err = r.RecvBytesWithMetadata(zmq.DONTWAIT, "__fd")
			fd = meta["__fd"]
			if fd == "" {
				fd = "-"
			}
		} else {
			f, err = r.RecvBytes(zmq.DONTWAIT)
		}
		if err != nil {
			break
		}
		if len(frames) < maxFrames {
			frames = append(frames, f)
		}
	}
	if fresh {
		s.drainMonitor() // everything that happened before this connection spoke
		n, err := strconv.Atoi(fd)
		if err != nil {
			n = noDescriptor
		}
		s.clients.connected(id, n)
	}
	return frames, true
}

// drainMonitor notes which connections have ended.
func (s *Server) drainMonitor() {
	for {
		ev, _, fd, err := s.sock.monitor.RecvEvent(zmq.DONTWAIT)
		if err != nil {
			return
		}
		switch ev {
		case zmq.EVENT_ACCEPTED:
			s.clients.accepted(fd)
		case zmq.EVENT_DISCONNECTED:
			s.clients.disconnected(fd, time.Now())
		default: // not subscribed to
		}
	}
}
