package httpapi

import (
	"errors"
	"fmt"
	"net/http"
)

// PrefetchRequest asks that the chunks of a prompt be at hand in L1.
type PrefetchRequest struct {
	Model     string
	WorldSize int
	Tokens    []int64
	Salt      string
}

// PrefetchResult is what became of one, in objects: chunks times ranks times
// groups.
type PrefetchResult struct {
	FoundKeys, TotalKeys int
}

// ErrNoLayout is what the server says of a prefetch when no worker of the model
// and world size has registered.
var ErrNoLayout = errors.New("no layout registered")

// MaxPrefetchTokens is the reference's limit (lmcache 0.5.6,
// v1/multiprocess/cache_control/key_resolver.py).
const MaxPrefetchTokens = 1_000_000

// submitted is the answer of POST /cache/prefetches.
type submitted struct {
	RequestID string `json:"request_id,omitempty"`
	Chunks    int    `json:"chunks"`
	Status    string `json:"status"`
}

// submitPrefetch looks for a prompt's chunks. Without L2 there is nowhere to load
// them from: what L1 has of the prefix becomes recently used, and counts as found.
func (a *api) submitPrefetch(w http.ResponseWriter, r *http.Request) {
	in, ok := requireBody(w, r, dataclassBody)
	if !ok {
		return
	}
	req := PrefetchRequest{Model: in.text("model_name", true), WorldSize: int(in.integer("world_size", true))}
	for i, raw := range in.list("token_ids") {
		n, bad := readInt(raw, "body", "token_ids", i)
		if len(*in.problems) < maxListProblems {
			in.note(bad)
		}
		req.Tokens = append(req.Tokens, n)
	}
	req.Salt = in.text("cache_salt", false)
	source, bad := enumField(in.fields, "source_tier", "l2", "l1", "l2", "all")
	in.note(bad)
	target, bad := enumField(in.fields, "target_tier", "l1", "l1", "l2", "all")
	in.note(bad)
	if len(*in.problems) > 0 {
		writeInvalid(w, *in.problems...)
		return
	}
	if source != "l2" || target != "l1" {
		writeDetail(w, http.StatusBadRequest, fmt.Sprintf("unsupported prefetch direction '%s'->'%s'; only 'l2'->'l1'", source, target))
		return
	}
	id, chunks, err := a.server.Prefetch(req)
	switch {
	case errors.Is(err, ErrNoLayout):
		writeDetail(w, http.StatusServiceUnavailable, fmt.Sprintf(
			"no layout registered for model_name=%s world_size=%d; the model has not allocated KV cache on this node yet", quote(req.Model), req.WorldSize))
	case err != nil:
		writeDetail(w, http.StatusBadRequest, err.Error())
	case chunks == 0:
		writeJSON(w, http.StatusAccepted, submitted{Status: "noop"})
	default:
		writeJSON(w, http.StatusAccepted, submitted{id, chunks, "submitted"})
	}
}

// prefetched is the answer of GET /cache/prefetches/{id}.
type prefetched struct {
	RequestID string `json:"request_id"`
	Status    string `json:"status"`
	FoundKeys int    `json:"found_keys"`
	TotalKeys int    `json:"total_keys"`
}

// prefetchStatus tells the result, once.
func (a *api) prefetchStatus(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	got, ok := a.server.PrefetchResult(id)
	if !ok {
		writeDetail(w, http.StatusNotFound, "unknown prefetch request_id="+quote(id)+" (already completed or never submitted)")
		return
	}
	writeJSON(w, http.StatusOK, prefetched{id, "completed", got.FoundKeys, got.TotalKeys})
}
