package nixl

import (
	"errors"
	"fmt"
	"testing"
)

func TestErrorIs(t *testing.T) {
	sentinels := []error{
		ErrInvalidParam, ErrBackend, ErrNotFound, ErrInvalidState, ErrNoTelemetry, ErrRemoteDisconnected, ErrNotPosted,
		ErrRepostActive, ErrNotAllowed, ErrMismatch, ErrNotSupported, ErrCanceled, ErrClosed, ErrBusy,
	}
	f := func(e *Error, want ...error) {
		t.Helper()
		wrapped := fmt.Errorf("outer: %w", e)
		for _, s := range sentinels {
			is := false
			for _, w := range want {
				is = is || errors.Is(w, s)
			}
			if errors.Is(wrapped, s) != is {
				t.Errorf("%v: Is(%v) = %v", e, s, !is)
			}
		}
	}
	f(&Error{Status: StatusBackend}, ErrBackend)
	f(&Error{Status: StatusBackend, Native: NativeRemoteDisconnected}, ErrBackend, ErrRemoteDisconnected)
	f(&Error{Status: StatusBackend, Native: NativeRepostActive}, ErrBackend, ErrRepostActive)
	f(&Error{Status: StatusNotFound}, ErrNotFound)
	f(&Error{Status: StatusNoTelemetry}, ErrNoTelemetry)
	f(&Error{Status: StatusInvalidParam}, ErrInvalidParam)
	f(&Error{Cause: ErrBusy}, ErrBusy)
	f(&Error{Cause: &Error{Cause: fmt.Errorf("%w: %w", ErrClosed, ErrCanceled)}}, ErrClosed, ErrCanceled)
}

func TestErrorText(t *testing.T) {
	f := func(e *Error, want string) {
		t.Helper()
		if got := e.Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f(&Error{Op: "register", Agent: "a", Backend: "UCX", Mem: "VRAM", Status: StatusBackend, Detail: "1 region", Remedy: "load the driver"},
		"nixl: register (agent a, backend UCX, VRAM): status -2 BACKEND: 1 region; load the driver")
	f(&Error{Op: "post", Agent: "a", Remote: "b", Status: StatusBackend, Native: NativeRemoteDisconnected},
		"nixl: post (agent a, peer b): status -2 BACKEND, REMOTE_DISCONNECT")
	f(&Error{Op: "map buffer", Cause: ErrInvalidParam}, "nixl: map buffer: invalid parameter")
}
