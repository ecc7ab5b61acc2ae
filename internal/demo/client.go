package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// requestLimit bounds every request of the demo.
const requestLimit = 30 * time.Second

// client talks to the parts of a deployment.
type client struct{ http *http.Client }

func newClient() *client {
	t := &http.Transport{MaxIdleConnsPerHost: 128, IdleConnTimeout: 10 * time.Second}
	return &client{&http.Client{Transport: t, Timeout: requestLimit}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// answer is what a client of a completions API gets.
type answer struct {
	status int
	body   string // as received
	id     string
	text   string
	reason string
	tokens int // of the prompt
	took   time.Duration
}

// ask sends a completion, or a chat when path says so.
func (c *client) ask(ctx context.Context, base, path, prompt string, maxTokens int, stream bool) (answer, error) {
	in := map[string]any{"model": modelName, "prompt": prompt, "max_tokens": maxTokens}
	if strings.Contains(path, "chat") {
		delete(in, "prompt")
		in["messages"] = []map[string]string{{"role": "user", "content": prompt}}
	}
	if stream {
		in["stream"] = true
	}
	data, err := json.Marshal(in)
	if err != nil {
		return answer{}, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(data))
	if err != nil {
		return answer{}, err
	}
	a, err := c.do(q)
	if err != nil || a.status != http.StatusOK {
		return a, err
	}
	if stream {
		err = a.readStream()
		return a, err
	}
	err = a.read([]byte(a.body))
	return a, err
}

// do sends a request with a JSON body and receives the answer undecoded.
func (c *client) do(q *http.Request) (answer, error) {
	q.Header.Set("Content-Type", "application/json")
	begin := time.Now()
	r, err := c.http.Do(q)
	if err != nil {
		return answer{took: time.Since(begin)}, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return answer{status: r.StatusCode, body: string(body), took: time.Since(begin)}, err
}

type wireAnswer struct {
	ID      string
	Choices []struct {
		Text           string
		Message, Delta struct{ Content string }
		FinishReason   *string `json:"finish_reason"`
	}
	Usage *struct {
		PromptTokens int `json:"prompt_tokens"`
	}
	Error *struct{ Message string }
}

func (a *answer) read(data []byte) error {
	var w wireAnswer
	if err := json.Unmarshal(data, &w); err != nil {
		return fmt.Errorf("unusable answer %.200s: %w", data, err)
	}
	if w.Error != nil {
		return fmt.Errorf("the answer is an error: %s", w.Error.Message)
	}
	a.id = w.ID
	for _, c := range w.Choices {
		a.text += c.Text + c.Message.Content + c.Delta.Content
		if c.FinishReason != nil {
			a.reason = *c.FinishReason
		}
	}
	if w.Usage != nil {
		a.tokens = w.Usage.PromptTokens
	}
	return nil
}

func (a *answer) readStream() error {
	s := bufio.NewScanner(strings.NewReader(a.body))
	s.Buffer(nil, 1<<20)
	last := ""
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		if !ok {
			continue
		}
		if last = data; data == "[DONE]" {
			continue
		}
		if err := a.read([]byte(data)); err != nil {
			return err
		}
	}
	if last != "[DONE]" {
		return fmt.Errorf("the stream ends with %.80q", last)
	}
	return nil
}

func (c *client) get(ctx context.Context, url string) (string, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	r, err := c.http.Do(q)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", url, r.Status, body)
	}
	return string(body), err
}

// metric reads one value of a Prometheus page; -1 when it cannot be had.
func (c *client) metric(ctx context.Context, base, name string) float64 {
	text, err := c.get(ctx, base+"/metrics")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+"{"); ok {
			if _, v, ok := strings.Cut(rest, "} "); ok {
				if n, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil {
					return n
				}
			}
		}
	}
	return -1
}

// objects is storage_manager.l1_manager.total_object_count of a server's
// /status; -1 when it cannot be had.
func (c *client) objects(ctx context.Context, base string) int {
	text, err := c.get(ctx, base+"/status")
	if err != nil {
		return -1
	}
	var s struct {
		Storage struct {
			L1 struct {
				Count *int `json:"total_object_count"`
			} `json:"l1_manager"`
		} `json:"storage_manager"`
	}
	if json.Unmarshal([]byte(text), &s) != nil || s.Storage.L1.Count == nil {
		return -1
	}
	return *s.Storage.L1.Count
}
