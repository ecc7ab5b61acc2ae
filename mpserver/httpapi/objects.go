package httpapi

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ObjectKey names a stored object: the KV of one chunk for one rank of a model
// (EncodedObjectKey of lmcache 0.5.6, v1/distributed/api.py).
type ObjectKey struct {
	ChunkHash []byte
	Model     string
	KVRank    int64
	Group     int64
	Salt      string
}

// MarshalJSON implements [json.Marshaler] with the reference's names.
func (k ObjectKey) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Hash  string `json:"chunk_hash_hex"`
		Model string `json:"model_name"`
		Rank  int64  `json:"kv_rank"`
		Group int64  `json:"object_group_id"`
		Salt  string `json:"cache_salt"`
	}{hex.EncodeToString(k.ChunkHash), k.Model, k.KVRank, k.Group, k.Salt})
}

// Object is one object of a listing.
type Object struct {
	Key       ObjectKey `json:"key"`
	SizeBytes int64     `json:"size_bytes"`
}

// maxDeleteKeys and maxSaltRunes are the reference's limits (lmcache 0.5.6,
// v1/multiprocess/cache_control, v1/distributed/api.py).
const (
	maxDeleteKeys = 10000
	maxSaltRunes  = 128
	saltForbidden = "@/\\\x00"
)

// deleted is the answer of DELETE /cache/objects.
type deleted struct {
	Deleted int  `json:"deleted"`
	Skipped int  `json:"skipped"`
	OK      bool `json:"ok"`
}

// deleteObjects removes objects of L1 by key. A request that names L2 as well
// is refused as a whole: there is none.
func (a *api) deleteObjects(w http.ResponseWriter, r *http.Request) {
	in, ok := requireBody(w, r, dataclassBody)
	if !ok {
		return
	}
	var keys []encodedKey
	for i, raw := range in.list("keys") {
		if one, ok := in.at(raw, "keys", i); ok {
			keys = append(keys, encodedKey{
				hash: one.text("chunk_hash_hex", true), model: one.text("model_name", true), rank: one.integer("kv_rank", true),
				group: one.integer("object_group_id", false), salt: one.text("cache_salt", false),
			})
		}
	}
	tier, bad := enumField(in.fields, "tier", "l2", "l1", "l2", "all")
	in.note(bad)
	force, bad := boolField(in.fields, "force")
	in.note(bad)
	if string(in.fields["adapter"]) != "null" {
		in.text("adapter", false)
	}
	if len(*in.problems) > 0 {
		writeInvalid(w, *in.problems...)
		return
	}
	if n := len(keys); n > maxDeleteKeys {
		writeDetail(w, http.StatusBadRequest, fmt.Sprintf("too many keys in a single request (limit=%d, got=%d)", maxDeleteKeys, n))
		return
	}
	list := make([]ObjectKey, len(keys))
	for i, k := range keys {
		key, complaint := k.decode()
		if complaint != "" {
			writeDetail(w, http.StatusBadRequest, fmt.Sprintf("keys[%d]: %s", i, complaint))
			return
		}
		list[i] = key
	}
	if tier != "l1" {
		writeDetail(w, http.StatusServiceUnavailable, "no L2 adapters configured")
		return
	}
	n, skipped := a.server.DeleteL1(list, force)
	writeJSON(w, http.StatusOK, deleted{n, skipped, true})
}

// encodedKey is a key as it was written.
type encodedKey struct {
	hash, model, salt string
	rank, group       int64
}

// decode checks the key; the complaint is the reference's.
func (k encodedKey) decode() (key ObjectKey, complaint string) {
	hash, complaint := fromHex(k.hash)
	switch {
	case complaint != "":
	case strings.Contains(k.model, "@"):
		complaint = "model_name must not contain '@' (got " + quote(k.model) + ")"
	case k.group < 0:
		complaint = fmt.Sprintf("object_group_id must be >= 0 (got %d)", k.group)
	default:
		complaint = CheckSalt(k.salt)
	}
	return ObjectKey{ChunkHash: hash, Model: k.model, KVRank: k.rank, Group: k.group, Salt: k.salt}, complaint
}

