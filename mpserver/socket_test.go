package mpserver

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// refused is how many connections were refused.
func refused(t *testing.T, s *Server) (n int) {
	t.Helper()
	var b bytes.Buffer
	_, err := s.met.WriteTo(&b)
	require.NoError(t, err)
	for line := range strings.Lines(b.String()) {
		if at := strings.Index(line, `reason="handshake"} `); at >= 0 {
			_, err := fmt.Sscan(line[at+len(`reason="handshake"} `):], &n)
			require.NoError(t, err)
		}
	}
	return n
}

// Who speaks something else on the request port is refused, counted, and told of
// once, and costs nobody anything.
func TestOtherProtocolsOnTheRequestPort(t *testing.T) {
	var log syncBuffer
	s := startServer(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	p := connect(t, s)
	p.register(1)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.Addr(), "tcp://"))
		require.NoError(t, err)
		raw := []byte("GET /healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if i%2 == 1 {
			raw = make([]byte, 1+r.IntN(200))
			for j := range raw {
				raw[j] = byte(r.Uint32())
			}
			raw[0] = byte(i) // a greeting begins with ff
		}
		_, _ = c.Write(raw)
		if i%3 > 0 {
			_, _ = c.Read(raw) // until we are told, or not
		}
		require.NoError(t, c.Close())
	}
	testutil.Eventually(t, "all were refused", func() bool { return refused(t, s) == 100 })
	require.True(t, p.boolean(wire.OpPing, intFrame(1)))
	require.Equal(t, 1, strings.Count(log.String(), "was refused"), log.String())
}
