package connector

import (
	"errors"
	"fmt"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Why a call has no answer.
var (
	// ErrClosed: the client was closed before the reply came.
	ErrClosed = errors.New("connector: client is closed")
	// ErrTimeout: no reply in time. The server may still do what it was asked.
	ErrTimeout = errors.New("connector: no reply in time")
	// ErrDisconnected: the connection went away between request and reply. A
	// reply cannot come any more, since the server forgets whom it was for.
	ErrDisconnected = errors.New("connector: connection lost before the reply")
	// ErrBacklog: the server is away and too many requests wait for it.
	ErrBacklog = errors.New("connector: too many requests wait for the server")
	// ErrUnhealthy: the heartbeat found the server dead; nothing was sent.
	ErrUnhealthy = errors.New("connector: server does not answer its heartbeat")
)

// What an answer says.
var (
	// ErrReply: the reply is not one of this operation.
	ErrReply = errors.New("connector: unusable reply")
	// ErrRefused is wrapped by every [RefusedError].
	ErrRefused = errors.New("connector: refused")
	// ErrFailed: the server answered that the transfer failed, or had nothing
	// to load. Nothing was written into the engine's blocks, or not all of it.
	ErrFailed = errors.New("connector: transfer failed")
)

// Settings that cannot work together with a server or an engine.
var (
	// ErrConfig: a setting of the transfer config is unusable.
	ErrConfig = errors.New("connector: bad setting")
	// ErrUnreachable: a server did not tell its chunk size.
	ErrUnreachable = errors.New("connector: cannot reach the LMCache MP server")
	// ErrMode: the transfer mode does not fit the engine's memory or the server.
	ErrMode = errors.New("connector: transfer mode not possible")
)

// RefusedError is a server's refusal: lmcache-go answers so where the reference
// would stay silent (an operation it does not serve, a payload it cannot read).
// The reason is in the server's log. It is an [ErrRefused].
type RefusedError struct {
	Op wire.Op
}

// Error names the operation and where to look.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("connector: the server refused %v: its log has the reason", e.Op)
}

// Unwrap makes it an ErrRefused.
func (e *RefusedError) Unwrap() error { return ErrRefused }
