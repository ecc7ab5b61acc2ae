package demo

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/simengine"
)

// leaseLimit is how soon the prefiller's blocks must be free again after an
// answer: well before the lease of 30 s, so that only the decoder's
// notification can have freed them.
const leaseLimit = 5 * time.Second

// report prints what was checked.
type report struct {
	out    io.Writer
	failed int
}

// check prints one line, and whether what was seen is what was wanted.
func (r *report) check(ok bool, title, format string, args ...any) bool {
	word := "PASS"
	if !ok {
		word = "FAIL"
		r.failed++
	}
	fmt.Fprintf(r.out, "%s  %-34s %s\n", word, title, fmt.Sprintf(format, args...))
	return ok
}

func (r *report) section(title string) { fmt.Fprintf(r.out, "\n%s\n", title) }

// verifier runs the steps of the deployment page.
type verifier struct {
	*report
	t *topology
	c *client
	// single is an engine that has never heard of connectors: what it says is
	// what everybody must say.
	single *simengine.Engine
}

// newSingle makes the engine that answers are compared with.
func newSingle(ctx context.Context) (*simengine.Engine, error) {
	return simengine.New(ctx, simengine.Options{
		Model: modelName, BlockTokens: blockTokens, Blocks: 1024, Layers: layers, Heads: kvHeads, HeadSize: headSize,
	})
}

// truth is the single engine's answer.
func (v *verifier) truth(ctx context.Context, prompt string) string {
	ids := make([]uint32, len(prompt))
	for i := range ids {
		ids[i] = uint32(prompt[i])
	}
	a, err := v.single.Complete(ctx, simengine.Completion{Tokens: ids, MaxTokens: answerLen}, nil)
	if err != nil {
		return "the single engine failed: " + err.Error()
	}
	out := make([]byte, len(a.Tokens))
	for i, t := range a.Tokens {
		out[i] = byte(t)
	}
	return string(out)
}

// The prompts. A token is a byte.
const (
	pagePrompt = "The capital of France is"
	longTokens = 700
	answerLen  = 16
)

// prompt is text of so many tokens that nothing else begins with.
func prompt(seed, tokens int) string {
	var b strings.Builder
	for i := 0; b.Len() < tokens; i++ {
		fmt.Fprintf(&b, "[%d:%d] ", seed, i*7919+seed)
	}
	return b.String()[:tokens]
}

// ask sends a completion through the router and complains about errors.
func (v *verifier) ask(ctx context.Context, what, path, prompt string, stream bool) (answer, bool) {
	a, err := v.c.ask(ctx, v.t.routerURL, path, prompt, answerLen, stream)
	if err != nil || a.status != 200 {
		v.check(false, what, "HTTP %d after %s: %s %v", a.status, round(a.took), firstLine(a.body), err)
		return a, false
	}
	return a, true
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond / 10) }

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

// all runs the four steps of the page, in its order.
func (v *verifier) all(ctx context.Context) {
	v.routing(ctx)
	v.transfer(ctx)
	v.offload(ctx)
	v.hitRate(ctx)
}

// routing: the response id is stamped with the workers, and the text is right.
func (v *verifier) routing(ctx context.Context) {
	v.section("1. P/D routing: the response id is stamped with the workers")
	host := func(url string) string { return regexp.QuoteMeta(strings.TrimPrefix(url, "http://")) }
	stamp := regexp.MustCompile(`^(chat)?cmpl-___prefill_addr_` + host(v.t.prefillURL) + `___decode_addr_` + host(v.t.decodeURL) + `_[0-9a-f]{32}$`)
	if a, ok := v.ask(ctx, "completion", "/v1/completions", pagePrompt, false); ok {
		v.check(stamp.MatchString(a.id), "id of a completion", "%s", a.id)
		want := v.truth(ctx, pagePrompt)
		v.check(a.text == want && a.reason == "length", "text is the single engine's", "%q, finish_reason %s", a.text, a.reason)
	}
	if a, ok := v.ask(ctx, "chat", "/v1/chat/completions", pagePrompt, false); ok {
		v.check(stamp.MatchString(a.id), "id of a chat", "%s", a.id)
		b, ok := v.ask(ctx, "streamed chat", "/v1/chat/completions", pagePrompt, true)
		v.check(ok && a.text == b.text && stamp.MatchString(b.id), "streamed chat, same text", "%q", b.text)
	}
}

var (
	transferLine = regexp.MustCompile(`KV Transfer metrics: NixlConnector=\{'Num successful transfers': (\d+)[^}]*\}`)
	hitRateLine  = regexp.MustCompile(`[^g]Prefix cache hit rate: ([0-9.]+)%, External prefix cache hit rate: ([0-9.]+)%`)
)

