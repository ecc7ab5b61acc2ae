package main

import (
	"io"
	"log/slog"
)

// levelCritical is above everything that is logged: --log-level CRITICAL leaves
// panics only.
const levelCritical = slog.LevelError + 4

func logLevel(name string) slog.Level {
	switch name {
	case "DEBUG":
		return slog.LevelDebug
	case "WARNING":
		return slog.LevelWarn
	case "ERROR":
		return slog.LevelError
	case "CRITICAL":
		return levelCritical
	}
	return slog.LevelInfo
}

// newLogger returns the process's logger, whose level can change while it runs.
func newLogger(w io.Writer, format string, level *slog.LevelVar) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
