package l1cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

// TestEviction runs the scripts in testdata/eviction: a line is a command, the
// lines "= ..." below it are what it prints (-update rewrites them). Chunks are named by prompt and
// number (a3); sizes and addresses are in steps of the alignment.
func TestEviction(t *testing.T) {
	files, err := filepath.Glob("testdata/eviction/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			s := &script{t: t, clock: newClock(), res: map[string]*Reservation{}, leases: map[string]*Lease{}, reads: map[string]*Transfer{}}
			var out bytes.Buffer
			for line := range strings.Lines(string(text)) {
				line = strings.TrimSpace(line)
				if strings.HasPrefix(line, "= ") {
					continue
				}
				fmt.Fprintln(&out, line)
				if line == "" || line[0] == '#' {
					continue
				}
				for _, l := range s.run(strings.Fields(line)) {
					fmt.Fprintln(&out, "= "+l)
				}
				if s.c != nil {
					require.NoError(t, s.c.Check(), line)
				}
			}
			testutil.Golden(t, "eviction/"+filepath.Base(path), out.Bytes())
		})
	}
}

const step = 64

type script struct {
	t      *testing.T
	clock  *clock
	c      *Cache
	arena  *Arena
	res    map[string]*Reservation
	leases map[string]*Lease
	reads  map[string]*Transfer
}

// chunks parses "a0-3" as four chunks of prompt a, "b7" as one.
func (s *script) chunks(word string) []Hash {
	from, to, isRange := strings.Cut(word[1:], "-")
	lo := s.number(from)
	hi := lo
	if isRange {
		hi = s.number(to)
	}
	return hashes(int(word[0])*1000+lo, hi-lo+1)
}

func (s *script) number(word string) int {
	s.t.Helper()
	n, err := strconv.Atoi(word)
	require.NoError(s.t, err)
	return n
}

func name(h Hash) string {
	n := int(h[8]) | int(h[9])<<8 | int(h[10])<<16
	return fmt.Sprintf("%c%d", n/1000, n%1000)
}

func (s *script) arg(w []string, i, def int) int {
	if i >= len(w) {
		return def
	}
	return s.number(w[i])
}

func (s *script) run(w []string) []string {
	say := func(format string, a ...any) []string { return []string{fmt.Sprintf(format, a...)} }
	switch w[0] {
	case "pool": // pool STEPS [noop]
		s.arena = grownArena(int64(s.number(w[1])) * step)
		s.c = newCache(s.t, Options{
			Arena: s.arena, AlignBytes: step, Evict: len(w) < 3, Now: s.clock.Now, WriteTTL: 100 * time.Second, ReadTTL: 50 * time.Second,
		})
	case "store", "reserve": // store CHUNKS [SIZE]; reserve NAME CHUNKS [SIZE]
		at := 1
		if w[0] == "reserve" {
			at = 2
		}
		r, err := s.c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: s.chunks(w[at]), SizeBytes: int64(s.arg(w, at+1, 1)) * step})
		switch {
		case errors.Is(err, ErrNoSpace):
			return say("no space")
		case errors.Is(err, ErrTooLarge):
			return say("too large")
		case err != nil:
			return say("error: %v", err)
		}
		if w[0] == "store" {
			r.Publish(nil)
		} else {
			s.res[w[1]] = r
		}
		if resident, busy := r.Skipped(); resident+busy > 0 {
			return say("new %d, resident %d, busy %d", len(r.Slots()), resident, busy)
		}
	case "fill":
		s.res[w[1]].BeginFill()
	case "publish": // publish NAME [KEEP as 0/1 digits]
		var keep []bool
		if len(w) > 2 {
			for _, d := range w[2] {
				keep = append(keep, d == '1')
			}
		}
		return say("%d", s.res[w[1]].Publish(keep))
	case "abort":
		s.res[w[1]].Abort()
	case "quarantine":
		s.res[w[1]].Quarantine()
	case "release":
		s.res[w[1]].Release()
	case "lookup": // lookup NAME CHUNKS [READERS]; name "-" holds nothing
		r := request(s.chunks(w[2]))
		r.Readers = s.arg(w, 3, 1)
		l, pending := s.c.Lookup(r, func() {})
		switch {
		case pending:
			return say("pending")
		case l == nil:
			return say("hit 0")
		case w[1] == "-":
			l.Release()
		default:
			s.leases[w[1]] = l
		}
		return say("hit %d", l.Hit())
	case "take": // take NAME LEASE FROM TO
		tr, err := s.leases[w[2]].Take(0, 0, s.number(w[3]), s.number(w[4]))
		if err != nil {
			return say("%v", errors.Unwrap(err))
		}
		s.reads[w[1]] = tr
	case "done":
		require.NotNil(s.t, s.reads[w[1]], "no transfer %s", w[1])
		s.reads[w[1]].Done()
	case "free": // free LEASE FROM TO [N]
		return say("%d", s.leases[w[1]].Free(nil, s.number(w[2]), s.number(w[3]), s.arg(w, 4, 1)))
	case "drop":
		s.leases[w[1]].Release()
	case "yield":
		s.leases[w[1]].SetYield(true)
	case "outstanding":
		return say("%d", s.leases[w[1]].Outstanding())
	case "touch":
		s.c.Touch(scopeA, []uint32{0}, s.chunks(w[1]))
	case "clear":
		return say("%d", s.c.Clear(len(w) > 1 && w[1] == "force"))
	case "turn":
		s.c.turn()
	case "advance": // advance SECONDS
		s.clock.advance(time.Duration(s.number(w[1])) * time.Second)
	case "show":
		return s.show()
	case "evicted":
		st := s.c.Stats()
		return say("demand %d, neighbour %d, watermark %d, clear %d, no space %d, too large %d", st.Evicted[EvictDemand],
			st.Evicted[EvictNeighbour], st.Evicted[EvictWatermark], st.Evicted[EvictClear], st.NoSpace, st.TooLarge)
	default:
		s.t.Fatalf("unknown command %q", w[0])
	}
	return nil
}

// show prints the recency order and the region. Objects that are not published
// carry a mark: ? reserved, ~ filling, ! quarantined, % orphaned; held ones *.
func (s *script) show() []string {
	c := s.c
	c.mu.Lock()
	defer c.unlock()
	order := []string{"old"}
	for i := c.lists[0].old; i != nilSlot; i = c.objects.at(i).prev {
		order = append(order, name(c.objects.at(i).hash))
	}
	var region []string
	for b := c.alloc.first; b != nilSlot; b = c.alloc.blocks.at(b).next {
		r := c.alloc.blocks.at(b)
		what := "-"
		if r.owner != nilSlot {
			o := c.objects.at(r.owner)
			what = name(o.hash) + [...]string{"", "?", "~", "", "!", "%"}[o.state]
			if o.state == published && !o.evictable() {
				what += "*"
			}
		}
		if r.size != 1 {
			what += fmt.Sprintf(":%d", r.size)
		}
		region = append(region, what)
	}
	return []string{strings.Join(order, " "), strings.Join(region, " ")}
}
