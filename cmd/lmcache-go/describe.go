package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// describeTool is `lmcache describe` (lmcache 0.5.6, cli/commands/describe.py).
func describeTool() *tool {
	return &tool{
		name: "describe", summary: "say what a server holds and for whom, or with `engine` what a vLLM serves",
		args: []positional{target("who is described: the MP server (default " + defaultURL + ") or the engine (" + defaultEngineURL + ")")},
		url:  defaultURL,
		run: func(ctx context.Context, c *call) error {
			if c.args[0] == "engine" {
				return describeEngine(ctx, c)
			}
			return describeServer(ctx, c)
		},
	}
}

func describeServer(ctx context.Context, c *call) error {
	st, err := c.server.tree(ctx, "GET", "/status", nil)
	if err != nil {
		return err
	}
	r := newReport("LMCache KV Cache Service", widthDescribe)
	r.add("health", "Health", healthWord(st["is_healthy"]))
	r.add("url", "URL", c.server.base)
	r.add("engine_type", "Engine type", st["engine_type"])
	r.add("chunk_size", "Chunk size", st["chunk_size"])
	l1 := dig(st, "storage_manager", "l1_manager")
	r.add("l1_capacity_gb", "L1 capacity (GB)", gib(dig(l1, "memory_total_bytes")))
	r.add("l1_used_gb", "L1 used (GB)", usedOf(dig(l1, "memory_used_bytes"), dig(l1, "memory_usage_ratio")))
	policy := dig(st, "storage_manager", "eviction_controller", "eviction_policy")
	if policy == nil { // the reference sends it under another name than its describe reads
		policy = dig(st, "storage_manager", "l1_eviction_controller", "eviction_policy")
	}
	r.add("eviction_policy", "Eviction policy", policy)
	r.add("cached_objects", "Cached objects", dig(l1, "total_object_count"))
	r.add("active_sessions", "Active sessions", st["active_sessions"])
	describeModels(r, st)
	describeAdapters(r, st)
	return c.emit(r)
}

// healthWord is is_healthy for people.
func healthWord(v any) any {
	switch v {
	case nil:
		return nil
	case true:
		return "OK"
	}
	return "UNHEALTHY"
}

// gib is bytes as the reference's gigabytes, nil when there are none.
func gib(v any) any {
	n, ok := number(v)
	if !ok {
		return nil
	}
	return math.Round(n/(1<<30)*100) / 100
}

func usedOf(bytes, ratio any) any {
	n, ok := number(bytes)
	share, known := number(ratio)
	if !ok || !known {
		return nil
	}
	return fmt.Sprintf("%.2f (%.1f%%)", n/(1<<30), share*100)
}

// modelOf is the workers of a model that the server copies for.
type modelOf struct {
	ids  []string
	meta any
}

// describeModels adds a section per model and per group of layers copied alike.
func describeModels(r *report, st map[string]any) {
	workers, _ := st["cache_context_meta"].(map[string]any)
	byModel := map[string]*modelOf{}
	for _, id := range slices.Sorted(maps.Keys(workers)) {
		key := fmt.Sprintf("%v %v", dig(workers[id], "model_name"), dig(workers[id], "world_size"))
		if byModel[key] == nil {
			byModel[key] = &modelOf{meta: workers[id]}
		}
		byModel[key].ids = append(byModel[key].ids, id)
	}
	for _, key := range slices.Sorted(maps.Keys(byModel)) {
		m := byModel[key]
		name := dig(m.meta, "model_name")
		s := r.section("models", fmt.Sprintf("Model: %v", name))
		s.add("model", "Model", name)
		s.add("world_size", "World size", dig(m.meta, "world_size"))
		s.add("gpu_ids", "GPU IDs", strings.Join(m.ids, ", "))
		layout, _ := dig(m.meta, "kv_cache_layout").(map[string]any)
		s.addKnown(layout, "num_layers", "Num layers", "num_blocks", "Num blocks", "cache_size_per_token", "Cache size per token (bytes)")
		groups, _ := layout["kernel_groups"].([]any)
		for _, g := range groups {
			g, _ := g.(map[string]any)
			s := r.section("kernel_groups", fmt.Sprintf("Kernel group %v (%v)", g["kernel_group_idx"], name))
			s.add("model", "Model", name)
			s.addKnown(g, "kernel_group_idx", "Kernel group index", "engine_group_idx", "Engine group index",
				"object_group_idx", "Object group index", "num_layers", "Num layers", "tokens_per_block", "Tokens per block",
				"slots_per_block", "Slots per block", "dtype", "Dtype", "is_mla", "MLA", "attention_backend", "Attention backend",
				"engine_kv_shape", "Engine KV shape", "engine_kv_concrete_shape", "Engine KV tensor shape")
		}
	}
}

