package httpapi

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// Quota is the limit of one salt and what its objects take.
type Quota struct {
	Salt       string
	LimitBytes int64
	// UsedBytes is of L1, here. The reference counts L2 only, and tells 0 on a
	// server without.
	UsedBytes int64
	// Exists: a limit was set.
	Exists bool
}

// defaultSalt stands for the empty salt in paths and answers (lmcache 0.5.6,
// v1/multiprocess/http_apis/quota_api.py).
const defaultSalt = "_default"

func shownSalt(salt string) string {
	if salt == "" {
		return defaultSalt
	}
	return salt
}

func pathSalt(r *http.Request) string {
	if s := r.PathValue("salt"); s != defaultSalt {
		return s
	}
	return ""
}

func gib(n int64) Float { return Float(float64(n) / (1 << 30)) }

// quotaSet, quotaGot and so on are the answers of the quota routes.
type (
	quotaSet struct {
		Salt   string `json:"cache_salt"`
		Limit  Float  `json:"limit_gb"`
		Status string `json:"status"`
	}
	quotaGot struct {
		Salt   string `json:"cache_salt"`
		Limit  Float  `json:"limit_gb"`
		Usage  Float  `json:"current_usage_gb"`
		Exists bool   `json:"exists"`
	}
	quotaRemoved struct {
		Salt   string `json:"cache_salt"`
		Status string `json:"status"`
	}
	quotaLine struct {
		Limit Float `json:"limit_gb"`
		Usage Float `json:"current_usage_gb"`
	}
)

func (a *api) setQuota(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	data = pythonJSON(data)
	var body any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // 1e400 is infinite, not unreadable
	if err != nil || !json.Valid(data) || d.Decode(&body) != nil {
		writeError(w, http.StatusBadRequest, "invalid JSON body")
		return
	}
	fields, _ := body.(map[string]any)
	v, ok := fields["limit_gb"]
	if !ok {
		writeError(w, http.StatusBadRequest, "body must be {'limit_gb': <float>}")
		return
	}
	limit, ok := pythonFloat(v)
	switch {
	case !ok:
		writeError(w, http.StatusBadRequest, "limit_gb must be numeric")
	case math.IsNaN(limit) || math.IsInf(limit, 0):
		writeError(w, http.StatusBadRequest, "limit_gb must be finite")
	case limit < 0:
		writeError(w, http.StatusBadRequest, "limit_gb must be non-negative")
	default:
		n := int64(math.MaxInt64)
		if b := limit * (1 << 30); b < math.MaxInt64 {
			n = int64(b)
		}
		salt := pathSalt(r)
		if err := a.server.SetQuota(salt, n); err != nil {
			writeError(w, http.StatusBadRequest, err.Error())
			return
		}
		writeJSON(w, http.StatusOK, quotaSet{shownSalt(salt), Float(limit), "ok"})
	}
}

func (a *api) getQuota(w http.ResponseWriter, r *http.Request) {
	q := a.server.Quota(pathSalt(r))
	writeJSON(w, http.StatusOK, quotaGot{shownSalt(q.Salt), gib(q.LimitBytes), gib(q.UsedBytes), q.Exists})
}

func (a *api) deleteQuota(w http.ResponseWriter, r *http.Request) {
	salt, status := pathSalt(r), "not_found"
	if a.server.DeleteQuota(salt) {
		status = "removed"
	}
	writeJSON(w, http.StatusOK, quotaRemoved{shownSalt(salt), status})
}

func (a *api) listQuotas(w http.ResponseWriter, _ *http.Request) {
	users := map[string]quotaLine{}
	for _, q := range a.server.Quotas() {
		users[shownSalt(q.Salt)] = quotaLine{gib(q.LimitBytes), gib(q.UsedBytes)}
	}
	writeJSON(w, http.StatusOK, map[string]any{"users": users})
}

// pythonFloat is Python's float(v): numbers, booleans, and strings of a number.
func pythonFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case json.Number:
		return pythonFloat(v.String())
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case string:
		f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
		if strings.ContainsAny(v, "xXpP") { // hexadecimal is Go's, not Python's
			return 0, false
		}
		return f, err == nil || math.IsInf(f, 0)
	}
	return 0, false
}

// pythonJSON makes strings of the three words beyond JSON that Python reads as
// numbers.
func pythonJSON(data []byte) []byte {
	var out []byte
	inString := false
	for i := 0; i < len(data); i++ {
		c := data[i]
		switch {
		case inString && c == '\\' && i+1 < len(data):
			out = append(out, c)
			i++
			c = data[i]
		case c == '"':
			inString = !inString
		case !inString:
			for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
				if bytes.HasPrefix(data[i:], []byte(word)) {
					out = append(append(out, '"'), word...)
					i += len(word) - 1
					c = '"'
					break
				}
			}
		}
		out = append(out, c)
	}
	return out
}