// CheckSalt is what the reference says against a salt, "" when nothing.
func CheckSalt(salt string) string {
	var bad []string
	for _, c := range saltForbidden {
		if strings.ContainsRune(salt, c) {
			bad = append(bad, quote(string(c)))
		}
	}
	if bad != nil {
		return "cache_salt must not contain frozenset({" + strings.Join(bad, ", ") + "}) (got " + quote(salt) + ")"
	}
	if n := utf8.RuneCountInString(salt); n > maxSaltRunes {
		return fmt.Sprintf("cache_salt exceeds max length %d (got %d)", maxSaltRunes, n)
	}
	return ""
}

// fromHex decodes hexadecimal digits; the complaint is that of Python's
// bytes.fromhex.
func fromHex(s string) (b []byte, complaint string) {
	b = make([]byte, 0, len(s)/2)
	for i := 0; i < len(s); i += 2 {
		for i < len(s) && strings.IndexByte(" \t\n\v\f\r", s[i]) >= 0 { // allowed between bytes
			i++
		}
		if i == len(s) {
			break
		}
		for j := i; j < i+2; j++ {
			if j >= len(s) || !strings.ContainsRune("0123456789abcdefABCDEF", rune(s[j])) {
				return nil, fmt.Sprintf("non-hexadecimal number found in fromhex() arg at position %d", j)
			}
		}
		v, _ := strconv.ParseUint(s[i:i+2], 16, 8)
		b = append(b, byte(v))
	}
	return b, ""
}

// listing is the answer of GET /cache/objects.
type listing struct {
	Adapter string   `json:"adapter"`
	Shared  bool     `json:"shared"`
	Entries []Object `json:"entries"`
	Next    *string  `json:"next_page_token"`
}

// defaultPageSize is the reference's (lmcache 0.5.6, v1/multiprocess/http_apis).
const defaultPageSize = 500

// listObjects lists L1, which the reference does not; of L2 there is none.
func (a *api) listObjects(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var problems []invalid
	tier := "l2"
	if q.Has("tier") {
		tier = q.Get("tier")
	}
	if tier != "l1" && tier != "l2" && tier != "all" {
		expected := orList([]string{"l1", "l2", "all"})
		problems = append(problems, invalid{
			Type: "enum", Loc: []any{"query", "tier"}, Msg: "Input should be " + expected,
			Input: tier, Ctx: map[string]string{"expected": expected},
		})
	}
	size := defaultPageSize
	if q.Has("page_size") {
		n, bad := pageSize(q.Get("page_size"))
		if bad != nil {
			problems = append(problems, *bad)
		}
		size = n
	}
	switch {
	case len(problems) > 0:
		writeInvalid(w, problems...)
	case tier == "all":
		writeDetail(w, http.StatusBadRequest, "tier 'all' not supported; only 'l2'")
	case tier == "l2":
		writeDetail(w, http.StatusServiceUnavailable, "no L2 adapters configured")
	default:
		a.listL1(w, q.Get("model_name"), q.Get("page_token"), size)
	}
}

func (a *api) listL1(w http.ResponseWriter, model, token string, size int) {
	after := uint64(0)
	if token != "" {
		var err error
		if after, err = strconv.ParseUint(token, 10, 32); err != nil {
			writeDetail(w, http.StatusBadRequest, "page_token "+quote(token)+" was not issued by this server")
			return
		}
	}
	out := listing{Adapter: "l1", Entries: []Object{}}
	for {
		page, next := a.server.ListL1(model, uint32(after), size-len(out.Entries))
		out.Entries = append(out.Entries, page...)
		if next == 0 || len(out.Entries) >= size {
			if next != 0 {
				token := strconv.FormatUint(uint64(next), 10)
				out.Next = &token
			}
			break
		}
		after = uint64(next)
	}
	writeJSON(w, http.StatusOK, out)
}

// maxPageSize is the reference's largest page (lmcache 0.5.6, v1/multiprocess/http_apis).
const maxPageSize = 5000

func pageSize(text string) (int, *invalid) {
	bad := &invalid{Loc: []any{"query", "page_size"}, Input: text}
	quoted, _ := json.Marshal(text) // a string does not fail
	n, unread := readInt(quoted, bad.Loc...)
	switch {
	case unread != nil:
		return 0, unread
	case n < 1:
		bad.Type, bad.Msg, bad.Ctx = "greater_than_equal", "Input should be greater than or equal to 1", map[string]int{"ge": 1}
	case n > maxPageSize:
		bad.Type, bad.Msg, bad.Ctx = "less_than_equal", "Input should be less than or equal to 5000", map[string]int{"le": maxPageSize}
	default:
		return int(n), nil
	}
	return 0, bad
}
