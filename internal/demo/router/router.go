package router

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

const (
	maxBody = 512 << 20 // vllm-router's --max-payload-size
	// dialLimit and healthLimit bound what does not depend on a request's length.
	dialLimit   = 10 * time.Second
	healthLimit = 5 * time.Second
	// requestLimit is vllm-router's --request-timeout-secs.
	requestLimit = 1800 * time.Second
)

// Options configures a [Router]. Prefill and Decode are urls, http://host:port,
// as many of one as of the other or any other number of them.
type Options struct {
	Prefill, Decode []string
	// Logger: default discards.
	Logger *slog.Logger
}

// Router is a handler that sends every POST to a prefill engine and then to a
// decode engine.
type Router struct {
	prefill, decode []*worker
	next            atomic.Uint64
	log             *slog.Logger
}

type worker struct {
	role string
	url  string
	host string // host:port as given
}

// New checks the urls and makes a router; nothing is connected yet.
func New(o Options) (*Router, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Router{log: o.Logger}
	var errs []error
	add := func(list *[]*worker, role string, urls []string) {
		if len(urls) == 0 {
			errs = append(errs, fmt.Errorf("router: no %s worker: give its url", role))
		}
		for _, u := range urls {
			p, err := url.Parse(u)
			if err != nil || p.Scheme != "http" || p.Port() == "" {
				errs = append(errs, fmt.Errorf("router: %s worker %q: use http://host:port", role, u))
				continue
			}
			*list = append(*list, &worker{role, u, p.Host})
		}
	}
	add(&r.prefill, "Prefill", o.Prefill)
	add(&r.decode, "Decode", o.Decode)
	return r, errors.Join(errs...)
}

// ServeHTTP serves the router's own routes and passes everything else on.
func (r *Router) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	switch {
	case q.Method == http.MethodGet && q.URL.Path == "/health":
		r.health(w, q)
	case q.Method == http.MethodGet && q.URL.Path == "/liveness":
		say(w, http.StatusOK, "OK")
	case q.Method == http.MethodGet && q.URL.Path == "/readiness":
		r.readiness(w, q)
	case q.Method == http.MethodGet && q.URL.Path == "/v1/models":
		r.models(w, q)
	case q.Method != http.MethodPost:
		say(w, http.StatusMethodNotAllowed, "Only POST requests are supported for transparent proxy")
	case q.URL.Path == "/v1/embeddings":
		say(w, http.StatusNotImplemented, "Embeddings endpoint not implemented for PD router")
	default:
		r.route(w, q)
	}
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprint(w, text)
}

// unhealthy lists the workers that do not answer.
func (r *Router) unhealthy(ctx context.Context) (names []string, prefill, decode int) {
	for _, list := range [][]*worker{r.prefill, r.decode} {
		for _, wk := range list {
			ctx, cancel := context.WithTimeout(ctx, healthLimit)
			status, _, err := get(ctx, wk.url+"/health")
			cancel()
			switch {
			case err != nil || status != http.StatusOK:
				names = append(names, wk.role+": "+wk.url)
			case wk.role == "Prefill":
				prefill++
			default:
				decode++
			}
		}
	}
	return names, prefill, decode
}

func (r *Router) health(w http.ResponseWriter, q *http.Request) {
	if bad, _, _ := r.unhealthy(q.Context()); len(bad) > 0 {
		list, _ := json.Marshal(bad) // strings
		say(w, http.StatusServiceUnavailable, "Unhealthy servers: "+string(list))
		return
	}
	say(w, http.StatusOK, "All servers healthy")
}

