package mpserver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
)

// maxFrames bounds the frames of a message; the widest operation has uid, op
// and eight payloads. Those beyond it make the number of arguments wrong.
const maxFrames = 32

// socket is what the request socket tells a server. Each connection has a
// goroutine that reads from it and calls these; it answers what is cheap and
// hands the rest to lanes, so that a client waits for nobody but itself.
type socket struct{ s *Server }

// serve runs the request socket until it is closed.
func (s *Server) serve(<-chan struct{}) {
	if err := s.sock.router.Serve(); err != nil {
		s.log.Error("the request socket has failed", "component", "mq", "err", err)
	}
}

func (k socket) Connected(p *zmtp.Peer) { p.Data = k.s.clients.connected(p) }

func (k socket) Message(p *zmtp.Peer, m *zmtp.Message) {
	defer func() { // handlers have a net of their own, in execute
		if x := recover(); x != nil {
			k.s.met.Panicked("message")
			k.s.log.Error("a message panicked and is dropped; its client is disconnected", "component", "mq", "err", fmt.Sprint(x), "stack", string(debug.Stack()))
			p.Close()
		}
	}()
	if c, ok := p.Data.(*client); ok {
		k.s.accept(c, m)
	}
}

func (k socket) Disconnected(p *zmtp.Peer, err error) {
	if c, ok := p.Data.(*client); ok {
		c.disconnected(p, time.Now())
	}
	k.s.log.Debug("connection ended", "component", "mq", "peer", p.RemoteAddr().String(), "err", err)
}

// refusedEvery bounds how often refused connections are told of: who is refused
// tries again at once.
const refusedEvery = 10 * time.Second

func (k socket) Refused(addr net.Addr, err error) {
	k.s.met.Dropped("handshake")
	level := slog.LevelDebug
	now := time.Now().UnixNano()
	if last := k.s.refusedAt.Load(); now-last > int64(refusedEvery) && k.s.refusedAt.CompareAndSwap(last, now) {
		level = slog.LevelWarn
	}
	k.s.log.Log(context.Background(), level, "a connection to the request port was refused", "component", "mq", "peer", addr.String(), "err", err)
}
