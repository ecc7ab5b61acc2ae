package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// Where servers are when nobody says (lmcache 0.5.6, cli/http.py).
const (
	defaultURL       = "http://localhost:8080"
	defaultEngineURL = "http://localhost:8000"
)

// answerLimit bounds what a command reads of an answer.
const answerLimit = 256 << 20

// client speaks to the HTTP surface of a server, ours or the reference's.
type client struct {
	base string // no slash at the end
	http http.Client
}

// newClient returns a client of the server at base, to which a scheme is added
// when it has none. Each call ends after timeout.
func newClient(base string, timeout time.Duration) *client {
	if !strings.HasPrefix(base, "http://") && !strings.HasPrefix(base, "https://") {
		base = "http://" + base
	}
	return &client{
		base: strings.TrimRight(base, "/"),
		// Not the default transport: it would keep a goroutine per connection.
		http: http.Client{Timeout: timeout, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}},
	}
}

// answer is what came back, of any status.
type answer struct {
	status int
	text   string // "Not Found"
	body   []byte
}

// do sends one request. The error says that nobody answered.
func (c *client) do(ctx context.Context, method, path string, body any) (*answer, error) {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(data)) //nolint:gosec // the address is what the user asks for
	if err != nil {
		return nil, fmt.Errorf("--url %s: %w", c.base, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req) //nolint:gosec // the address is what the user asks for
	if err != nil {
		return nil, fmt.Errorf("Cannot connect to %s: %s", c.base+path, reason(err)) //nolint:staticcheck // the reference's words
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err != nil {
		return nil, fmt.Errorf("Cannot connect to %s: %s", c.base+path, reason(err)) //nolint:staticcheck // the reference's words
	}
	return &answer{status: resp.StatusCode, text: http.StatusText(resp.StatusCode), body: text}, nil
}

// reason is why a connection failed, in the words of Python's urllib.
func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		text := errno.Error()
		return fmt.Sprintf("[Errno %d] %s", int(errno), strings.ToUpper(text[:1])+text[1:])
	}
	var u *url.Error
	if errors.As(err, &u) {
		if u.Timeout() {
			return "timed out"
		}
		return u.Err.Error()
	}
	return err.Error()
}

// tree sends one request and decodes the JSON of a good answer, numbers as they
// were written.
func (c *client) tree(ctx context.Context, method, path string, body any) (map[string]any, error) {
	a, err := c.do(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if a.status < 200 || a.status > 299 {
		return nil, a.failure(c.base + path)
	}
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.UseNumber()
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		return nil, fmt.Errorf("%s did not answer in JSON: is an MP server listening there? (%w)", c.base+path, err)
	}
	return out, nil
}

// failure tells what a server said against a request, in either of its shapes.
func (a *answer) failure(where string) error {
	said := a.complaint()
	switch {
	case said == "":
		return fmt.Errorf("HTTP %d from %s: %s", a.status, where, a.text)
	case a.status == http.StatusServiceUnavailable && strings.HasSuffix(where, "/status"):
		return fmt.Errorf("Server unhealthy: %s", said) //nolint:staticcheck // the reference's words
	}
	return fmt.Errorf("Server error: %s (HTTP %d from %s)", said, a.status, where) //nolint:staticcheck // the reference's words
}

// complaint is the text of an error body: {"error": …}, {"detail": …}, where
// the latter may be a list, or {"status": "unhealthy", "reason": …}.
func (a *answer) complaint() string {
	var body struct {
		Error, Message, Reason string
		Detail                 json.RawMessage
	}
	if json.Unmarshal(a.body, &body) != nil {
		return ""
	}
	for _, s := range []string{body.Error, body.Message, body.Reason} {
		if s != "" {
			return s
		}
	}
	var text string
	if json.Unmarshal(body.Detail, &text) == nil {
		return text
	}
	var list []struct {
		Loc []any
		Msg string
	}
	if json.Unmarshal(body.Detail, &list) != nil {
		return ""
	}
	var parts []string
	for _, e := range list {
		where := strings.Trim(fmt.Sprint(e.Loc), "[]")
		parts = append(parts, where+": "+e.Msg)
	}
	return strings.Join(parts, "; ")
}

// dig walks nested objects; nil when something is missing on the way.
func dig(tree any, keys ...string) any {
	for _, k := range keys {
		m, ok := tree.(map[string]any)
		if !ok {
			return nil
		}
		tree = m[k]
	}
	return tree
}

// number is a JSON number as a float; ok is false when v is none.
func number(v any) (f float64, ok bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := n.Float64()
	return f, err == nil
}
