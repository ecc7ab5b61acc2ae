package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The load: prompts share long beginnings, of which the prefiller's pool holds
// a third, and end in something of their own.
const (
	loadPrefixes     = 96
	loadPrefixTokens = 1024
	loadTailTokens   = 64
	loadAnswer       = 8
)

func loadShape(noLMCache bool) shape {
	return shape{layers: 1, prefillBlocks: 2048, decodeBlocks: 6144, tokenCost: 200 * time.Microsecond, l1GB: "0.5", noLMCache: noLMCache}
}

// loadPrompts are the same in every run.
func loadPrompts(n int) []string {
	r := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // a load, not a secret
	out := make([]string, n)
	for i := range out {
		out[i] = prompt(1000+r.IntN(loadPrefixes), loadPrefixTokens) + prompt(5000+i, loadTailTokens)
	}
	return out
}

// measured is what a run of the load has shown.
type measured struct {
	texts           []string
	took            time.Duration
	latency         []time.Duration // sorted
	local, external float64         // tokens per prompt token of the prefiller, in percent
	transfers       float64
}

func runLoad(ctx context.Context, s settings, self string, p parts, out io.Writer) error {
	fmt.Fprintf(out, "%d requests, %d at a time, through the router: %d of %d shared beginnings of %d tokens and %d tokens of their own, %d tokens of answer.\n",
		s.requests, s.parallel, min(s.requests, loadPrefixes), loadPrefixes, loadPrefixTokens, loadTailTokens, loadAnswer)
	shape := loadShape(false)
	fmt.Fprintf(out, "The prefiller's pool holds %d tokens, the beginnings are %d; a computed token costs %s. Each beginning was sent once before.\n\n",
		shape.prefillBlocks*blockTokens, loadPrefixes*loadPrefixTokens, shape.tokenCost)
	fmt.Fprintf(out, "%-16s %10s %10s %10s %12s %12s %10s\n", "", "requests/s", "p50", "p99", "pool hits", "LMCache hits", "transfers")
	var runs []measured
	for _, no := range []bool{true, false} {
		title := "with LMCache"
		if no {
			title = "without LMCache"
		}
		m, err := loadOnce(ctx, s, &topology{dir: s.logs, self: self, parts: p, shape: loadShape(no)})
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
		fmt.Fprintf(out, "%-16s %10.1f %10s %10s %11.1f%% %11.1f%% %10.0f\n", title, float64(s.requests)/m.took.Seconds(),
			m.quantile(0.5), m.quantile(0.99), m.local, m.external, m.transfers)
		runs = append(runs, m)
	}
	if !slices.Equal(runs[0].texts, runs[1].texts) {
		return fmt.Errorf("%w: the texts with LMCache and without differ", errChecks)
	}
	fmt.Fprintf(out, "\nboth gave the same %d texts\n", s.requests)
	return nil
}

func (m *measured) quantile(q float64) time.Duration {
	i := min(len(m.latency)-1, int(q*float64(len(m.latency))))
	return m.latency[i].Round(time.Millisecond)
}

func loadOnce(ctx context.Context, s settings, t *topology) (m measured, err error) {
	defer t.stop()
	if err := t.start(ctx); err != nil {
		return m, err
	}
	c := newClient()
	defer c.close()
	warm := make([]string, loadPrefixes)
	for i := range warm {
		warm[i] = prompt(1000+i, loadPrefixTokens)
	}
	if _, _, err := flood(ctx, c, t.routerURL, warm, s.parallel); err != nil {
		return m, err
	}
	count := func(base, name string) float64 { return c.metric(ctx, base, name) }
	local, external := count(t.prefillURL, "vllm:prefix_cache_hits_total"), count(t.prefillURL, "vllm:external_prefix_cache_hits_total")
	all, transfers := count(t.prefillURL, "vllm:prompt_tokens_total"), count(t.decodeURL, "vllm:nixl_bytes_transferred_count")
	begin := time.Now()
	m.texts, m.latency, err = flood(ctx, c, t.routerURL, loadPrompts(s.requests), s.parallel)
	m.took = time.Since(begin)
	slices.Sort(m.latency)
	all = (count(t.prefillURL, "vllm:prompt_tokens_total") - all) / 100
	m.local = (count(t.prefillURL, "vllm:prefix_cache_hits_total") - local) / all
	m.external = (count(t.prefillURL, "vllm:external_prefix_cache_hits_total") - external) / all
	m.transfers = count(t.decodeURL, "vllm:nixl_bytes_transferred_count") - transfers
	return m, err
}

// flood sends prompts, so many at a time, and returns texts and latencies in
// their order.
func flood(ctx context.Context, c *client, base string, prompts []string, parallel int) ([]string, []time.Duration, error) {
	texts, took, errs := make([]string, len(prompts)), make([]time.Duration, len(prompts)), make([]error, len(prompts))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(parallel, len(prompts)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(prompts) {
					return
				}
				a, err := c.ask(ctx, base, "/v1/completions", prompts[i], loadAnswer, false)
				if err == nil && a.status != http.StatusOK {
					err = fmt.Errorf("HTTP %d: %s", a.status, firstLine(a.body))
				}
				texts[i], took[i], errs[i] = a.text, a.took, err
			}
		})
	}
	wg.Wait()
	return texts, took, errors.Join(errs...)
}
