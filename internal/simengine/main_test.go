package simengine

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

// output collects what a command prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func TestCommand(t *testing.T) {
	url, _ := startServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr output
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, []string{
			"serve", "my/model", "--port", "0", "--token-cost", "0", "--kv-transfer-config",
			fmt.Sprintf(`{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"lmcache.mp.server_urls":%q}}`, url),
		}, &stdout, &stderr)
	}()
	testutil.Eventually(t, "the engine", func() bool { return strings.Contains(stdout.String(), "serves http") })
	_, base, _ := strings.Cut(strings.TrimSpace(stdout.String()), "serves ")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/models", nil)
	require.NoError(t, err)
	r, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	require.NoError(t, r.Body.Close())
	require.Equal(t, 200, r.StatusCode)
	cancel()
	require.Zero(t, testutil.Receive(t, "the end", status), stderr.String())
}

func TestCommandLines(t *testing.T) {
	f := func(want int, says string, args ...string) {
		t.Helper()
		var stdout, stderr output
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got := run(ctx, args, &stdout, &stderr)
		if got != want || !strings.Contains(stderr.String(), says) {
			t.Errorf("%q: got %d and %q, want %d and %q", args, got, stderr.String(), want, says)
		}
	}
	f(0, "usage", "--help")
	f(2, "no-such-flag", "m", "--no-such-flag")
	f(2, "more", "m", "--port", "0", "more")
	f(2, "kv_role", "m", "--kv-transfer-config", `{"kv_connector":"X"}`)
	f(1, "block", "m", "--num-gpu-blocks-override", "1", "--port", "0")
}
