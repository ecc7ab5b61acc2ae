package nixl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// Errors of loading.
var (
	// ErrLibraryNotFound is matched by the error of [Load] when no library was
	// there; the error lists every place and what was wrong with it.
	ErrLibraryNotFound = errors.New("no NIXL library found")
	// ErrSymbolMissing is matched when a library lacks a function that this
	// package needs.
	ErrSymbolMissing = errors.New("the library lacks functions")
	// ErrIncompatible is matched when a library was found but cannot be used:
	// a stub, a newer C API, or a second NIXL in a process that has one.
	ErrIncompatible = errors.New("incompatible library")
)

// Errors of the caller, found before the library is called.
var (
	// ErrInvalidParam: an argument makes no sense; the error says which.
	ErrInvalidParam = errors.New("invalid parameter")
	// ErrGoMemory: memory of the Go runtime was offered for registration. It
	// may be freed or reused while peers write to it. Use [MapBuffer].
	ErrGoMemory = errors.New("memory of the Go runtime cannot be registered")
	// ErrOverlap: a region overlaps one that is registered with the backend.
	// NIXL would find the wrong one later.
	ErrOverlap = errors.New("regions overlap")
	// ErrNotRegistered: a descriptor does not lie within one registered region.
	ErrNotRegistered = errors.New("not in a registered region")
	// ErrMismatch: two sides, lists or names that must agree do not.
	ErrMismatch = errors.New("mismatch")
	// ErrClosed: the object, or the agent it belongs to, was closed.
	ErrClosed = errors.New("closed")
	// ErrBusy: something still uses the object. Close has begun and ends by
	// itself when the last user lets go; until then memory must stay.
	ErrBusy = errors.New("still in use")
	// ErrBadMetadata: a metadata blob is damaged, truncated or no metadata. It
	// was not handed to the library, where it would spoil the peer's name.
	ErrBadMetadata = errors.New("bad metadata")
	// ErrPoisoned: the library refused a blob of this peer name and, as NIXL
	// 1.5.1 does, may refuse every later one. The peer needs a new name.
	ErrPoisoned = errors.New("the peer's name is spoilt")
	// ErrRemoteGone: the peer was closed, replaced by its next start, or lost.
	ErrRemoteGone = errors.New("the peer is gone")
)

// Errors of transfers and of the library.
var (
	// ErrBackend is matched by every failure that the library does not tell
	// apart, and by those with an exact code too.
	ErrBackend = errors.New("backend error")
	// ErrNotFound: the library knows no such peer, region or backend.
	ErrNotFound = errors.New("not found")
	// ErrInvalidState: the library was called out of order.
	ErrInvalidState = errors.New("invalid state")
	// ErrNoTelemetry: telemetry is off; see Config.Telemetry.
	ErrNoTelemetry = errors.New("no telemetry")
	// ErrRemoteDisconnected: the peer's process or its connection ended.
	ErrRemoteDisconnected = errors.New("remote disconnected")
	// ErrNotPosted: the transfer was not posted yet.
	ErrNotPosted = errors.New("not posted")
	// ErrRepostActive: the transfer is running and cannot be posted again.
	ErrRepostActive = errors.New("already running")
	// ErrNotAllowed: the library refuses it in this state of the peer.
	ErrNotAllowed = errors.New("not allowed")
	// ErrNotSupported: the backend, the library or this build cannot do it.
	ErrNotSupported = errors.New("not supported")
	// ErrCanceled: the transfer was cancelled. Its memory is pinned until it
	// has really ended; see [Transfer.Settled].
	ErrCanceled = errors.New("canceled")
)

// Status is a status code of NIXL's C API 1.5.1. Newer libraries have more
// codes; they are folded into StatusBackend with Error.Native beside it.
type Status int32

// Statuses.
const (
	StatusSuccess      Status = capi.Success
	StatusInProgress   Status = capi.InProgress
	StatusInvalidParam Status = capi.InvalidParam
	StatusBackend      Status = capi.Backend
	StatusInvalidState Status = capi.InvalidState
	StatusException    Status = capi.Exception
	StatusNoTelemetry  Status = capi.NoTelemetry
	StatusNotFound     Status = capi.NotFound
)

