package wire

import (
	"errors"
	"fmt"
)

// Returned by decoders when a frame is not well-formed msgpack.
var (
	// ErrTruncated is returned when a frame ends inside its document, or
	// declares more elements than it has bytes.
	ErrTruncated = errors.New("frame ends early")
	// ErrTrailing is returned when bytes follow the document.
	ErrTrailing = errors.New("bytes after the end of the document")
	// ErrUTF8 is returned for a string that is not valid UTF-8.
	ErrUTF8 = errors.New("string is not valid UTF-8")
)

// Returned by decoders when a document is not what the operation declares.
var (
	// ErrType is returned for a value of another msgpack type than declared.
	ErrType = errors.New("wrong type")
	// ErrRange is returned for an integer outside the declared range, or beyond
	// 64 signed bits.
	ErrRange = errors.New("integer out of range")
	// ErrMissing is returned when a map lacks a required key.
	ErrMissing = errors.New("required key is missing")
	// ErrUnknownKey is returned for a key that a device wrapper must not have.
	ErrUnknownKey = errors.New("unknown key")
	// ErrValue is returned for a value of the right type that is not allowed.
	ErrValue = errors.New("value not allowed")
	// ErrSalt is returned for a cache salt that breaks the rules of [CheckSalt].
	ErrSalt = errors.New("bad cache salt")
	// ErrUnsupportedDevice is returned for tensors of a device that this server
	// cannot open (musa, npu). The remedy is lmcache.mp.mp_transfer_mode
	// engine_driven in the engine's extra config.
	ErrUnsupportedDevice = errors.New("device is not supported: use transfer mode engine_driven")
)

// inField says where in a map an error happened.
func inField(what string, name []byte, err error) error {
	return fmt.Errorf("%s.%s: %w", what, clip(name), err)
}

// clip bounds what of a frame may end up in a log line.
func clip(name []byte) string {
	if len(name) > 64 {
		return fmt.Sprintf("%.64q...", name)
	}
	return string(name)
}

// leadName names the msgpack type that starts with a lead byte, for errors.
func leadName(b byte) string {
	switch classes[b].kind {
	case kindInt:
		return "an integer"
	case kindStr:
		return "a string"
	case kindBin:
		return "bytes"
	case kindArray:
		return "an array"
	case kindMap:
		return "a map"
	case kindExt:
		return "an extension"
	case kindFloat:
		return "a float"
	case kindBool:
		return "a bool"
	case kindNil:
		return "nil"
	default:
		return fmt.Sprintf("the reserved byte %#x", b)
	}
}
