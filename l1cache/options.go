package l1cache

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"
)

// Options configures a [Cache]. Arena is required; the zero value of any other
// field means the default in its comment.
type Options struct {
	// Arena is the memory. It must outlive the cache, and belongs to one cache.
	Arena *Arena
	// AlignBytes is the step of addresses and sizes, a power of two. Each
	// object's size is rounded up to it. Default 4096.
	AlignBytes int
	// Evict lets the cache drop objects to make room. False is the policy
	// "noop": a reservation into a full pool fails.
	Evict bool
	// Policy says which objects go first. Default [PolicyLRU].
	Policy Policy
	// TriggerWatermark is the used fraction from which the background turn
	// evicts, 0..1. Default 0.8.
	TriggerWatermark float64
	// EvictionRatio is the fraction of objects one turn evicts, at least one.
	// 0..1. Default 0.2.
	EvictionRatio float64
	// WriteTTL is how long a reservation may be filled. Default 600 s.
	WriteTTL time.Duration
	// ReadTTL is how long a lease is held at most. Default 300 s.
	ReadTTL time.Duration
	// Now is the clock of the TTLs. Default [time.Now].
	Now func() time.Time
	// Ticks drives the background turn, once per value received. Default: a
	// ticker of one second.
	Ticks <-chan time.Time
	// Logger: default discards.
	Logger *slog.Logger
	// Observer may be nil.
	Observer Observer
	// SampleRate is the share of objects, 0..1, that an Observer which is a
	// [Sampler] follows one by one. Default none.
	SampleRate float64
}

func (o *Options) setDefaults() {
	if o.AlignBytes == 0 {
		o.AlignBytes = 4096
	}
	if o.TriggerWatermark == 0 {
		o.TriggerWatermark = 0.8
	}
	if o.EvictionRatio == 0 {
		o.EvictionRatio = 0.2
	}
	if o.WriteTTL == 0 {
		o.WriteTTL = 600 * time.Second
	}
	if o.ReadTTL == 0 {
		o.ReadTTL = 300 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// check reports all that is wrong with o, joined.
func (o *Options) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Arena == nil {
		bad("l1cache: Options.Arena is required")
	}
	if a := o.AlignBytes; a < 1 || a&(a-1) != 0 {
		bad("l1cache: alignment must be a power of two, got %d", a)
	} else if o.Arena != nil && o.Arena.SizeBytes() < int64(a) {
		bad("l1cache: a pool of %d bytes is smaller than one step of %d", o.Arena.SizeBytes(), a)
	}
	ratio := func(name string, v float64) {
		if math.IsNaN(v) || v < 0 || v > 1 {
			bad("l1cache: %s must be between 0 and 1, got %g", name, v)
		}
	}
	ratio("trigger watermark", o.TriggerWatermark)
	ratio("eviction ratio", o.EvictionRatio)
	ratio("sample rate", o.SampleRate)
	if o.Policy > PolicyIsolated {
		bad("l1cache: unknown policy %d", o.Policy)
	}
	if o.WriteTTL < 0 || o.ReadTTL < 0 {
		bad("l1cache: TTLs must be positive, got write %v, read %v", o.WriteTTL, o.ReadTTL)
	}
	return errors.Join(errs...)
}
