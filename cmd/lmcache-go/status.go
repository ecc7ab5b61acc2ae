package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// statusTool prints GET /status: the tree itself for programs, what an operator
// looks for in it for people. The reference has no such command.
func statusTool() *tool {
	return &tool{
		name: "status", summary: "what a server says of itself; --json prints the tree of GET /status as it is",
		url: defaultURL,
		run: func(ctx context.Context, c *call) error {
			st, err := c.server.tree(ctx, "GET", "/status", nil)
			if err != nil {
				return err
			}
			if c.json() {
				text, err := indent(st)
				if err != nil {
					return err
				}
				return c.print(text)
			}
			return c.emit(statusReport(st))
		},
	}
}

// statusReport is the tree for people. What a server does not send is left out.
func statusReport(st map[string]any) *report {
	r := newReport("LMCache MP Server", widthQuotas)
	ours := dig(st, "lmcache_go")
	r.add("health", "Health", healthWord(st["is_healthy"]))
	if why, _ := dig(ours, "unhealthy_reason").(string); why != "" {
		r.add("reason", "Reason", why)
	}
	top := r.sections[0]
	if m, ok := ours.(map[string]any); ok {
		top.addKnown(m, "version", "Version", "instance_id", "Instance ID", "uptime_seconds", "Uptime (s)", "queued_requests", "Queued requests")
	}
	top.addKnown(st, "chunk_size", "Chunk size", "hash_algorithm", "Hash algorithm", "active_sessions", "Active sessions",
		"active_prefetch_jobs", "Lookups not fetched")

	l1, _ := dig(st, "storage_manager", "l1_manager").(map[string]any)
	s := r.section("l1", "L1")
	s.add("used", "Used", fmt.Sprintf("%s of %s", sizeOf(l1["memory_used_bytes"]), sizeOf(l1["memory_total_bytes"])))
	s.addKnown(l1, "total_object_count", "Objects", "read_locked_count", "Held by readers", "write_locked_count", "Being written")
	s.add("eviction_policy", "Eviction policy", dig(st, "storage_manager", "l1_eviction_controller", "eviction_policy"))
	if m, ok := dig(ours, "l1").(map[string]any); ok {
		s.addKnown(m, "quarantined_bytes", "Quarantined bytes", "no_space_refusals", "Refused for lack of room")
		evicted, _ := m["evicted_chunks"].(map[string]any)
		for _, why := range slices.Sorted(maps.Keys(evicted)) {
			s.add("evicted_"+why, "Evicted: "+why, evicted[why])
		}
	}
	statusWorkers(r, st, ours)
	statusGPUs(r, ours)
	if errs, _ := dig(ours, "last_errors").([]any); len(errs) > 0 {
		for _, e := range errs {
			s := r.section("last_errors", fmt.Sprintf("%v: %v", dig(e, "op"), dig(e, "reason")))
			m, _ := e.(map[string]any)
			s.addKnown(m, "count", "Count", "age_seconds", "Latest (s ago)", "message", "Message", "remedy", "Remedy")
		}
	}
	return r
}

func statusWorkers(r *report, st map[string]any, ours any) {
	if list, ok := dig(ours, "instances").([]any); ok {
		t := r.table("instances", "Workers", column{"instance_id", "instance"}, column{"model_name", "model"}, column{"transport", "transport"},
			column{"state", "state"}, column{"age_seconds", "age s"}, column{"silent_seconds", "silent s"}, column{"pending_transfers", "in hand"})
		for _, w := range list {
			t.row(dig(w, "instance_id"), dig(w, "model_name"), dig(w, "transport"), dig(w, "state"), dig(w, "age_seconds"), dig(w, "silent_seconds"), dig(w, "pending_transfers"))
		}
		return
	}
	t := r.table("instances", "Workers", column{"instance_id", "instance"}, column{"model_name", "model"}, column{"world_size", "world size"})
	for _, key := range []string{"cache_context_meta", "non_cuda_context_meta"} {
		workers, _ := st[key].(map[string]any)
		for _, id := range slices.Sorted(maps.Keys(workers)) {
			t.row(id, dig(workers[id], "model_name"), dig(workers[id], "world_size"))
		}
	}
}

// statusGPUs is what our server sees of the machine's GPUs.
func statusGPUs(r *report, ours any) {
	list, _ := dig(ours, "gpus").([]any)
	if len(list) == 0 {
		return // --json has why: it is long, and no news on a machine without any
	}
	t := r.table("gpus", "GPUs", column{"uuid", "GPU"}, column{"device", "device"}, column{"name", "name"}, column{"used", "used"}, column{"memory", "of"},
		column{"workers", "workers"}, column{"mapped", "mapped"}, column{"pending_copies", "copies"}, column{"quarantined_workers", "stuck"})
	for _, g := range list {
		used := sizeOf(dig(g, "used_bytes"))
		if n, _ := number(dig(g, "used_bytes")); n < 0 {
			used = "N/A"
		}
		t.row(dig(g, "uuid"), dig(g, "device"), dig(g, "name"), used, sizeOf(dig(g, "memory_bytes")),
			dig(g, "workers"), sizeOf(dig(g, "mapped_bytes")), dig(g, "pending_copies"), dig(g, "quarantined_workers"))
	}
}

func sizeOf(v any) string {
	n, ok := number(v)
	if !ok {
		return "N/A"
	}
	return byteWords(n)
}
