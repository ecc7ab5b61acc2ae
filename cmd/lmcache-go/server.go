package main

import (
	"context"
	"fmt"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

// cacheServer is what the command needs of [mpserver.Server].
type cacheServer interface {
	Run(ctx context.Context) error
	Close() error
	Addr() string
	HTTPAddr() string
}

// newServer makes the server; tests put another one here.
var newServer = func(o mpserver.Options) (cacheServer, error) { return mpserver.New(o) }

// runServer serves until SIGTERM or SIGINT; a second signal ends the process at
// once.
func runServer(args []string, c console) int {
	s, err := readSettings(args, c.lookupEnv)
	switch {
	case isUsage(err) && !s.get("check").on:
		return usage(c, "server", err)
	case s.help:
		printServerHelp(c.stdout, s.rows)
		return exitOK
	}
	p := examine(s, err, c.host)
	if s.get("check").on {
		return printCheck(c, p)
	}
	if p.problems != nil {
		return invalid(c, "server", p.problems)
	}
	level := new(slog.LevelVar)
	level.Set(logLevel(s.get("log-level").text))
	log := newLogger(c.stderr, s.get("log-format").text, level)
	p.options.LogLevel = level
	if s.get("log-format").text == "text" && !disabled(c.env("LMCACHE_DISABLE_BANNER")) {
		fmt.Fprintf(c.stderr, "lmcache-go %s, a server of the LMCache MP protocol\n", p.build.version)
	}
	logSettings(log, p)
	return serve(c, p, log)
}

func disabled(v string) bool { return v == "1" || v == "true" || v == "yes" }

// sameSignal is how long after a signal another one counts as the same: timeout(1)
// and some supervisors signal a process and then its whole group.
const sameSignal = 200 * time.Millisecond

// serve runs the server until a signal.
func serve(c console, p plan, log *slog.Logger) int {
	// Signals are taken from here on: one that comes while the pool is mapped
	// must stop the server and not leave a segment behind.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// After the first signal the default comes back, and the second one ends the process.
	defer context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })()

	tuneCollector(ctx, c)
	o := p.options
	o.Logger = log
	srv, err := newServer(o)
	if err != nil {
		// A port that became busy since it was looked at: say by whom.
		if ports := c.host.checkPorts(o.Host, o.Port, o.HTTPHost, o.HTTPPort); ports != nil {
			err = ports
		}
		return invalid(c, "server", err)
	}
	printConnector(c.stdout, p.options.Host, portOf(srv.Addr()), o, len(p.gpus) > 0)
	if err := srv.Run(ctx); err != nil {
		log.Error("server failed", "err", err)
		return exitInvalid
	}
	return exitOK
}

// logSettings says what was set, by whom, and what has no effect.
func logSettings(log *slog.Logger, p plan) {
	used, idle := p.settings.effective()
	for _, s := range used {
		if s.origin != string(fromDefault) {
			log.Info("setting", "name", s.name, "value", s.value, "origin", s.origin)
		}
	}
	for _, s := range idle {
		log.Info("setting without effect", "name", s.name, "value", s.value, "reason", s.origin)
	}
	for _, u := range p.room.users {
		log.Warn("an old pool is still mapped: its memory comes back when that process lets go", "process", u.String())
	}
}
