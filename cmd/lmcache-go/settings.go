package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

// settings is a command line together with the environment and the defaults:
// every flag's value and who decided it.
type settings struct {
	rows   []row
	values map[string]value
	help   bool
}

// readSettings reads args and the environment: a flag wins over a variable, a
// variable over the default. The error is everything that cannot be read; the
// settings are those without it.
func readSettings(args []string, env func(string) (string, bool)) (*settings, error) {
	s := &settings{rows: serverFlags(), values: map[string]value{}}
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "--help" }) {
		s.help = true
		return s, nil
	}
	set, err := parseArgs(s.rows, args)
	problems := []error{err, checkBackend(env)}
	for i := range s.rows {
		r := &s.rows[i]
		v, ok := set[r.name]
		if ok && v.origin == unread {
			v = r.defaultValue()
			v.origin = unread
		} else if !ok {
			v = r.defaultValue()
			if text, found := lookup(env, r.env); found {
				fromEnv, err := r.variable(text)
				if err != nil {
					problems = append(problems, err)
				} else {
					v = fromEnv
				}
			}
		}
		s.values[r.name] = v
	}
	return s, errors.Join(problems...)
}

// backendVariable forces the kind of device in the reference (lmcache 0.5.6,
// v1/platform). Here each worker says where its memory is; a kind that no worker
// could have is refused.
const backendVariable = "LMCACHE_DEVICE_BACKEND"

func checkBackend(env func(string) (string, bool)) error {
	v, _ := env(backendVariable)
	switch strings.ToLower(strings.TrimSpace(v)) {
	case "", "cuda", "cpu":
		return nil
	}
	return fmt.Errorf("%s=%s is not served: this server copies for NVIDIA GPUs and for CPUs, and each worker says which: leave it out", backendVariable, v)
}

// lookup finds a variable that is set and not empty.
func lookup(env func(string) (string, bool), name string) (string, bool) {
	if name == "" {
		return "", false
	}
	text, _ := env(name)
	return text, text != ""
}

// variable reads the value of the row's environment variable.
func (r *row) variable(text string) (value, error) {
	from := origin(r.env)
	switch r.kind {
	case kindBool, kindSwitch:
		// The reference knows these three words and takes any other for no.
		on := slices.Contains([]string{"1", "true", "yes"}, strings.ToLower(text))
		return value{origin: from, text: fmt.Sprint(on), on: on}, nil
	case kindString:
		if r.name == "log-level" {
			// Unknown levels mean INFO in the reference.
			if text = strings.ToUpper(text); !slices.Contains(r.choices, text) {
				text = r.def
			}
		}
	default:
	}
	v, err := r.convert(text)
	if err != nil {
		if r.kind == kindInt || r.kind == kindFloat {
			return value{}, fmt.Errorf("%s is not a number: '%s'", r.env, text)
		}
		return value{}, fmt.Errorf("%s: %w", r.env, err)
	}
	v.origin = from
	return v, nil
}

// get returns the value of a flag of the table.
func (s *settings) get(name string) value {
	v, ok := s.values[name]
	if !ok {
		panic("no flag --" + name)
	}
	return v
}

// derive sets a value that nobody has set.
func (s *settings) derive(name string, v value, note string) {
	v.origin, v.note = fromMachine, note
	s.values[name] = v
}

// options is what the values mean to the server.
func (s *settings) options() mpserver.Options {
	var o mpserver.Options
	for i := range s.rows {
		if r := &s.rows[i]; r.apply != nil {
			r.apply(&o, s.values[r.name])
		}
		s.show(&o, &s.rows[i])
	}
	// These two have the same effect and another place in GET /config.
	if all, metrics := s.get("disable-observability").on, s.get("disable-metrics").on; all != metrics {
		if o.Shown == nil {
			o.Shown = map[string]any{}
		}
		o.Shown["observability.enabled"], o.Shown["observability.metrics_enabled"] = !all, !metrics
	}
	return o
}

