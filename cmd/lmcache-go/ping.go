package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// target is an argument that says which kind of server is meant.
func target(help string) positional {
	return positional{name: "target", help: help, choices: []string{"kvcache", "engine"}}
}

// serverOf is where the target listens unless --url says otherwise.
func (c *call) serverOf() *client {
	if c.get("url").given() || c.args[0] == "kvcache" {
		return c.server
	}
	return newClient(defaultEngineURL, duration(c.get("timeout-seconds")))
}

// pingTool is `lmcache ping` (lmcache 0.5.6, cli/commands/ping.py).
func pingTool() *tool {
	return &tool{
		name: "ping", summary: "ask a server, or with `engine` a vLLM, whether it lives",
		args: []positional{target("who is asked: the MP server (default " + defaultURL + ") or the engine (" + defaultEngineURL + ")")},
		url:  defaultURL,
		run:  ping,
	}
}

func ping(ctx context.Context, c *call) error {
	title, path := "Ping KV Cache", "/healthcheck"
	if c.args[0] == "engine" {
		title, path = "Ping Engine", "/health"
	}
	start := time.Now()
	a, err := c.serverOf().do(ctx, "GET", path, nil)
	took := time.Since(start)
	if err == nil && a.status != 200 {
		text := fmt.Sprintf("HTTP %d: %s", a.status, a.text)
		if why := a.complaint(); why != "" && why != a.text {
			text += ": " + why
		}
		err = errors.New(text)
	}
	status := "OK"
	if err != nil {
		status = "FAIL"
	}
	r := newReport(title, widthPing)
	r.add("status", "Status", status)
	r.add("round_trip_time_ms", "Round trip time (ms)", elapsed(took))
	return errors.Join(c.emit(r), err)
}
