package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The server that throws everything away is one to the driver, wherever it reads to.
func TestDrivesTheSink(t *testing.T) {
	t.Run("into a buffer", func(t *testing.T) { driveSink(t, &config{URL: "tcp://127.0.0.1:*"}) })
	t.Run("into a span", func(t *testing.T) { driveSink(t, &config{URL: "tcp://127.0.0.1:*", sinkMB: 8}) })
}

func driveSink(t *testing.T, c *config) {
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- runSink(ctx, c, w) }()
	line := make([]byte, 256)
	n, err := r.Read(line)
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, r) }()
	url := line[strings.Index(string(line), "tcp://"):n]
	for _, ops := range []string{"store", "retrieve", "lookup", "noop"} {
		got, code := drive(t, "--url", strings.TrimSpace(string(url)), "--mode", "pickle", "--ops", ops, "--verify-every", "0", "--prefill", "1", "--clear")
		require.Zero(t, code, got.Errors)
		require.Positive(t, got.Ops[ops].N, ops)
		require.Zero(t, got.Counters["retrieve_failed"]+got.Counters["store_failed"])
	}
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, w.Close())
}

// A pool that is cleared after the warm-up is empty, and the client goes on.
func TestClearAgain(t *testing.T) {
	url, _ := startServer(t, "shm")
	got, code := drive(t, "--url", url, "--ops", "store", "--layout", "tiny", "--warmup", "0.1", "--clear-again")
	require.Zero(t, code, got.Errors)
	require.Positive(t, got.Ops["store"].N)
}
