package httpapi

import (
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Server is what the surface needs from the server behind it. Methods are called
// from many goroutines.
type Server interface {
	// Health reports whether the server works, and if not, why and what to do.
	Health() (ok bool, reason string)
	// Status returns the tree of /status, usually a [Status].
	Status() any
	// ClearL1 drops the objects of L1 that nobody holds; with force, all of them.
	ClearL1(force bool)
	// WriteMetrics writes Prometheus text.
	WriteMetrics(w io.Writer)
	// Config returns the tree of /config.
	Config() any

	// DeleteL1 removes objects by key: those that nobody holds, and with force
	// all of them. Keys that are not there count nowhere.
	DeleteL1(keys []ObjectKey, force bool) (deleted, skipped int)
	// ListL1 lists resident objects, of one model unless it is "". after is 0 or
	// what the last call returned as next; next is 0 at the end. Pages may be
	// short.
	ListL1(model string, after uint32, limit int) (page []Object, next uint32)
	// Prefetch looks for the chunks of a prompt; no chunks means that it is
	// shorter than one. The error is [ErrNoLayout], or says what is wrong with
	// the request.
	Prefetch(r PrefetchRequest) (id string, chunks int, err error)
	// PrefetchResult tells what became of a prefetch, once.
	PrefetchResult(id string) (PrefetchResult, bool)

	// SetQuota, Quota, DeleteQuota and Quotas keep a limit per salt. The error
	// says why no limit can be set.
	SetQuota(salt string, limitBytes int64) error
	Quota(salt string) Quota
	DeleteQuota(salt string) bool
	Quotas() []Quota

	// PeriodicThreads lists the background tasks.
	PeriodicThreads() []PeriodicThread
}

// Options configures a handler. The zero value works.
type Options struct {
	// Version is what /lmc_version tells, and /version in front of the commit. Default "unknown".
	Version string
	// Commit is what /commit_id tells. Default "unknown".
	Commit string
	// MaxBodyBytes bounds a request body; a larger one is answered 413. Default 1 MiB.
	MaxBodyBytes int64
	// OnPanic is told of a handler that panicked; the request is answered 500. May be nil.
	OnPanic func(where string)
	// Logger gets a line per request at DEBUG and one per panic. Default discards.
	Logger *slog.Logger
	// LogLevel is what /loglevel tells and sets. Default: a level that nothing hears.
	LogLevel *slog.LevelVar
}

// NewHandler returns the handler of every route.
func NewHandler(s Server, o Options) http.Handler {
	if o.Version == "" {
		o.Version = "unknown"
	}
	if o.Commit == "" {
		o.Commit = "unknown"
	}
	if o.MaxBodyBytes <= 0 {
		o.MaxBodyBytes = 1 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.LogLevel == nil {
		o.LogLevel = new(slog.LevelVar)
	}
	if o.OnPanic == nil {
		o.OnPanic = func(string) {}
	}
	a := &api{server: s, opts: o}
	a.routes = a.table()
	sameSite := http.NewCrossOriginProtection()
	sameSite.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeDetail(w, http.StatusForbidden, crossSite)
	}))
	return a.contain(sameSite.Handler(http.HandlerFunc(a.serve)))
}

// crossSite is the answer to a page of somebody else's that uses the browser of
// somebody here.
const crossSite = "requests that a browser sends for another site are refused"

// NewServer returns an HTTP server for h with a limit on everything a client can
// drag out or blow up. Its own complaints go to log, which may be nil.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// api is the state shared by the handlers.
type api struct {
	server Server
	opts   Options
	routes []route
}

// route is one row of the table: a path, whose segments in braces match
// anything, and its handlers by method.
type route struct {
	path    string
	methods map[string]http.HandlerFunc
	maxBody int64 // 0: Options.MaxBodyBytes
}

// match reports whether path is the route's, and sets the path values on r if
// r is not nil.
func (rt route) match(path string, r *http.Request) bool {
	want, got := strings.Split(rt.path, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return false
	}
	for i, w := range want {
		if strings.HasPrefix(w, "{") {
			if got[i] == "" {
				return false
			}
		} else if w != got[i] {
			return false
		}
	}
	if r == nil {
		return true
	}
	for i, w := range want {
		if strings.HasPrefix(w, "{") {
			r.SetPathValue(strings.Trim(w, "{}"), got[i])
		}
	}
	return true
}

// serve finds the route and calls its handler. The standard multiplexer is not
// used because it answers HEAD, cleans paths with 301, and speaks plain text.
func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, rt := range a.routes {
		if !rt.match(r.URL.Path, nil) {
			continue
		}
		if h, ok := rt.methods[r.Method]; ok {
			rt.match(r.URL.Path, r)
			r.Body = http.MaxBytesReader(w, r.Body, max(a.opts.MaxBodyBytes, rt.maxBody))
			h(w, r)
			return
		}
		for m := range rt.methods {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) > 0 {
		slices.Sort(allowed)
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
		return
	}
	if bare := strings.TrimRight(r.URL.Path, "/"); bare != r.URL.Path && a.known(bare) {
		target := *r.URL
		target.Path, target.RawPath = bare, ""
		// Only path and query: a path that is one of ours cannot lead to another host.
		w.Header().Set("Location", target.RequestURI())
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	writeDetail(w, http.StatusNotFound, "Not Found")
}

func (a *api) known(path string) bool {
	return slices.ContainsFunc(a.routes, func(rt route) bool { return rt.match(path, nil) })
}

// contain logs each request at DEBUG and turns a panic into an answer, so that
// one bad request costs its sender an error and nobody anything else.
func (a *api) contain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w}
		defer func() {
			if p := recover(); p != nil {
				a.opts.OnPanic("http")
				a.opts.Logger.Error("http handler panicked", "method", r.Method, "path", r.URL.Path,
					"err", p, "stack", string(debug.Stack()))
				if rec.status == 0 {
					writeText(rec, http.StatusInternalServerError, "Internal Server Error")
				}
			}
			a.opts.Logger.Debug("http request", "method", r.Method, "path", r.URL.Path,
				"status", rec.status, "dur", time.Since(start))
		}()
		next.ServeHTTP(rec, r)
	})
}

// recorder remembers the status that was sent.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements [http.ResponseWriter].
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap lets [http.ResponseController] reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
