package httpapi

import (
	"bytes"
	"net/http"
	"slices"
)

// table is every route. Rows of the reference that are not here are answered 404.
func (a *api) table() []route {
	get := func(path string, h http.HandlerFunc) route {
		return route{path: path, methods: map[string]http.HandlerFunc{http.MethodGet: h}}
	}
	post := func(path string, h http.HandlerFunc) route {
		return route{path: path, methods: map[string]http.HandlerFunc{http.MethodPost: h}}
	}
	text := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, v) }
	}
	list := []route{
		get("/", text(greeting{"ok", "LMCache HTTP API"})),
		get("/healthcheck", a.health),
		get("/status", a.status),
		get("/version", text(a.opts.Version+"-"+a.opts.Commit)),
		get("/lmc_version", text(a.opts.Version)),
		get("/commit_id", text(a.opts.Commit)),
		get("/metrics", a.metrics),
		post("/metrics/reset", a.resetMetrics),
		get("/config", a.config),
		post("/cache/clear", a.clear),
		post("/cache/checksums", a.checksums),
		{path: "/cache/objects", methods: map[string]http.HandlerFunc{http.MethodGet: a.listObjects, http.MethodDelete: a.deleteObjects}, maxBody: largeBody},
		{path: "/cache/prefetches", methods: map[string]http.HandlerFunc{http.MethodPost: a.submitPrefetch}, maxBody: largeBody},
		get("/cache/prefetches/{id}", a.prefetchStatus),
		get("/quota", a.listQuotas),
		{path: "/quota/{salt}", methods: map[string]http.HandlerFunc{http.MethodPut: a.setQuota, http.MethodGet: a.getQuota, http.MethodDelete: a.deleteQuota}},
		get("/periodic-threads", a.periodicThreads),
		get("/periodic-threads/{name}", a.periodicThread),
		get("/periodic-threads-health", a.periodicHealth),
		get("/threads", a.threads),
		get("/loglevel", a.logLevel),
	}
	return slices.Concat(list, a.tierRoutes(), a.docRoutes())
}

// largeBody bounds the bodies that hold many keys or tokens.
const largeBody = 32 << 20

// config tells the effective configuration, indented as the reference does.
func (a *api) config(w http.ResponseWriter, _ *http.Request) {
	writeIndented(w, http.StatusOK, a.server.Config())
}

// greeting is the answer of GET / (lmcache 0.5.6, v1/multiprocess/http_apis).
type greeting struct {
	Status  string `json:"status"`
	Service string `json:"service"`
}

// healthAnswer is the answer of GET /healthcheck.
type healthAnswer struct {
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
}

func (a *api) health(w http.ResponseWriter, _ *http.Request) {
	ok, reason := a.server.Health()
	if ok {
		writeJSON(w, http.StatusOK, healthAnswer{Status: "healthy"})
		return
	}
	if reason == "" {
		reason = "no reason given"
	}
	writeJSON(w, http.StatusServiceUnavailable, healthAnswer{"unhealthy", reason})
}

func (a *api) status(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, a.server.Status())
}

func (a *api) metrics(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	a.server.WriteMetrics(&b)
	// The reference leaves the version out; parsers since Prometheus 3 want it.
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_, _ = b.WriteTo(w) // the client may be gone: nobody else to tell
}

// resetMetrics answers as the reference, whose reset does not touch the series
// of this server either: counters that go back break every rate.
func (a *api) resetMetrics(w http.ResponseWriter, _ *http.Request) {
	writeText(w, http.StatusOK, "ok")
}

// cleared is the answer of POST /cache/clear.
type cleared struct {
	Status  string            `json:"status"`
	Cleared map[string]string `json:"cleared"`
}

// clear empties L1. It answers ok also when objects that somebody holds stay:
// /status tells what is left.
func (a *api) clear(w http.ResponseWriter, r *http.Request) {
	fields, ok := readObject(w, r, dataclassBody)
	if !ok {
		return
	}
	var problems []invalid
	tier, bad := enumField(fields, "tier", "l1", "l1", "l2", "all")
	if bad != nil {
		problems = append(problems, *bad)
	}
	force, bad := boolField(fields, "force")
	if bad != nil {
		problems = append(problems, *bad)
	}
	if len(problems) > 0 {
		writeInvalid(w, problems...)
		return
	}
	if tier != "l1" {
		writeDetail(w, http.StatusBadRequest, "tier '"+tier+"' not supported; only 'l1'")
		return
	}
	a.server.ClearL1(force)
	writeJSON(w, http.StatusOK, cleared{"ok", map[string]string{"tier": "l1"}})
}
