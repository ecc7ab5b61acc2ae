package zmtp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

const (
	// maxIdentity is the longest name that a peer may give itself.
	maxIdentity = 255
	// versionAt is where a greeting tells the version.
	versionAt = 10
)

// newGreeting is what each side sends first: signature, version 3.1,
// NULL security (rfc.zeromq.org/spec/37).
func newGreeting() []byte {
	g := make([]byte, greetingBytes)
	g[0], g[9], g[versionAt], g[11] = 0xff, 0x7f, 3, 1
	copy(g[12:], "NULL")
	return g
}

// checkGreeting looks at as much of a greeting as has come, so that whoever
// speaks something else hears so at once. It is nil while there is hope.
func checkGreeting(b []byte) error {
	switch {
	case len(b) > 0 && b[0] != 0xff, len(b) > 9 && b[9]&1 == 0:
		return fmt.Errorf("%w: this is no ZMTP peer of libzmq 4, it began with % x", ErrHandshake, b[:min(len(b), 20)])
	case len(b) > versionAt && b[versionAt] < 3:
		return fmt.Errorf("%w: the peer speaks ZMTP %d, which libzmq has left behind with 4.0: update it", ErrHandshake, b[versionAt])
	case len(b) >= greetingBytes && !bytes.HasPrefix(b[12:], []byte("NULL\x00")):
		return fmt.Errorf("%w: the peer asks for %q security, served is NULL", ErrHandshake, bytes.TrimRight(b[12:32], "\x00"))
	}
	return nil
}

// appendReady appends the READY command.
func appendReady(dst []byte, socket, identity string) []byte {
	body := []byte("\x05READY")
	for _, p := range [][2]string{{"Socket-Type", socket}, {"Identity", identity}} {
		body = append(append(body, byte(len(p[0]))), p[0]...)
		body = append(binary.BigEndian.AppendUint32(body, uint32(len(p[1]))), p[1]...)
	}
	return appendCommand(dst, body)
}

// appendError appends an ERROR command.
func appendError(dst []byte, reason string) []byte {
	reason = reason[:min(len(reason), 255)]
	return appendCommand(dst, append([]byte{5, 'E', 'R', 'R', 'O', 'R', byte(len(reason))}, reason...))
}

func appendCommand(dst, body []byte) []byte {
	dst = AppendHead(dst, len(body), false)
	head := 2
	if len(body) >= 256 {
		head = 9
	}
	dst[len(dst)-head] |= flagCommand
	return append(dst, body...)
}

// ready is what a READY command tells.
type ready struct {
	socket   string
	identity string
}

// parseReady reads the body of a READY command. Names of properties have no
// case, unknown ones mean nothing to us.
func parseReady(body []byte) (r ready, err error) {
	rest, ok := bytes.CutPrefix(body, []byte("\x05READY"))
	if !ok {
		return r, fmt.Errorf("%w: the peer answered %.64q instead of READY", ErrHandshake, body)
	}
	for len(rest) > 0 {
		n := int(rest[0])
		if len(rest) < 1+n+4 {
			return r, fmt.Errorf("%w: READY is cut short", ErrHandshake)
		}
		name := string(rest[1 : 1+n])
		size := binary.BigEndian.Uint32(rest[1+n:])
		rest = rest[1+n+4:]
		if uint64(size) > uint64(len(rest)) {
			return r, fmt.Errorf("%w: READY is cut short", ErrHandshake)
		}
		v := string(rest[:size])
		rest = rest[size:]
		switch strings.ToLower(name) {
		case "socket-type":
			r.socket = v
		case "identity":
			if len(v) > maxIdentity {
				return r, fmt.Errorf("%w: an identity of %d bytes, at most %d are served", ErrHandshake, len(v), maxIdentity)
			}
			r.identity = v
		}
	}
	return r, nil
}

// takesRouter tells whether a socket of this type may talk to a ROUTER.
func takesRouter(socket string) bool {
	return socket == "DEALER" || socket == "REQ" || socket == "ROUTER"
}