// transfer: the decoder pulls the prompt by NIXL, and the prefiller's blocks are
// free once it has.
func (v *verifier) transfer(ctx context.Context) {
	v.section("2. NIXL transfer: the decoder reads the prompt's KV from the prefiller")
	count := func() float64 { return v.c.metric(ctx, v.t.decodeURL, "vllm:nixl_bytes_transferred_count") }
	sum := func() float64 { return v.c.metric(ctx, v.t.decodeURL, "vllm:nixl_bytes_transferred_sum") }
	from, transfers, bytes := v.t.decode.size(), count(), sum()
	a, ok := v.ask(ctx, "completion", "/v1/completions", prompt(1, longTokens), false)
	if !ok {
		return
	}
	replied := time.Now()
	freed := eventually(ctx, leaseLimit, func() bool { return v.c.metric(ctx, v.t.prefillURL, "vllm:kv_cache_usage_perc") == 0 })
	took := time.Since(replied)
	want := v.truth(ctx, prompt(1, longTokens))
	v.check(a.text == want, "text is the single engine's", "%q (%d tokens of prompt, %s)", a.text, a.tokens, round(a.took))
	blocks := (longTokens + blockTokens - 1) / blockTokens
	v.check(count() == transfers+1 && sum() == bytes+float64(blocks*layers*pageBytes), "transfers counted on the decoder",
		"+%.0f, +%.0f bytes (%d blocks x %d layers x %d bytes)", count()-transfers, sum()-bytes, blocks, layers, pageBytes)
	failed := v.c.metric(ctx, v.t.decodeURL, "vllm:nixl_num_failed_transfers_total")
	v.check(failed == 0, "none failed", "%.0f failed", failed)
	line := ""
	v.check(eventually(ctx, leaseLimit, func() bool {
		text, err := v.t.decode.output(from)
		line = transferLine.FindString(text)
		return err == nil && line != ""
	}), "the decoder's log tells of it", "%.120s…", line)
	expired := v.c.metric(ctx, v.t.prefillURL, "vllm:nixl_num_kv_expired_reqs_total")
	v.check(freed && expired == 0, "prefiller's blocks freed by it", "%s after the answer, %.0f leases expired (a lease is 30 s)", round(took), expired)
}

// offload: whole chunks are stored in the prefiller's server, and nothing else.
func (v *verifier) offload(ctx context.Context) {
	v.section("3. LMCache offload: total_object_count of the prefiller's server grows")
	objects := func() int { return v.c.objects(ctx, v.t.prefillServerHTTP) }
	for i, tokens := range []int{255, 256, 700, 1024} {
		before := objects()
		if _, ok := v.ask(ctx, "completion", "/v1/completions", prompt(10+i, tokens), false); !ok {
			return
		}
		want := before + tokens/chunkTokens
		grown := eventually(ctx, leaseLimit, func() bool { return objects() == want })
		if tokens < chunkTokens { // nothing comes later either
			grown = sleep(ctx, 300*time.Millisecond) == nil && objects() == want
		}
		v.check(grown, fmt.Sprintf("prompt of %d tokens", tokens), "%d -> %d objects, %d chunks of %d tokens", before, objects(), tokens/chunkTokens, chunkTokens)
	}
	v.check(v.c.objects(ctx, v.t.decodeServerHTTP) == 0, "decoder's server", "%d objects: the decoder stores what it computes itself, and no prompt", v.c.objects(ctx, v.t.decodeServerHTTP))
}

// hitRate: what the prefiller's pool has dropped comes back from LMCache.
func (v *verifier) hitRate(ctx context.Context) {
	v.section("4. LMCache hit rate: External prefix cache hit rate of the prefiller")
	hits := func() float64 { return v.c.metric(ctx, v.t.prefillURL, "vllm:external_prefix_cache_hits_total") }
	text := prompt(20, longTokens)
	first, ok := v.ask(ctx, "completion", "/v1/completions", text, false)
	if !ok {
		return
	}
	before := hits()
	again, ok := v.ask(ctx, "completion", "/v1/completions", text, false)
	if !ok {
		return
	}
	v.check(hits() == before && again.text == first.text, "while the pool holds the prompt", "+%.0f hits, %s (%s when computed)", hits()-before, round(again.took), round(first.took))
	// Other prompts push it out of the pool.
	fill := v.t.shape.prefillBlocks*blockTokens/1000 + 1
	for i := range fill {
		if _, ok := v.ask(ctx, "filler", "/v1/completions", prompt(100+i, 1000), false); !ok {
			return
		}
	}
	from := v.t.prefill.size()
	before = hits()
	spilled, ok := v.ask(ctx, "completion", "/v1/completions", text, false)
	if !ok {
		return
	}
	want := float64(longTokens / chunkTokens * chunkTokens)
	v.check(hits()-before == want, "after the pool has spilled", "+%.0f tokens from LMCache, %s", hits()-before, round(spilled.took))
	v.check(spilled.text == first.text && spilled.text == v.truth(ctx, text), "same text", "%q", spilled.text)
	rate := ""
	v.check(eventually(ctx, leaseLimit, func() bool {
		log, err := v.t.prefill.output(from)
		m := hitRateLine.FindStringSubmatch(log)
		if m != nil {
			rate = m[2]
		}
		return err == nil && m != nil && m[2] != "0.0"
	}), "the prefiller's log tells of it", "External prefix cache hit rate: %s%%", rate)
}
