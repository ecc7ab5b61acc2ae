package metrics

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Other is the label value under which everything past a limit is counted. A
// client that really uses this word shares the series.
const Other = "other"

// maxLabelBytes bounds one label value; a longer one is counted as [Other].
const maxLabelBytes = 256

// table maps label values to the counters of that label set. Reads take no lock
// and do not allocate; writes copy the map, which is bounded.
type table[K comparable, V any] struct {
	limit int
	mu    sync.Mutex
	m     atomic.Pointer[map[K]V]
}

func newTable[K comparable, V any](limit int) *table[K, V] {
	t := &table[K, V]{limit: limit}
	t.m.Store(&map[K]V{})
	return t
}

// get returns the value of k, building it on first use. It reports false when
// the table is full and k is not in it.
func (t *table[K, V]) get(k K, build func() (K, V)) (V, bool) {
	if v, ok := (*t.m.Load())[k]; ok {
		return v, true
	}
	return t.add(k, build)
}

// lookup is get without building.
func (t *table[K, V]) lookup(k K) (V, bool) {
	v, ok := (*t.m.Load())[k]
	return v, ok
}

func (t *table[K, V]) add(k K, build func() (K, V)) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.m.Load()
	if v, ok := old[k]; ok {
		return v, true
	}
	if len(old) >= t.limit {
		var zero V
		return zero, false
	}
	key, v := build()
	next := make(map[K]V, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	next[key] = v
	t.m.Store(&next)
	return v, true
}

// usable reports whether v may become a label value at all.
func usable(v string) bool { return len(v) <= maxLabelBytes }

// series formats a metric name with labels given as name, value, name, value.
func series(name string, labels ...string) string {
	if len(labels) == 0 {
		return name
	}
	var b strings.Builder
	b.WriteString(name)
	sep := byte('{')
	for pair := range slices.Chunk(labels, 2) {
		b.WriteByte(sep)
		b.WriteString(pair[0])
		b.WriteString(`="`)
		b.WriteString(escape(pair[1]))
		b.WriteByte('"')
		sep = ','
	}
	b.WriteByte('}')
	return b.String()
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// escape makes any bytes of a client a label value that a strict parser reads.
func escape(v string) string { return escaper.Replace(strings.ToValidUTF8(v, "\uFFFD")) }
