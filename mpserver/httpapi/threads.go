package httpapi

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// Levels of a periodic task (lmcache 0.5.6, v1/periodic_thread.py).
const (
	LevelCritical = "critical"
	LevelHigh     = "high"
	LevelMedium   = "medium"
	LevelLow      = "low"
)

var threadLevels = []string{LevelCritical, LevelHigh, LevelMedium, LevelLow}

// PeriodicThread is a background task that runs again and again.
type PeriodicThread struct {
	Name     string
	Level    string
	Interval time.Duration
	Running  bool
	// Started is when the task began to exist; LastRun is zero before the first run.
	Started      time.Time
	LastRun      time.Time
	LastDuration time.Duration
	LastMessage  string
	Runs, Failed int64
}

// active reports whether the task has run lately: within three intervals, as in
// the reference, and a grace for a busy machine.
func (p *PeriodicThread) active(now time.Time) bool {
	last := p.LastRun
	if last.Before(p.Started) {
		last = p.Started
	}
	return p.Running && now.Sub(last) < 3*p.Interval+time.Second
}

// threadStatus is a task in the reference's JSON.
type threadStatus struct {
	Name        string         `json:"name"`
	Level       string         `json:"level"`
	Interval    Float          `json:"interval"`
	InitWait    Float          `json:"init_wait"`
	IsRunning   bool           `json:"is_running"`
	IsActive    bool           `json:"is_active"`
	LastRunTime Float          `json:"last_run_time"`
	LastRunAgo  *Float         `json:"last_run_ago"`
	TotalRuns   int64          `json:"total_runs"`
	FailedRuns  int64          `json:"failed_runs"`
	SuccessRate *Float         `json:"success_rate"`
	LastSummary *threadSummary `json:"last_summary"`
}

type threadSummary struct {
	Timestamp  Float             `json:"timestamp"`
	DurationMS Float             `json:"duration_ms"`
	Success    bool              `json:"success"`
	Message    string            `json:"message"`
	ExtraInfo  map[string]string `json:"extra_info"`
}

func unixSeconds(t time.Time) Float { return Float(float64(t.UnixNano()) / 1e9) }

func (p *PeriodicThread) status(now time.Time) threadStatus {
	s := threadStatus{
		Name: p.Name, Level: p.Level, Interval: Float(p.Interval.Seconds()), IsRunning: p.Running, IsActive: p.active(now),
		TotalRuns: p.Runs, FailedRuns: p.Failed,
	}
	if !p.LastRun.IsZero() {
		ago := Float(now.Sub(p.LastRun).Seconds())
		s.LastRunTime, s.LastRunAgo = unixSeconds(p.LastRun), &ago
		s.LastSummary = &threadSummary{
			Timestamp: s.LastRunTime, DurationMS: Float(float64(p.LastDuration) / float64(time.Millisecond)),
			Success: true, Message: p.LastMessage, ExtraInfo: map[string]string{},
		}
	}
	if p.Runs > 0 {
		rate := Float(float64(p.Runs-p.Failed) / float64(p.Runs) * 100)
		s.SuccessRate = &rate
	}
	return s
}

// levelCount and threadsSummary are the head of GET /periodic-threads.
type (
	levelCount struct {
		Total   int `json:"total"`
		Running int `json:"running"`
		Active  int `json:"active"`
	}
	threadsSummary struct {
		TotalCount   int                   `json:"total_count"`
		RunningCount int                   `json:"running_count"`
		ActiveCount  int                   `json:"active_count"`
		ByLevel      map[string]levelCount `json:"by_level"`
	}
)

func (a *api) periodicThreads(w http.ResponseWriter, r *http.Request) {
	level := r.URL.Query().Get("level")
	runningOnly, bad1 := queryBool(r, "running_only")
	activeOnly, bad2 := queryBool(r, "active_only")
	var problems []invalid
	for _, bad := range []*invalid{bad1, bad2} {
		if bad != nil {
			problems = append(problems, *bad)
		}
	}
	if problems != nil {
		writeInvalid(w, problems...)
		return
	}
	if level != "" && !slices.Contains(threadLevels, strings.ToLower(level)) {
		writeError(w, http.StatusBadRequest, "Invalid level: "+level+". Valid values: "+strings.Join(threadLevels, ", "))
		return
	}
	now := time.Now()
	sum := threadsSummary{ByLevel: map[string]levelCount{}}
	for _, l := range threadLevels {
		sum.ByLevel[l] = levelCount{}
	}
	list := []threadStatus{}
	for _, p := range a.server.PeriodicThreads() {
		s := p.status(now)
		n := sum.ByLevel[p.Level]
		n.Total++
		sum.TotalCount++
		if s.IsRunning {
			n.Running++
			sum.RunningCount++
		}
		if s.IsActive {
			n.Active++
			sum.ActiveCount++
		}
		sum.ByLevel[p.Level] = n
		if (level == "" || p.Level == strings.ToLower(level)) && (s.IsRunning || !runningOnly) && (s.IsActive || !activeOnly) {
			list = append(list, s)
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"summary": sum, "threads": list})
}

