package mpserver

import (
	"context"
	"sync"
	"time"
)

// deadlineCtx is a context with a deadline and no timer until somebody waits
// on it: nearly every request is answered without waiting, and a
// context.WithDeadline costs it a timer and three allocations.
type deadlineCtx struct {
	at   time.Time
	once sync.Once
	done chan struct{}
}

func deadlineContext(at time.Time) context.Context { return &deadlineCtx{at: at} }

func (c *deadlineCtx) Deadline() (time.Time, bool) { return c.at, true }

func (c *deadlineCtx) Done() <-chan struct{} {
	c.once.Do(func() {
		c.done = make(chan struct{})
		time.AfterFunc(time.Until(c.at), func() { close(c.done) })
	})
	return c.done
}

func (c *deadlineCtx) Err() error {
	if time.Now().Before(c.at) {
		return nil
	}
	return context.DeadlineExceeded
}

func (c *deadlineCtx) Value(any) any { return nil }
