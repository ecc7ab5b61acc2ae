package pd

import "errors"

// Errors of configuration and use.
var (
	// ErrOptions: Options cannot work; all problems are in one error.
	ErrOptions = errors.New("pd: bad options")
	// ErrParams: kv_transfer_params lack what a consumer needs, or contradict
	// its blocks. vLLM would wait for ever, or end; check before use.
	ErrParams = errors.New("pd: bad kv_transfer_params")
	// ErrClosed: the peer is closed.
	ErrClosed = errors.New("pd: peer is closed")
	// ErrOffered: a request of this id is already offered.
	ErrOffered = errors.New("pd: request is offered already")
)

// Errors of a pull. Each of them means that the KV has to be computed here, or
// the request to fail, as kv_load_failure_policy says.
var (
	// ErrHandshake: the producer's side channel could not be reached, or what it
	// said was refused.
	ErrHandshake = errors.New("pd: handshake failed")
	// ErrIncompatible: the two engines do not fit each other. It comes with
	// ErrHandshake.
	ErrIncompatible = errors.New("pd: engines are incompatible")
	// ErrWrongEngine: another engine answers at the producer's address, most
	// often its next start. It comes with ErrHandshake.
	ErrWrongEngine = errors.New("pd: another engine answers there")
	// ErrTransfer: reading the blocks failed, or took longer than
	// Options.TransferTimeout.
	ErrTransfer = errors.New("pd: transfer failed")
	// ErrNotify: a producer could not be told that its blocks are not needed,
	// and frees them when their lease ends. Only pulls without blocks fail so;
	// nothing is missing here.
	ErrNotify = errors.New("pd: producer was not notified")
	// ErrMessage: bytes that are no message of this protocol.
	ErrMessage = errors.New("pd: not a message of the side channel")
)
