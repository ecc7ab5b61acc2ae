package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// ChecksumRequest asks for checksums of an engine's blocks.
type ChecksumRequest struct {
	// BlockIDs of the engine, in the order to be hashed.
	BlockIDs []int64
	// ChunkBlocks is how many of them make a chunk; the last one may be shorter.
	ChunkBlocks int64
	// InstanceID is the worker.
	InstanceID int64
	// Layerwise asks for a checksum of each layer instead of all together.
	Layerwise bool
}

// Chunks is the number of chunks, with the last one.
func (r *ChecksumRequest) Chunks() int {
	n, c := int64(len(r.BlockIDs)), r.ChunkBlocks
	return int(n/c + min(n%c, 1))
}

// StatusError is a failure with an HTTP status of its own.
type StatusError struct {
	Status int
	Detail string
}

// Error returns the detail.
func (e *StatusError) Error() string { return e.Detail }

// Failf makes a [StatusError].
func Failf(status int, format string, args ...any) error {
	return &StatusError{status, fmt.Sprintf(format, args...)}
}

// Checksummer is a [Server] that can hash the blocks of workers that it copies
// for. One that cannot is answered for with 501.
type Checksummer interface {
	// Checksums returns hexadecimal MD5s, one of each chunk: in one row for all
	// layers together, or, layer by layer, in a row for each. Failures with a
	// status are a [*StatusError].
	Checksums(ctx context.Context, r *ChecksumRequest) ([][]string, error)
}

// checksumAnswer is the answer of POST /cache/checksums (lmcache 0.5.6,
// v1/multiprocess/http_apis/cache_api.py).
type checksumAnswer struct {
	Status    string `json:"status"`
	ChunkSize int64  `json:"chunk_size"`
	NumChunks int    `json:"num_chunks"`
	Checksums any    `json:"chunk_checksums"`
	Layerwise bool   `json:"layerwise"`
	Ranges    []any  `json:"block_id_ranges"`
}

// checksums hashes the blocks of a worker that the server copies for.
func (a *api) checksums(w http.ResponseWriter, r *http.Request) {
	in, ok := requireBody(w, r, dataclassBody)
	if !ok {
		return
	}
	q := ChecksumRequest{BlockIDs: in.integers("block_ids"), ChunkBlocks: in.integer("chunk_size", false), InstanceID: in.integer("instance_id", false)}
	var bad *invalid
	q.Layerwise, bad = boolField(in.fields, "layerwise")
	in.note(bad)
	if len(*in.problems) > 0 {
		writeInvalid(w, *in.problems...)
		return
	}
	server, ok := a.server.(Checksummer)
	if !ok {
		writeDetail(w, http.StatusNotImplemented, "checksum not supported for this engine type")
		return
	}
	rows, err := server.Checksums(r.Context(), &q)
	if err != nil {
		var status *StatusError
		if !errors.As(err, &status) {
			status = &StatusError{http.StatusInternalServerError, err.Error()}
		}
		writeDetail(w, status.Status, status.Detail)
		return
	}
	out := checksumAnswer{Status: "success", ChunkSize: q.ChunkBlocks, NumChunks: q.Chunks(), Layerwise: q.Layerwise, Ranges: ranges(q.BlockIDs)}
	if q.Layerwise {
		layers := make(map[string][]string, len(rows))
		for i, row := range rows {
			layers["layer_"+strconv.Itoa(i)] = row
		}
		out.Checksums = layers
	} else {
		out.Checksums = rows[0]
	}
	writeJSON(w, http.StatusOK, out)
}

// ranges writes three or more consecutive ids as [first, last]; the order stays
// (lmcache 0.5.6, utils.py, compress_slot_mapping).
func ranges(ids []int64) []any {
	out := []any{}
	for i := 0; i < len(ids); {
		j := i + 1
		for j < len(ids) && ids[j] == ids[j-1]+1 {
			j++
		}
		if j-i >= 3 {
			out = append(out, [2]int64{ids[i], ids[j-1]})
		} else {
			for _, id := range ids[i:j] {
				out = append(out, id)
			}
		}
		i = j
	}
	return out
}

// maxListProblems bounds what is said about one list.
const maxListProblems = 16

// integers reads an optional list of whole numbers.
func (r reader) integers(name string) []int64 {
	if _, ok := r.fields[name]; !ok {
		return nil
	}
	items := r.list(name)
	out := make([]int64, len(items))
	said := 0
	for i, raw := range items {
		v, bad := readInt(raw, append(r.where(name), i)...)
		if out[i] = v; bad != nil && said < maxListProblems {
			said++
			r.note(bad)
		}
	}
	return out
}

// readInt reads an integer as leniently as the reference: numbers without a
// fraction, their text, and booleans. Instance ids have 63 bits, so nothing
// goes through a float.
func readInt(raw json.RawMessage, loc ...any) (int64, *invalid) {
	text := string(bytes.TrimSpace(raw))
	bad := &invalid{Type: "int_type", Loc: loc, Msg: "Input should be a valid integer", Input: raw}
	switch {
	case text == "true":
		return 1, nil
	case text == "false":
		return 0, nil
	case text == "" || text == "null" || text[0] == '[' || text[0] == '{':
		return 0, bad
	}
	bad.Type, bad.Msg = "int_from_float", "Input should be a valid integer, got a number with a fractional part"
	if text[0] == '"' {
		bad.Type, bad.Msg = "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
		if json.Unmarshal(raw, &text) != nil {
			return 0, bad
		}
		text = strings.TrimSpace(text)
	}
	if whole, fraction, ok := strings.Cut(text, "."); ok && strings.Trim(fraction, "0") == "" {
		text = whole
	}
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return v, nil
	} else if errors.Is(err, strconv.ErrRange) {
		bad.Type, bad.Msg = "int_parsing_size", "Input should be an integer of at most 64 bits"
	}
	return 0, bad
}