// String is the symbol without its prefix.
func (s Status) String() string {
	switch s {
	case StatusSuccess:
		return "SUCCESS"
	case StatusInProgress:
		return "IN_PROG"
	case StatusInvalidParam:
		return "INVALID_PARAM"
	case StatusBackend:
		return "BACKEND"
	case StatusInvalidState:
		return "INVALID_STATE"
	case StatusException:
		return "EXCEPTION"
	case StatusNoTelemetry:
		return "NO_TELEMETRY"
	case StatusNotFound:
		return "NOT_FOUND"
	case capi.NoMemory:
		return "NO_MEMORY"
	default:
		return "UNKNOWN"
	}
}

// Native is a status code of NIXL's C++ library, nixl_status_t.
type Native int32

// Codes of the C++ library that the C API does not tell apart.
const (
	NativeUnknown            Native = 0 // the library did not say
	NativeNotPosted          Native = -1
	NativeMismatch           Native = -5
	NativeNotAllowed         Native = -6
	NativeRepostActive       Native = -7
	NativeNotSupported       Native = -9
	NativeRemoteDisconnected Native = -10
	NativeCanceled           Native = -11
)

var nativeNames = map[Native]string{
	-1: "NOT_POSTED", -2: "INVALID_PARAM", -3: "BACKEND", -4: "NOT_FOUND", -5: "MISMATCH", -6: "NOT_ALLOWED",
	-7: "REPOST_ACTIVE", -8: "UNKNOWN", -9: "NOT_SUPPORTED", -10: "REMOTE_DISCONNECT", -11: "CANCELED", -12: "NO_TELEMETRY",
}

// String is the symbol without its prefix.
func (n Native) String() string {
	if s, ok := nativeNames[n]; ok {
		return s
	}
	return fmt.Sprintf("code %d", int32(n))
}

var nativeErrors = map[Native]error{
	-1: ErrNotPosted, -2: ErrInvalidParam, -4: ErrNotFound, -5: ErrMismatch, -6: ErrNotAllowed, -7: ErrRepostActive,
	-9: ErrNotSupported, -10: ErrRemoteDisconnected, -11: ErrCanceled, -12: ErrNoTelemetry,
}

var statusErrors = map[Status]error{
	StatusInvalidParam: ErrInvalidParam, StatusBackend: ErrBackend, StatusException: ErrBackend,
	StatusInvalidState: ErrInvalidState, StatusNoTelemetry: ErrNoTelemetry, StatusNotFound: ErrNotFound,
}

// Error is a failed call. errors.Is finds the sentinels of this package in it:
// by the exact C++ code where it is known, by the C status, and by Cause.
type Error struct {
	Op      string // what was asked for: "register", "post", "wait", …
	Agent   string // name of the local agent
	Remote  string // name of the peer, "" when none is concerned
	Backend string // name of the plugin, "" when none is concerned
	Mem     string // memory type or types, "" when none is concerned
	Status  Status // of the C API; StatusSuccess when the library was not called
	Native  Native // of the C++ library, when known
	Detail  string // what exactly was wrong
	Remedy  string // what to do about it, when that is known
	Cause   error  // a sentinel of this package, or what another package said
}

// Error names the call and its objects, the status, the detail and the remedy.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("nixl: " + e.Op)
	sep := " ("
	for _, p := range [][2]string{{"agent ", e.Agent}, {"peer ", e.Remote}, {"backend ", e.Backend}, {"", e.Mem}} {
		if p[1] != "" {
			b.WriteString(sep + p[0] + p[1])
			sep = ", "
		}
	}
	if sep == ", " {
		b.WriteByte(')')
	}
	if e.Cause != nil {
		b.WriteString(": " + e.Cause.Error())
	}
	if e.Status != StatusSuccess {
		fmt.Fprintf(&b, ": status %d %s", int32(e.Status), e.Status)
		if e.Native != NativeUnknown {
			fmt.Fprintf(&b, ", %s", e.Native)
		}
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Is matches the sentinels of the status and of the C++ code.
func (e *Error) Is(target error) bool {
	if s, ok := statusErrors[e.Status]; ok && s == target {
		return true
	}
	n, ok := nativeErrors[e.Native]
	return ok && n == target
}

// Unwrap returns Cause.
func (e *Error) Unwrap() error { return e.Cause }

// from fills in what the library answered.
func (e *Error) from(c *capi.CallError) *Error {
	e.Status, e.Native = Status(c.Status), Native(c.Native)
	if c.Text != "" {
		e.addDetail("the library says: " + c.Text)
	}
	return e
}

func (e *Error) addDetail(text string) {
	if e.Detail != "" {
		text = e.Detail + "; " + text
	}
	e.Detail = text
}
