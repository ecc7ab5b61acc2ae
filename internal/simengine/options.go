package simengine

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/connector/multi"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// Options configures an [Engine]. The zero value of a field means its default.
type Options struct {
	// Model is the name that clients give. Default "sim".
	Model string
	// ServedName is the name that clients give, where it is another.
	ServedName string
	// BlockTokens is the tokens of a block. Default 16.
	BlockTokens int
	// Blocks of the KV pool; the first is not used. Default 1024.
	Blocks int
	// Layers, Heads and HeadSize of the KV. Defaults 2, 2, 8.
	Layers, Heads, HeadSize int
	// MaxModelTokens bounds prompt and answer. Default: what the pool holds.
	MaxModelTokens int
	// MaxBatchTokens is computed in a step at most; longer prompts are computed
	// in pieces. Default 2048.
	MaxBatchTokens int
	// MaxRunning requests at a time. Default 64.
	MaxRunning int
	// TokenCost is how long a computed token of a prompt takes, so that a hit
	// is visibly faster. Default 0.
	TokenCost time.Duration
	// Connector is the transfer config; nil computes everything here.
	Connector *connector.TransferConfig
	// NixlDirect lets two engines of this kind on one host copy around NIXL.
	NixlDirect bool
	// Library is NIXL. Default: what nixl.Load finds.
	Library *nixl.Library
	// PromptTokensDetails tells cached tokens in the usage of an answer.
	PromptTokensDetails bool
	// Getenv reads the environment: the mode of transfers where the config
	// leaves it open, NIXL's side channel, the interval of reports. Default:
	// nothing is set.
	Getenv func(string) string
	// Logger: default discards.
	Logger *slog.Logger

	// links replaces the connectors, for tests.
	links func(e *Engine) (multi.Scheduler, multi.Worker)
}

func (o *Options) setDefaults() {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if o.Model == "" {
		o.Model = "sim"
	}
	def(&o.BlockTokens, 16)
	def(&o.Blocks, 1024)
	def(&o.Layers, 2)
	def(&o.Heads, 2)
	def(&o.HeadSize, 8)
	def(&o.MaxModelTokens, (o.Blocks-1)*o.BlockTokens)
	def(&o.MaxBatchTokens, 2048)
	def(&o.MaxRunning, 64)
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// names that clients may give, the first of which is told.
func (o *Options) names() []string {
	if o.ServedName != "" {
		return []string{o.ServedName}
	}
	return []string{o.Model}
}

var errOptions = errors.New("simengine: bad option")

func (o *Options) check() error {
	var errs []error
	for name, v := range map[string]int{
		"block size": o.BlockTokens, "layers": o.Layers, "heads": o.Heads, "head size": o.HeadSize, "batch": o.MaxBatchTokens, "running requests": o.MaxRunning,
	} {
		if v < 1 {
			errs = append(errs, fmt.Errorf("%w: %s must be at least 1, got %d", errOptions, name, v))
		}
	}
	if o.Blocks < 2 {
		errs = append(errs, fmt.Errorf("%w: at least 2 blocks are needed, got %d", errOptions, o.Blocks))
	}
	if o.MaxModelTokens < 2 || o.MaxModelTokens > (o.Blocks-1)*o.BlockTokens {
		errs = append(errs, fmt.Errorf("%w: the pool holds %d tokens of a request, the longest may have %d", errOptions, (o.Blocks-1)*o.BlockTokens, o.MaxModelTokens))
	}
	return errors.Join(errs...)
}
