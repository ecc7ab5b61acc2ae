package pd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
)

const (
	// maxRequest bounds what a peer may send to a side channel, maxHandshake
	// what a side channel may answer: metadata grows with layers and NIC ports.
	maxRequest   = 64 << 10
	maxHandshake = 64 << 20
	// lingerClose is how long closing waits for answers to leave.
	lingerClose = time.Second
)

type rank struct{ pp, tp int }

// SideChannel is the ROUTER socket where the ranks of one engine answer
// handshakes.
type SideChannel struct {
	host   string
	port   int
	router *zmtp.RouterSocket
	served sync.WaitGroup
	log    *slog.Logger

	mu         sync.Mutex
	payloads   map[rank][]byte // guarded by mu
	generation int             // guarded by mu; counts changed payloads
	answered   int64           // guarded by mu
	refused    int64           // guarded by mu
}

// NewSideChannel listens at host and port; port 0 chooses a free one. It must be
// closed after the peers that use it.
func NewSideChannel(host string, port int) (*SideChannel, error) {
	return newSideChannel(host, port, slog.New(slog.DiscardHandler))
}

func newSideChannel(host string, port int, log *slog.Logger) (*SideChannel, error) {
	s := &SideChannel{host: host, payloads: map[rank][]byte{}, log: log}
	s.router = zmtp.NewRouter(zmtp.RouterOptions{
		Handler: sideHandler{s}, MaxMessageBytes: maxRequest, MaxFrames: 4, QueueMessages: 64, QueueBytes: maxHandshake, Logger: log,
	})
	at := net.JoinHostPort(host, strconv.Itoa(port))
	bound, err := s.router.Listen("tcp://" + at)
	if err != nil {
		_ = s.router.Close(0)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("pd: side channel %s: another engine listens there: set %s, or stop it: %w", at, EnvPort, err)
		}
		return nil, fmt.Errorf("pd: side channel %s: check %s and %s: %w", at, EnvHost, EnvPort, err)
	}
	u, err := url.Parse(bound)
	if err == nil {
		s.port, err = strconv.Atoi(u.Port())
	}
	if err != nil {
		_ = s.router.Close(0)
		return nil, fmt.Errorf("pd: side channel bound at %q: %w", bound, err)
	}
	s.served.Go(func() {
		if err := s.router.Serve(); err != nil {
			s.log.Error("the side channel has ended, no engine can shake hands any more", "err", err)
		}
	})
	return s, nil
}

// Host is the host that it listens at.
func (s *SideChannel) Host() string { return s.host }

// Port is the port that was bound.
func (s *SideChannel) Port() int { return s.port }

// Answered is how many handshakes were answered, and refused how many requests
// were not understood or asked for a rank that is not here.
func (s *SideChannel) Answered() (answered, refused int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered, s.refused
}

// Close stops listening.
func (s *SideChannel) Close() error {
	err := s.router.Close(lingerClose)
	s.served.Wait()
	return err
}

// publish sets what is answered for a rank of the only pipeline stage, nil to
// end that.
func (s *SideChannel) publish(tp int, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if payload == nil {
		delete(s.payloads, rank{tp: tp})
		return
	}
	s.payloads[rank{tp: tp}] = payload
	s.generation++
}

// registrations is how often a payload was set: remote_registration_generation.
func (s *SideChannel) registrations() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// answer is the payload for a request.
func (s *SideChannel) answer(request []byte) []byte {
	pp, tp, known, err := parseRequest(request)
	s.mu.Lock()
	defer s.mu.Unlock()
	var payload []byte
	if err == nil {
		payload = s.payloads[rank{pp, tp}]
	}
	if payload != nil && known {
		s.answered++
		return payload
	}
	s.refused++
	h := Handshake{}
	switch {
	case err != nil:
		h.Err = err.Error()
	case !known:
		h.Err = "the request is not " + getMeta
	default:
		h.Err = fmt.Sprintf("no pipeline rank %d, tensor rank %d here: this engine has %d ranks; compare tp_size of both sides", pp, tp, len(s.payloads))
	}
	return h.Append(nil)
}

// sideHandler answers requests: [empty, request] as a REQ sends them, to
// [empty, payload, clock].
type sideHandler struct{ s *SideChannel }

func (sideHandler) Connected(*zmtp.Peer)           {}
func (sideHandler) Disconnected(*zmtp.Peer, error) {}
func (h sideHandler) Refused(addr net.Addr, err error) {
	h.s.log.Debug("a side channel peer was refused", "addr", addr, "err", err)
}

func (h sideHandler) Message(p *zmtp.Peer, m *zmtp.Message) {
	if len(m.Frames) < 2 || len(m.Frames[0]) != 0 {
		h.s.log.Warn("a message that no REQ sends", "addr", p.RemoteAddr(), "frames", len(m.Frames))
		return // nowhere to put an answer
	}
	payload := h.s.answer(m.Frames[1])
	clock := appendFloat(nil, time.Since(processStart).Seconds())
	if err := p.Queue(nil, payload, clock); err != nil {
		h.s.log.Debug("a handshake was not answered", "addr", p.RemoteAddr(), "err", err)
	}
}
