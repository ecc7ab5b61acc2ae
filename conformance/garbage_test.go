package conformance

import (
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// randomBytes returns fewer than limit random bytes.
func randomBytes(r *rand.Rand, limit int) []byte {
	b := make([]byte, r.IntN(limit))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// headers are msgpack headers that promise far more than follows.
var headers = [][]byte{
	{0xdd, 0xff, 0xff, 0xff, 0xff},
	{0xdf, 0xff, 0xff, 0xff, 0xff},
	{0xc6, 0xff, 0xff, 0xff, 0xff},
	{0xdb, 0x7f, 0xff, 0xff, 0xff},
	{0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	{0xc1},
	{0xc7, 0xff, 0x01},
}

// garbage makes one message: random frames, or a real request with something
// broken in it.
func garbage(r *rand.Rand, good [][]frame) [][]byte {
	if r.IntN(3) == 0 {
		out := make([][]byte, 1+r.IntN(6))
		for i := range out {
			out[i] = randomBytes(r, 64)
		}
		return out
	}
	out := raw(good[r.IntN(len(good))])
	for range 1 + r.IntN(3) {
		i := r.IntN(len(out))
		f := slices.Clone(out[i])
		switch r.IntN(9) {
		case 0: // another operation
			out[min(1, len(out)-1)] = []byte{byte(r.IntN(48))}
			continue
		case 1: // a frame too few
			if len(out) > 1 {
				out = slices.Delete(out, i, i+1)
			}
			continue
		case 2: // a frame too many
			out = slices.Insert(out, i, randomBytes(r, 20))
			continue
		case 3:
			f = f[:r.IntN(len(f)+1)]
		case 4:
			f = append(f, randomBytes(r, 8)...)
		case 5:
			f = append(slices.Clone(headers[r.IntN(len(headers))]), f...)
		case 6:
			if at := r.IntN(len(f) + 1); at < len(f) {
				f = append(f[:at], headers[r.IntN(len(headers))]...)
			}
		default: // flipped bits
			for range 1 + r.IntN(4) {
				if len(f) > 0 {
					f[r.IntN(len(f))] ^= 1 << r.IntN(8)
				}
			}
		}
		out[i] = f
	}
	return out
}

// realRequests are all recorded requests.
func realRequests(t *testing.T) [][]frame {
	t.Helper()
	var out [][]frame
	for _, r := range recorded[request](t, "requests.json") {
		out = append(out, r.Frames)
	}
	for _, x := range recorded[exchange](t, "live_shm.json") {
		out = append(out, x.Send)
	}
	return out
}

// TestGarbage sends 3000 random messages on four sockets that read nothing,
// then asks as a client does.
func TestGarbage(t *testing.T) {
	if *againstReference {
		t.Skip("one message of a single frame makes the real server deaf")
	}
	s := newServer(t, config{chunk: 16, poolMiB: 16, pool: true})
	before := newDealer(t, s)
	before.alive(t)
	good := realRequests(t)
	r := rand.New(rand.NewPCG(*seed, 1000))
	const messages, sockets = 3000, 4
	senders := make([]*dealer, sockets)
	for i := range senders {
		senders[i] = newDealer(t, s)
	}
	for i := range messages {
		if err := senders[i%sockets].send(garbage(r, good)...); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	before.alive(t)
	newDealer(t, s).alive(t)

	ctx := t.Context()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.httpURL()+"/healthcheck", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: replyLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("healthcheck: got %s", response.Status)
	}
	if os.Getenv("LMCACHE_GO_PYTHON") != "" {
		script{
			name: "oracle_client.py", args: []string{"--url", s.url(), "--modes", "none", "--answers"},
			limit: time.Minute, steps: 10,
		}.run(t)
	}
	s.terminate()
}

// TestTerminateUnderLoad stops the server while clients keep asking.
func TestTerminateUnderLoad(t *testing.T) {
	s := newServer(t, config{chunk: 16, poolMiB: 64, pool: true})
	recording := recorded[exchange](t, "live_shm.json")
	stop := make(chan struct{})
	var clients sync.WaitGroup
	ready := make(chan struct{}, 8)
	for range cap(ready) {
		clients.Go(func() {
			d, err := dial(s.url())
			if err != nil {
				t.Error(err)
				return
			}
			defer d.close()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				x := recording[i%len(recording)]
				// After the end of the server nobody answers; that is no error here.
				if err := d.send(raw(x.Send)...); err != nil {
					return
				}
				if _, err := d.receive(50 * time.Millisecond); err != nil {
					t.Error(err)
					return
				}
				if i == 100 {
					ready <- struct{}{}
				}
			}
		})
	}
	timer := time.NewTimer(replyLimit)
	defer timer.Stop()
	for range cap(ready) {
		select {
		case <-ready:
		case <-timer.C:
			t.Error("the clients got no load onto the server")
		}
	}
	s.terminate()
	close(stop)
	clients.Wait()
}