func (a *api) periodicThread(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	for _, p := range a.server.PeriodicThreads() {
		if p.Name == name {
			writeJSON(w, http.StatusOK, p.status(time.Now()))
			return
		}
	}
	writeError(w, http.StatusNotFound, "Thread not found: "+name)
}

// illThread is an entry of GET /periodic-threads-health.
type illThread struct {
	Name       string `json:"name"`
	Level      string `json:"level"`
	LastRunAgo *Float `json:"last_run_ago"`
	Interval   Float  `json:"interval"`
}

func (a *api) periodicHealth(w http.ResponseWriter, _ *http.Request) {
	ill := []illThread{}
	now := time.Now()
	for _, p := range a.server.PeriodicThreads() {
		if s := p.status(now); (p.Level == LevelCritical || p.Level == LevelHigh) && s.IsRunning && !s.IsActive {
			ill = append(ill, illThread{p.Name, p.Level, s.LastRunAgo, s.Interval})
		}
	}
	writeJSON(w, http.StatusOK, struct {
		Healthy   bool        `json:"healthy"`
		Count     int         `json:"unhealthy_count"`
		Unhealthy []illThread `json:"unhealthy_threads"`
	}{len(ill) == 0, len(ill), ill})
}

// stackHead is the first line of a goroutine's stack.
var stackHead = regexp.MustCompile(`^goroutine (\d+) `)

// threads writes the stack of every goroutine, or of those whose stack holds a
// word or that have a number. It stops the program for as long as it takes to
// look: well below a second.
func (a *api) threads(w http.ResponseWriter, r *http.Request) {
	name, id := strings.ToLower(r.URL.Query().Get("name")), r.URL.Query().Get("thread_id")
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 2) // a buffer does not fail
	var kept []string
	for stack := range strings.SplitSeq(strings.TrimSpace(all.String()), "\n\n") {
		head := stackHead.FindStringSubmatch(stack)
		if name != "" && !strings.Contains(strings.ToLower(stack), name) || id != "" && (head == nil || head[1] != id) {
			continue
		}
		kept = append(kept, stack)
	}
	writeText(w, http.StatusOK, strings.Join(kept, "\n\n")+fmt.Sprintf("\n\n\n=== Thread Summary ===\nTotal threads: %d\n", len(kept)))
}

// pythonLevels is what the reference's loggers call their levels.
var pythonLevels = map[string]slog.Level{
	"DEBUG": slog.LevelDebug, "INFO": slog.LevelInfo, "WARNING": slog.LevelWarn, "WARN": slog.LevelWarn,
	"ERROR": slog.LevelError, "CRITICAL": slog.LevelError + 4, "FATAL": slog.LevelError + 4,
}

func levelName(l slog.Level) string {
	for _, name := range []string{"DEBUG", "INFO", "WARNING", "ERROR"} {
		if l <= pythonLevels[name] {
			return name
		}
	}
	return "CRITICAL"
}

// ourLogger is the name of the one logger that there is.
const ourLogger = "lmcache"

// logLevel tells or sets the level of the log. There is one: whatever logger is
// named, it is meant.
func (a *api) logLevel(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	name, level := q.Get("logger_name"), q.Get("level")
	switch {
	case name == "" && level == "":
		writeText(w, http.StatusOK, "=== Loggers and Levels ===\n"+ourLogger+": "+levelName(a.opts.LogLevel.Level())+"\n")
	case name == "":
		writeJSON(w, http.StatusOK, nil) // as the reference
	case level == "":
		writeText(w, http.StatusOK, name+": "+levelName(a.opts.LogLevel.Level()))
	default:
		to, ok := pythonLevels[strings.ToUpper(level)]
		if !ok {
			writeText(w, http.StatusBadRequest, "Invalid log level: "+level)
			return
		}
		// It is a GET, in the reference, so the check for other sites' pages does not see it.
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
			writeDetail(w, http.StatusForbidden, crossSite)
			return
		}
		a.opts.LogLevel.Set(to)
		a.opts.Logger.Info("log level set", "level", levelName(to), "from", "http")
		writeText(w, http.StatusOK, "Set "+name+" level to "+strings.ToUpper(level)+" (including all handlers)")
	}
}
