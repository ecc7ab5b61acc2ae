package pd

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Transfer is one successful transfer, as NIXL's telemetry tells it.
type Transfer struct {
	Xfer, Post  time.Duration
	Bytes       int64
	Descriptors int // after joining neighbours
}

// Stats are what has happened since the last [Peer.TakeStats], or since the
// start.
type Stats struct {
	Transfers []Transfer
	// FailedTransfers, FailedNotifications and FailedHandshakes on the
	// consumer's side.
	FailedTransfers, FailedNotifications, FailedHandshakes int
	// Expired requests: nobody read them in time. LateNotifs came for requests
	// that were not offered any more.
	Expired, LateNotifs int
}

// Entry is one statistic under vLLM's name.
type Entry struct {
	Key   string
	Value float64
	// Text is the value as Python prints it.
	Text string
}

// Empty says whether nothing has happened; vLLM then logs nothing.
func (s *Stats) Empty() bool {
	return len(s.Transfers) == 0 && s.FailedTransfers+s.FailedNotifications+s.FailedHandshakes+s.Expired+s.LateNotifs == 0
}

// Entries are the statistics under the keys, in the order and with the rounding
// of vLLM 0.33's log.
func (s *Stats) Entries() []Entry {
	var xfer, post, mb, descs []float64
	for _, t := range s.Transfers {
		xfer = append(xfer, t.Xfer.Seconds())
		post = append(post, t.Post.Seconds())
		mb = append(mb, float64(t.Bytes)/(1<<20))
		descs = append(descs, float64(t.Descriptors))
	}
	n := len(s.Transfers)
	var out []Entry
	whole := func(key string, v int) {
		out = append(out, Entry{key, float64(v), strconv.Itoa(v)})
	}
	float := func(key string, digits int, v float64) {
		if n == 0 {
			whole(key, 0)
			return
		}
		scale := math.Pow10(digits)
		v = math.RoundToEven(v*scale) / scale
		out = append(out, Entry{key, v, pyFloat(v)})
	}
	whole("Num successful transfers", n)
	float("Avg xfer time (ms)", 3, mean(xfer)*1e3)
	float("P90 xfer time (ms)", 3, percentile(xfer, 0.9)*1e3)
	float("Avg post time (ms)", 3, mean(post)*1e3)
	float("P90 post time (ms)", 3, percentile(post, 0.9)*1e3)
	float("Avg MB per transfer", 3, mean(mb))
	throughput := 0.0
	if total := sum(xfer); total > 0 {
		throughput = sum(mb) / total
	}
	float("Throughput (MB/s)", 3, throughput)
	float("Avg number of descriptors", 1, mean(descs))
	whole("Num failed transfers", s.FailedTransfers+s.FailedHandshakes+s.FailedNotifications)
	whole("Num KV expired reqs", s.Expired)
	whole("Num notifs after expiry", s.LateNotifs)
	return out
}

// String is what stands behind "KV Transfer metrics: " when the connector is
// alone: "Num successful transfers=1, …".
func (s *Stats) String() string {
	var parts []string
	for _, e := range s.Entries() {
		parts = append(parts, e.Key+"="+e.Text)
	}
	return strings.Join(parts, ", ")
}

// Dict is what a MultiConnector prints for it, a Python dict: "{'Num successful
// transfers': 1, …}".
func (s *Stats) Dict() string {
	var parts []string
	for _, e := range s.Entries() {
		parts = append(parts, fmt.Sprintf("'%s': %s", e.Key, e.Text))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// Add counts other too.
func (s *Stats) Add(other Stats) {
	s.Transfers = append(s.Transfers, other.Transfers...)
	s.FailedTransfers += other.FailedTransfers
	s.FailedNotifications += other.FailedNotifications
	s.FailedHandshakes += other.FailedHandshakes
	s.Expired += other.Expired
	s.LateNotifs += other.LateNotifs
}

// pyFloat is repr(float) for numbers of this size.
func pyFloat(v float64) string {
	t := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(t, ".") {
		t += ".0"
	}
	return t
}

func sum(v []float64) float64 {
	total := 0.0
	for _, x := range v {
		total += x
	}
	return total
}

func mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return sum(v) / float64(len(v))
}

// percentile interpolates linearly, as numpy does.
func percentile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 == len(s) {
		return s[i]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}

// maxTransfers bounds what is kept for callers that never take statistics.
const maxTransfers = 100_000

// counters collects Stats.
type counters struct {
	mu  sync.Mutex
	now Stats // guarded by mu
}

func (c *counters) add(f func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.now)
	if n := len(c.now.Transfers); n > maxTransfers {
		c.now.Transfers = slices.Delete(c.now.Transfers, 0, n-maxTransfers/2)
	}
}

func (c *counters) take() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.now
	c.now = Stats{}
	return s
}
