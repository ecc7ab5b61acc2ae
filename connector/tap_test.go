package connector

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// trace is what went over one socket, as lines like "LOOKUP[0,512)". It is read
// off the bytes of the connection, not told by the client.
type trace struct {
	mu    sync.Mutex
	lines []string          // guarded by mu
	byUID map[string]int    // guarded by mu: line of a request that waits for its reply
	more  map[string]*trace // traces of further servers, by address
}

func newTrace() *trace { return &trace{byUID: make(map[string]int)} }

// take returns the lines since the last call, without those of a query that
// was answered None and asked again, and of the test's own noops.
func (tr *trace) take() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	out := slices.DeleteFunc(slices.Clone(tr.lines), func(s string) bool { return s == "QUERY->None" || s == "NOOP" })
	tr.lines, tr.byUID = nil, make(map[string]int)
	return out
}

// dial is Options.DialContext of a client that is traced.
func (tr *trace) dial(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if other := tr.more[address]; other != nil {
		tr = other
	}
	return &tap{Conn: nc, tr: tr}, nil
}

type tap struct {
	net.Conn
	tr       *trace
	out, in  []byte
	outShook bool
	inShook  bool
}

func (t *tap) Write(b []byte) (int, error) {
	t.out = append(t.out, b...)
	t.out = split(t.out, &t.outShook, t.tr.request)
	return t.Conn.Write(b)
}

func (t *tap) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.in = append(t.in, b[:n]...)
	t.in = split(t.in, &t.inShook, t.tr.reply)
	return n, err
}

// split hands whole messages of a ZMTP stream to f and returns what is left.
func split(b []byte, shook *bool, f func(frames [][]byte)) []byte {
	if !*shook {
		if len(b) < 66 || len(b) < 66+int(b[65]) {
			return b
		}
		b = b[66+int(b[65]):] // the greeting and READY
		*shook = true
	}
	for {
		var frames [][]byte
		rest := b
		for {
			if len(rest) < 2 {
				return b
			}
			flags, n, head := rest[0], uint64(rest[1]), 2
			if flags&2 != 0 {
				if len(rest) < 9 {
					return b
				}
				n, head = binary.BigEndian.Uint64(rest[1:]), 9
			}
			if uint64(len(rest)-head) < n {
				return b
			}
			frames = append(frames, rest[head:head+int(n)])
			rest = rest[head+int(n):]
			if flags&1 == 0 {
				break
			}
		}
		f(frames)
		b = slices.Clone(rest)
	}
}

func (tr *trace) request(m [][]byte) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.byUID[string(m[0])] = len(tr.lines)
	tr.lines = append(tr.lines, describe(m))
}

// reply adds the answer where a row tells it.
func (tr *trace) reply(m [][]byte) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	i, ok := tr.byUID[string(m[0])]
	if !ok {
		return
	}
	op, _ := wire.ParseOp(m[1])
	answer := ""
	switch op {
	case wire.OpQueryPrefetchStatus:
		answer = "->None"
		if len(m) == 3 {
			n, _ := wire.DecodeInt(m[2])
			answer = fmt.Sprintf("->%d", n)
		}
	case wire.OpStore, wire.OpRetrieve:
		if _, ok, err := wire.DecodeStoreReply(m[2]); err != nil || !ok {
			answer = "->False"
		}
	case wire.OpCommitStore, wire.OpCommitRetrieve:
		if ok, err := wire.DecodeBool(m[2]); err != nil || !ok {
			answer = "->False"
		}
	}
	tr.lines[i] += answer
}

func describe(m [][]byte) string {
	op, err := wire.ParseOp(m[1])
	if err != nil || len(m) != 2+op.Arity() {
		return fmt.Sprintf("bad request %v of %d frames: %v", op, len(m), err)
	}
	p := m[2:]
	keyed := func(name string) string {
		var k wire.Key
		if err := wire.DecodeKey(p[0], &k, nil); err != nil {
			return name + " bad key: " + err.Error()
		}
		s := fmt.Sprintf("%s[%d,%d)", name, k.Start, k.End)
		if k.HasWorker && k.WorldSize > 1 {
			s += fmt.Sprintf(" worker %d of %d", k.WorkerID, k.WorldSize)
		}
		return s
	}
	blocks := func() int {
		ids, err := wire.DecodeBlockIDs(p[2], nil)
		if err != nil {
			return -1
		}
		return len(ids[0])
	}
	switch op {
	case wire.OpPing:
		if p[0][0] == 0xc0 {
			return "PING(None)"
		}
		return "PING(id)"
	case wire.OpLookup:
		return keyed("LOOKUP")
	case wire.OpFreeLookupLocks:
		return keyed("FREE")
	case wire.OpQueryPrefetchStatus:
		return "QUERY"
	case wire.OpEndSession:
		return "END_SESSION"
	case wire.OpReportBlockAllocation:
		records, _ := wire.DecodeBlockAllocationRecords(p[2])
		s := "REPORT"
		for _, r := range records {
			s += fmt.Sprintf(" %d blocks %d tokens", len(r.BlockIDs), len(r.TokenIDs))
		}
		return s
	case wire.OpStore:
		return fmt.Sprintf("%s %d blocks", keyed("STORE"), blocks())
	case wire.OpRetrieve:
		skip, _ := wire.DecodeInt(p[4])
		return fmt.Sprintf("%s %d blocks skip %d", keyed("RETRIEVE"), blocks(), skip)
	case wire.OpPrepareStore, wire.OpCommitStore, wire.OpPrepareRetrieve, wire.OpCommitRetrieve:
		return keyed(strings.ToUpper(op.String()))
	}
	return strings.ToUpper(op.String())
}

// requireTrace compares what a socket saw since the last time.
func requireTrace(t *testing.T, who string, tr *trace, want ...string) {
	t.Helper()
	if len(want) == 0 {
		want = nil
	}
	require.Equal(t, want, tr.take(), "operations of %s", who)
}