// addKnown adds the fields that are there, given as key, label, key, label.
func (s *section) addKnown(from map[string]any, keysAndLabels ...string) {
	for pair := range slices.Chunk(keysAndLabels, 2) {
		if v, ok := from[pair[0]]; ok {
			s.add(pair[0], pair[1], v)
		}
	}
}

func describeAdapters(r *report, st map[string]any) {
	adapters, _ := dig(st, "storage_manager", "l2_adapters").([]any)
	for _, a := range adapters {
		a, _ := a.(map[string]any)
		kind := a["type"]
		if kind == nil {
			kind = "Unknown"
		}
		s := r.section("l2_adapters", fmt.Sprintf("L2: %v", kind))
		s.add("type", "Type", kind)
		s.add("health", "Health", healthWord(a["is_healthy"]))
		s.addKnown(a, "backend", "Backend", "base_path", "Base path", "stored_object_count", "Stored objects")
		if used, size, ok := twoNumbers(a, "current_size_bytes", "max_capacity_bytes"); ok {
			s.add("used", "Used", fmt.Sprintf("%s / %s (%s)", byteWords(used), byteWords(size), share(used, size)))
		}
		if free, size, ok := twoNumbers(a, "pool_free_slots", "pool_size"); ok {
			s.add("pool_used", "Pool used", fmt.Sprintf("%.0f / %.0f (%s)", size-free, size, share(size-free, size)))
		}
	}
}

func twoNumbers(from map[string]any, a, b string) (x, y float64, ok bool) {
	x, okX := number(from[a])
	y, okY := number(from[b])
	return x, y, okX && okY
}

func share(part, whole float64) string {
	if whole <= 0 {
		part, whole = 0, 1
	}
	return fmt.Sprintf("%.1f%%", part/whole*100)
}

// byteWords is a size in the reference's units, which are powers of 1024.
func byteWords(n float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1 << 30, "GB"}, {1 << 20, "MB"}, {1 << 10, "KB"}} {
		if n >= u.size {
			return fmt.Sprintf("%.2f %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", n)
}

// describeEngine tells of a vLLM what its OpenAI and metrics routes say.
func describeEngine(ctx context.Context, c *call) error {
	engine := c.serverOf()
	models, err := engine.tree(ctx, "GET", "/v1/models", nil)
	if err != nil {
		return err
	}
	health := "UNHEALTHY"
	if a, err := engine.do(ctx, "GET", "/health", nil); err == nil && a.status == 200 {
		health = "OK"
	}
	var model any
	if list, _ := models["data"].([]any); len(list) > 0 {
		model = list[0]
	}
	r := newReport("Inference Engine", widthDescribe)
	r.add("model", "Model", dig(model, "id"))
	r.add("max_context", "Max context (tokens)", dig(model, "max_model_len"))
	r.add("status", "Status", health)
	r.add("running_requests", "Running requests", runningRequests(ctx, engine))
	return c.emit(r)
}

// runningRequests sums vLLM's gauge over its series; nil when it does not tell.
func runningRequests(ctx context.Context, engine *client) any {
	a, err := engine.do(ctx, "GET", "/metrics", nil)
	if err != nil || a.status != 200 {
		return nil
	}
	total, found := 0.0, false
	for line := range bytes.Lines(a.body) {
		name, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if i := bytes.IndexByte(name, '{'); i >= 0 { // a label value may hold a space
			name, rest = name[:i], line[bytes.LastIndexByte(line, '}')+1:]
		}
		if string(name) != "vllm:num_requests_running" {
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		if v, err := strconv.ParseFloat(string(fields[0]), 64); err == nil {
			total, found = total+v, true
		}
	}
	if !found {
		return nil
	}
	return json.Number(strconv.FormatInt(int64(total), 10))
}