// shownAt is where GET /config tells flags that have no effect here.
var shownAt = map[string][]string{
	"max-workers":                         {"mp.max_workers", "mp.max_gpu_workers", "mp.max_cpu_workers"},
	"max-gpu-workers":                     {"mp.max_gpu_workers"},
	"max-cpu-workers":                     {"mp.max_cpu_workers"},
	"grpc-server-workers":                 {"mp.grpc_server_workers"},
	"isolated-ipc":                        {"mp.isolated_ipc"},
	"disable-logging":                     {"observability.logging_enabled"},
	"l2-prefetch-max-in-flight":           {"storage_manager.prefetch_max_in_flight"},
	"periodic-notifier-interval-ms":       {"storage_manager.periodic_notifier_interval_ms"},
	"event-bus-queue-size":                {"observability.max_queue_size"},
	"prometheus-port":                     {"observability.prometheus_port"},
	"gc-monitor-min-pause-ms":             {"observability.gc_monitor.min_pause_ms"},
	"gc-monitor-top-objects":              {"observability.gc_monitor.top_objects"},
	"enable-extra-logging":                {"observability.extra_logging_enabled"},
	"extra-logging-interval":              {"observability.extra_logging_interval"},
	"coordinator-blend-timeout":           {"coordinator.blend_timeout"},
	"coordinator-blend-match-concurrency": {"coordinator.blend_match_concurrency"},
}

// show puts a value without effect where GET /config tells it.
func (s *settings) show(o *mpserver.Options, r *row) {
	v := s.values[r.name]
	if !v.given() {
		return
	}
	for _, path := range shownAt[r.name] {
		if o.Shown == nil {
			o.Shown = map[string]any{}
		}
		switch r.kind {
		case kindInt:
			o.Shown[path] = v.n
		case kindFloat:
			o.Shown[path] = v.x
		default: // switches
			o.Shown[path] = v.on != strings.HasPrefix(r.name, "disable-")
		}
	}
}

// problems is everything that the values make impossible, a line each, joined
// with what was found before. A flag that has a line already gets no second one
// from [mpserver.Options.Check]: it would say the same in other words.
func (s *settings) problems(before ...error) error {
	out := flatten(errors.Join(before...))
	for i := range s.rows {
		if text := s.rows[i].problem(s.values[s.rows[i].name]); text != "" {
			out = append(out, errors.New(text))
		}
	}
	return errors.Join(append(out, without(s.options().Check(), out)...)...)
}

// without drops the errors about flags that have been reported already.
func without(err error, reported []error) []error {
	var out []error
	for _, e := range flatten(err) {
		flag := firstWord(e)
		if !slices.ContainsFunc(reported, func(r error) bool { return firstWord(r) == flag }) {
			out = append(out, e)
		}
	}
	return out
}

// firstWord is the flag that a problem begins with.
func firstWord(err error) string {
	text := err.Error()
	if i := strings.IndexAny(text, " =:"); i >= 0 {
		text = text[:i]
	}
	return text
}

// setting is one line of the effective configuration.
type setting struct{ name, value, origin string }

// effective lists what has an effect, and what was given without one.
func (s *settings) effective() (used, idle []setting) {
	for i := range s.rows {
		r := &s.rows[i]
		v := s.values[r.name]
		line := setting{r.name, r.display(v), v.describe()}
		switch {
		case r.name == "check":
		case r.stance == served:
			used = append(used, line)
		case r.stance == accepted && v.given():
			line.origin = r.why
			idle = append(idle, line)
		}
	}
	return used, idle
}

// display is the value for people.
func (r *row) display(v value) string {
	if r.kind == kindSize {
		return sizeText(v.n)
	}
	if s := v.String(); s != "" {
		return s
	}
	return `""`
}

// describe says who decided.
func (v value) describe() string {
	if v.note != "" {
		return string(v.origin) + ": " + v.note
	}
	return string(v.origin)
}
