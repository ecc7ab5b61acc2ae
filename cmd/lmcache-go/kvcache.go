package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// kvcacheCommand is `lmcache kvcache` (lmcache 0.5.6, cli/commands/kvcache.py),
// which has clear, and two more.
func kvcacheCommand() command {
	return toolGroup("kvcache", "clear, list or check what a server holds", exitInvalid, clearTool(), listTool(), checksumTool())
}

func clearTool() *tool {
	return &tool{
		name: "kvcache clear", summary: "drop everything in L1 that nobody holds",
		rows: []row{
			{name: "force", kind: kindSwitch, help: "drop also what a request holds or a worker is writing: their retrieves and stores fail, and the engines compute"},
		},
		required: []string{"url"},
		run: func(ctx context.Context, c *call) error {
			body := map[string]any{"tier": "l1"}
			if c.get("force").on {
				body["force"] = true
			}
			if _, err := c.server.tree(ctx, "POST", "/cache/clear", body); err != nil {
				return err
			}
			r := newReport("KV Cache Clear", widthDefault)
			r.add("status", "Status", "OK")
			return c.emit(r)
		},
	}
}

func listTool() *tool {
	return &tool{
		name: "kvcache ls", summary: "list stored chunks (GET /cache/objects)",
		rows: []row{
			{name: "tier", def: "l1", choices: []string{"l1", "l2"}, help: "which store; the reference's server lists l2 only"},
			{name: "model", help: "only chunks of this model"},
			{name: "adapter", help: "which L2 adapter"},
			{name: "limit", kind: kindInt, def: "100", help: "how many chunks to list; 0 lists all", check: atLeast(0)},
			{name: "page-size", kind: kindInt, def: "500", help: "chunks per request", check: between(1, 5000)},
		},
		url: defaultURL,
		run: listObjects,
	}
}

func listObjects(ctx context.Context, c *call) error {
	r := newReport("KV Cache Objects", widthDefault)
	t := r.table("objects", "", column{"model_name", "model"}, column{"kv_rank", "kv_rank"}, column{"object_group_id", "group"},
		column{"cache_salt", "salt"}, column{"chunk_hash_hex", "chunk hash"}, column{"size_bytes", "bytes"})
	limit := c.get("limit").n
	q := url.Values{"tier": {c.get("tier").text}}
	if m := c.get("model"); m.given() {
		q.Set("model_name", m.text)
	}
	if a := c.get("adapter"); a.given() {
		q.Set("adapter", a.text)
	}
	more := false
	for {
		size := c.get("page-size").n
		if left := limit - int64(len(t.rows)); limit > 0 && left < size {
			size = left
		}
		q.Set("page_size", strconv.FormatInt(size, 10))
		page, err := c.server.tree(ctx, "GET", "/cache/objects?"+q.Encode(), nil)
		if err != nil {
			if strings.Contains(err.Error(), "only 'l2'") {
				err = fmt.Errorf("%w: this server cannot list L1; try --tier l2", err)
			}
			return err
		}
		entries, _ := page["entries"].([]any)
		for _, e := range entries {
			k := dig(e, "key")
			t.row(dig(k, "model_name"), dig(k, "kv_rank"), dig(k, "object_group_id"), dig(k, "cache_salt"), dig(k, "chunk_hash_hex"), dig(e, "size_bytes"))
		}
		next, _ := page["next_page_token"].(string)
		if more = next != ""; !more || limit > 0 && int64(len(t.rows)) >= limit {
			break
		}
		q.Set("page_token", next)
	}
	r.add("listed", "Listed", len(t.rows))
	r.add("more", "More", more)
	return c.emit(r)
}

func checksumTool() *tool {
	return &tool{
		name: "kvcache checksum", summary: "MD5 of blocks in a worker's own KV cache (POST /cache/checksums)",
		rows: []row{
			{name: "instance-id", kind: kindInt, help: "the worker, as GET /status lists it under registered_gpu_ids"},
			{name: "block-ids", kind: kindList, help: "the blocks, in order: numbers, ranges as 0-15, or both"},
			{name: "chunk-size", kind: kindInt, def: "1", help: "blocks per checksum", check: atLeast(1)},
			{name: "layerwise", kind: kindSwitch, help: "a checksum per layer, too"},
		},
		required: []string{"instance-id", "block-ids"},
		url:      defaultURL,
		run:      checksum,
	}
}

func checksum(ctx context.Context, c *call) error {
	blocks, err := blockIDs(c.get("block-ids").list)
	if err != nil {
		return err
	}
	size := c.get("chunk-size").n
	out, err := c.server.tree(ctx, "POST", "/cache/checksums", map[string]any{
		"block_ids": blocks, "chunk_size": size, "instance_id": c.get("instance-id").n, "layerwise": c.get("layerwise").on,
	})
	if err != nil {
		return err
	}
	r := newReport("KV Cache Checksums", widthDefault)
	for _, f := range [][2]string{{"status", "Status"}, {"chunk_size", "Blocks per chunk"}, {"num_chunks", "Chunks"}} {
		r.add(f[0], f[1], out[f[0]])
	}
	switch sums := out["chunk_checksums"].(type) {
	case []any:
		t := r.table("checksums", "", column{"chunk", "chunk"}, column{"md5", "md5"})
		for i, sum := range sums {
			t.row(i, sum)
		}
	case map[string]any:
		t := r.table("checksums", "", column{"layer", "layer"}, column{"chunk", "chunk"}, column{"md5", "md5"})
		for l := range len(sums) {
			list, _ := sums["layer_"+strconv.Itoa(l)].([]any)
			for i, sum := range list {
				t.row(l, i, sum)
			}
		}
	}
	return c.emit(r)
}

// maxBlockIDs bounds what ranges may expand to.
const maxBlockIDs = 1 << 20

// blockIDs reads numbers and ranges, separated by commas or not.
func blockIDs(words []string) ([]int64, error) {
	out := []int64{}
	for _, word := range words {
		for part := range strings.SplitSeq(word, ",") {
			low, high, ranged := strings.Cut(part, "-")
			from, err := strconv.ParseInt(low, 10, 64)
			to := from
			if err == nil && ranged {
				to, err = strconv.ParseInt(high, 10, 64)
			}
			if err != nil || to < from || to-from >= maxBlockIDs-int64(len(out)) {
				return nil, &usageError{fmt.Sprintf("argument --block-ids: invalid value: '%s' (write numbers, or a range as 0-15)", part)}
			}
			for id := from; id <= to; id++ {
				out = append(out, id)
			}
		}
	}
	return out, nil
}