func (r *Router) readiness(w http.ResponseWriter, q *http.Request) {
	_, prefill, decode := r.unhealthy(q.Context())
	status, word := http.StatusOK, "ready"
	if prefill == 0 || decode == 0 {
		status, word = http.StatusServiceUnavailable, "not_ready"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"status":%q,"prefill":{"healthy":%d,"total":%d},"decode":{"healthy":%d,"total":%d}}`, word, prefill, len(r.prefill), decode, len(r.decode))
}

func (r *Router) models(w http.ResponseWriter, q *http.Request) {
	status, body, err := get(q.Context(), r.prefill[0].url+"/v1/models")
	if err != nil {
		say(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have gone
}

func get(ctx context.Context, url string) (int, []byte, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	q.Close = true
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, body, err
}

// route sends a request to a prefill and then to a decode engine.
func (r *Router) route(w http.ResponseWriter, q *http.Request) {
	ctx, cancel := context.WithTimeout(q.Context(), requestLimit)
	defer cancel()
	data, err := io.ReadAll(http.MaxBytesReader(w, q.Body, maxBody))
	var o object
	if err == nil {
		o, err = parseObject(data)
	}
	if err != nil {
		say(w, http.StatusBadRequest, err.Error())
		return
	}
	path := q.URL.Path
	o = normalize(path, o)
	n := r.next.Add(1) - 1
	p, d := r.prefill[n%uint64(len(r.prefill))], r.decode[n%uint64(len(r.decode))]
	id := requestID(p, d)
	broken := func(err error) {
		r.log.Error("request failed", "request_id", id, "err", err)
		say(w, http.StatusInternalServerError, "Transparent proxy request failed: "+err.Error())
	}
	body, err := prefillBody(path, o)
	if err != nil {
		broken(err)
		return
	}
	params, err := r.askPrefill(ctx, p, path, id, body)
	if err != nil {
		broken(err)
		return
	}
	if body, err = decodeBody(o, params); err != nil {
		broken(err)
		return
	}
	resp, err := post(ctx, d, path, id, body)
	if err != nil {
		broken(fmt.Errorf("Network error: Decode server %s%s: %w", d.url, path, err)) //nolint:staticcheck // the router's words
		return
	}
	defer resp.Body.Close()
	pass(w, resp)
}

// requestID carries both addresses, by which engines and people find each other.
func requestID(p, d *worker) string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return "___prefill_addr_" + p.host + "___decode_addr_" + d.host + "_" + hex.EncodeToString(b[:])
}

// askPrefill returns the kv_transfer_params of the answer, nil for none.
func (r *Router) askPrefill(ctx context.Context, p *worker, path, id string, body []byte) (json.RawMessage, error) {
	resp, err := post(ctx, p, path, id, body)
	if err != nil {
		return nil, fmt.Errorf("Network error: Prefill server %s%s: %w", p.url, path, err) //nolint:staticcheck // the router's words
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("Network error: Prefill server %s%s: %w", p.url, path, err) //nolint:staticcheck // likewise
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("Network error: Prefill server %s%s returned %d %s: %s", p.url, path, resp.StatusCode, http.StatusText(resp.StatusCode), data) //nolint:staticcheck // likewise
	}
	var answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("Prefill server %s%s: %w", p.url, path, err) //nolint:staticcheck // likewise
	}
	return answer.Params, nil
}

// body ends the connection of an answer with it.
type body struct {
	io.ReadCloser
	conn net.Conn
	stop func() bool
}

func (b *body) Close() error {
	b.stop()
	err := b.ReadCloser.Close()
	return errors.Join(err, b.conn.Close())
}

// post sends the bytes that the real router sends: its headers, in its order
// and spelling, which net/http's client would change. When ctx ends the
// connection does.
func post(ctx context.Context, w *worker, path, id string, data []byte) (*http.Response, error) {
	conn, err := (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, "tcp", w.host)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // whoever reads gets the error
	head := fmt.Appendf(nil, "POST %s HTTP/1.1\r\ncontent-type: application/json\r\nauthorization: Bearer \r\nx-request-id: %s\r\naccept: */*\r\nhost: %s\r\ncontent-length: %d\r\n\r\n",
		path, id, w.host, len(data))
	_, err = conn.Write(append(head, data...))
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodPost})
	}
	if err != nil {
		stop()
		return nil, errors.Join(err, conn.Close())
	}
	resp.Body = &body{resp.Body, conn, stop}
	return resp, nil
}

// pass hands an answer on as it comes.
func pass(w http.ResponseWriter, resp *http.Response) {
	for _, h := range []string{"Content-Type", "Content-Length"} {
		if v := resp.Header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(w)
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return
			}
			_ = rc.Flush() // Write tells when the client has gone
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // cut the client's connection too: the answer is not whole
		}
	}
}
