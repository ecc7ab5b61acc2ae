package simengine

import (
	"context"
	"fmt"
	"io"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/connector/multi"
)

func (e *Engine) nixl(context.Context, *connector.TransferConfig) (multi.Scheduler, multi.Worker, error) {
	return nil, nil, fmt.Errorf("%w: %s is not simulated yet", errOptions, connector.NixlConnector)
}

func (e *Engine) nixlMetrics(io.Writer, string) {}

func (e *Engine) nixlStats() []multi.ChildStats { return nil }
