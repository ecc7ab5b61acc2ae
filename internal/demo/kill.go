package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// scenario is a part that dies.
type scenario struct {
	title string
	// lease and heartbeat are shorter than the defaults where the demo would
	// have to wait for them, in seconds.
	lease, heartbeat string
	run              func(ctx context.Context, v *verifier)
}

// scenarios by the word that --kill takes.
var scenarios = map[string]scenario{
	"prefill": {title: "the prefill engine dies", lease: "3", run: killPrefill},
	"decode":  {title: "the decode engine dies", lease: "3", run: killDecode},
	"server":  {title: "the prefiller's LMCache server dies", heartbeat: "1", run: killServer},
	"router":  {title: "the router dies", run: killRouter},
}

// boundedBy is how long a user may wait for an error.
const boundedBy = 20 * time.Second

// works checks that a request is served, with the right text.
func (v *verifier) works(ctx context.Context, title, base string, seed int) {
	p := prompt(seed, longTokens)
	a, err := v.c.ask(ctx, base, "/v1/completions", p, answerLen, false)
	if err != nil || a.status != http.StatusOK {
		v.check(false, title, "HTTP %d after %s: %s %v", a.status, round(a.took), firstLine(a.body), err)
		return
	}
	v.check(a.text == v.truth(ctx, p), title, "HTTP 200, %q after %s", a.text, round(a.took))
}

// refused checks that a request ends with an error, soon, and shows it.
func (v *verifier) refused(ctx context.Context, title, base string, seed int) {
	a, err := v.c.ask(ctx, base, "/v1/completions", prompt(seed, longTokens), answerLen, false)
	v.refusal(title, a, err)
}

func (v *verifier) refusal(title string, a answer, err error) {
	saw := fmt.Sprintf("HTTP %d: %s", a.status, firstLine(a.body))
	if err != nil {
		saw = err.Error()
	}
	v.check((err != nil || a.status >= http.StatusInternalServerError) && a.took < boundedBy, title, "after %s: %s", round(a.took), saw)
}

// again starts a process that was killed, where it was.
func (v *verifier) again(ctx context.Context, title string, start func(context.Context) error) bool {
	begin := time.Now()
	err := start(ctx)
	if err != nil {
		return v.check(false, title, "%v", err)
	}
	return v.check(true, title, "serves after %s", round(time.Since(begin)))
}

// post sends a body as it is.
func (c *client) post(ctx context.Context, url string, in any) (answer, error) {
	data, err := json.Marshal(in)
	if err != nil {
		return answer{}, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(string(data)))
	if err != nil {
		return answer{}, err
	}
	return c.do(q)
}

func killPrefill(ctx context.Context, v *verifier) {
	v.works(ctx, "before", v.t.routerURL, 1)
	// As the router does it, with the death between its two requests.
	text := prompt(2, longTokens)
	in := map[string]any{"model": modelName, "prompt": text, "max_tokens": 1, "kv_transfer_params": map[string]any{"do_remote_decode": true, "do_remote_prefill": false}}
	a, err := v.c.post(ctx, v.t.prefillURL+"/v1/completions", in)
	var said struct {
		Params map[string]any `json:"kv_transfer_params"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(a.body), &said)
	}
	if !v.check(err == nil && said.Params != nil, "prefill engine answered", "HTTP %d, remote_port %v", a.status, said.Params["remote_port"]) {
		return
	}
	v.t.prefill.kill()
	in["kv_transfer_params"], in["max_tokens"] = said.Params, answerLen
	a, err = v.c.post(ctx, v.t.decodeURL+"/v1/completions", in)
	v.refusal("dead before the decoder has read", a, err)
	failed := v.c.metric(ctx, v.t.decodeURL, "vllm:nixl_num_failed_transfers_total")
	v.check(failed > 0, "the decoder counts it", "vllm:nixl_num_failed_transfers %.0f", failed)
	v.refused(ctx, "a request through the router", v.t.routerURL, 3)
	v.works(ctx, "one to the decoder itself", v.t.decodeURL, 3)
	if v.again(ctx, "prefill engine started again", v.t.startPrefill) {
		v.recovers(ctx, 4)
	}
}

// recovers waits until the router sends requests again: the real one may have
// marked the worker.
func (v *verifier) recovers(ctx context.Context, seed int) {
	eventually(ctx, boundedBy, func() bool {
		a, err := v.c.ask(ctx, v.t.routerURL, "/v1/completions", "x", 1, false)
		return err == nil && a.status == http.StatusOK
	})
	v.works(ctx, "a request through the router", v.t.routerURL, seed)
}

func killDecode(ctx context.Context, v *verifier) {
	v.works(ctx, "before", v.t.routerURL, 1)
	v.t.decode.kill()
	v.refused(ctx, "a request through the router", v.t.routerURL, 2)
	held := v.c.metric(ctx, v.t.prefillURL, "vllm:kv_cache_usage_perc")
	v.check(held > 0, "its prompt's blocks are held", "%.1f%% of the prefiller's pool", 100*held)
	begin := time.Now()
	freed := eventually(ctx, boundedBy, func() bool { return v.c.metric(ctx, v.t.prefillURL, "vllm:kv_cache_usage_perc") == 0 })
	v.check(freed, "until their lease is over", "free after %s, %.0f leases expired (a lease is 3 s here, 30 s by default)",
		round(time.Since(begin)), v.c.metric(ctx, v.t.prefillURL, "vllm:nixl_num_kv_expired_reqs_total"))
	v.works(ctx, "a request to the prefiller itself", v.t.prefillURL, 3)
	if v.again(ctx, "decode engine started again", v.t.startDecode) {
		v.recovers(ctx, 4)
	}
}

func killServer(ctx context.Context, v *verifier) {
	v.works(ctx, "before", v.t.routerURL, 1)
	v.t.prefillServer.kill()
	v.works(ctx, "a new prompt", v.t.routerURL, 2)
	v.works(ctx, "a prompt that it had", v.t.routerURL, 1)
	if !v.again(ctx, "server started again", v.t.startServers) {
		return
	}
	// The engine finds it again by its heartbeat, and stores from then on.
	n, begin := 10, time.Now()
	stored := eventually(ctx, boundedBy, func() bool {
		n++
		v.c.ask(ctx, v.t.routerURL, "/v1/completions", prompt(n, longTokens), 1, false) //nolint:errcheck // the next line tells
		return v.c.objects(ctx, v.t.prefillServerHTTP) > 0 || sleep(ctx, 200*time.Millisecond) != nil
	})
	v.check(stored, "the engine stores there again", "%d objects %s after it was back (heartbeats come each second here, each 10 s by default)",
		v.c.objects(ctx, v.t.prefillServerHTTP), round(time.Since(begin)))
	v.works(ctx, "a prompt that it had", v.t.routerURL, n)
}

func killRouter(ctx context.Context, v *verifier) {
	v.works(ctx, "before", v.t.routerURL, 1)
	v.t.router.kill()
	v.refused(ctx, "a request to it", v.t.routerURL, 2)
	v.works(ctx, "one to the prefiller itself", v.t.prefillURL, 2)
	v.works(ctx, "one to the decoder itself", v.t.decodeURL, 2)
	if v.again(ctx, "router started again", v.t.startRouter) {
		v.recovers(ctx, 3)
	}
}
