package testutil

import (
	"testing"
	"time"
)

// Deadline is how long [Eventually] waits. Long, because a wait that succeeds
// is short on every machine, and one that fails is a failed test anyway.
const Deadline = 20 * time.Second

// Eventually waits until cond is true and fails the test with what it waited
// for when that takes longer than [Deadline]. It is for conditions outside the
// process or without a channel; code under a fake clock uses testing/synctest.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	end := time.Now().Add(Deadline)
	for pause := time.Millisecond; !cond(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain: %s", Deadline, what)
		}
		<-time.After(pause)
	}
}

// Receive returns the next value of ch and fails the test when none comes
// within [Deadline] or when ch is closed.
func Receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Deadline)
	defer timer.Stop()
	select {
	case v, ok := <-ch:
		if !ok {
			t.Fatalf("channel closed: %s", what)
		}
		return v
	case <-timer.C:
		t.Fatalf("waited %v in vain: %s", Deadline, what)
	}
	panic("unreachable")
}
