package simengine

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// metric is one value under vLLM's name.
type metric struct {
	kind, name string
	value      float64
}

// metrics has the values of vLLM that a dashboard for KV transfers reads.
func (h *handler) metrics(w http.ResponseWriter, _ *http.Request) {
	s := h.e.Stats()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	counter := func(name string, v int64) metric { return metric{"counter", name + "_total", float64(v)} }
	gauge := func(name string, v float64) metric { return metric{"gauge", name, v} }
	labels := fmt.Sprintf("engine=%q,model_name=%q", "0", h.e.opts.names()[0])
	for _, m := range []metric{
		gauge("vllm:num_requests_running", float64(s.Running)),
		gauge("vllm:num_requests_waiting", float64(s.Waiting)),
		gauge("vllm:kv_cache_usage_perc", h.e.usage(s)),
		counter("vllm:prefix_cache_queries", s.PromptTokens),
		counter("vllm:prefix_cache_hits", s.LocalHits),
		counter("vllm:external_prefix_cache_queries", s.PromptTokens-s.LocalHits),
		counter("vllm:external_prefix_cache_hits", s.ExternalHits),
		counter("vllm:num_preemptions", s.Preempted),
		counter("vllm:prompt_tokens", s.PromptTokens),
		counter("vllm:generation_tokens", s.Generated),
	} {
		m.write(w, labels)
	}
	fmt.Fprintf(w, "# TYPE vllm:request_success_total counter\n")
	for _, r := range []struct {
		reason string
		n      int64
	}{{"length", s.Requests - s.Aborted - s.Failed - s.Running - s.Waiting}, {"abort", s.Aborted}, {"error", s.Failed}} {
		fmt.Fprintf(w, "vllm:request_success_total{%s,finished_reason=%q} %d\n", labels, r.reason, max(0, r.n))
	}
	h.e.linkMetrics(w, labels)
}

func (m metric) write(w io.Writer, labels string) {
	fmt.Fprintf(w, "# TYPE %s %s\n%s{%s} %s\n", m.name, m.kind, m.name, labels, strconv.FormatFloat(m.value, 'g', -1, 64))
}

// usage is the part of the pool that requests hold, from 0 to 1.
func (e *Engine) usage(s Stats) float64 { return float64(s.Blocks) / float64(e.opts.Blocks-1) }

// linkMetrics writes what the connectors count.
func (e *Engine) linkMetrics(w io.Writer, labels string) {
	if e.mp != nil {
		n := e.mp.Stats()
		const name = "vllm:lmcache_mp_lookup_duration_seconds"
		fmt.Fprintf(w, "# TYPE %s histogram\n%s_bucket{%s,le=\"+Inf\"} %d\n%s_sum{%s} %g\n%s_count{%s} %d\n",
			name, name, labels, n.Lookups, name, labels, n.LookupSeconds, name, labels, n.Lookups)
	}
	e.nixlMetrics(w, labels)
}
