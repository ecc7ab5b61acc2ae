// Package pair runs two processes that transfer memory between each other, for
// the commands `lmcache-go nixl bench` and `lmcache-go doctor nixl`: a target,
// which owns memory, and an initiator, which reads and writes it. Both are this
// program started again; other initiators (a C program, a Python script) speak
// the same protocol.
//
// The protocol is lines of words. The target says
//
//	target NAME BLOB(base64, raw metadata) MEM DEV ADDR SIZE
//
// and answers `fill SEED` and `check SEED OLD LEN COUNT STRIDE` with `ok` or
// `error TEXT`. An initiator is told
//
//	start MEM DEV SIZE PARAMS(k=v,k=v or -) and the target's line
//
// and answers `ok`; then each
//
//	case OP LEN COUNT STRIDE NSEC
//
// with `result ITERS CPU_NSEC WALL_NSEC BUILD_NSEC DESCS BUILD_ARRAY_NSEC
// BEST_CPU BEST_WALL PREPARED_NSEC`, after at least that much time of reposting one request
// (BEST are nanoseconds of a thousand transfers in the best chunk of them), and `fill`, `check` as the target does,
// `raw LEN COUNT STRIDE` with a result of a plain copy.
package pair

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// Side describes one process's memory.
type Side struct {
	Mem  nixl.MemType
	Dev  int
	Size int
}

// Target is what an initiator must know of a target.
type Target struct {
	Side
	Name string
	Blob []byte
	Addr uintptr
}

// Line is the target's line.
func (t Target) Line() string {
	return fmt.Sprintf("target %s %s %d %d %d %d", t.Name, base64.StdEncoding.EncodeToString(t.Blob), t.Mem, t.Dev, t.Addr, t.Size)
}

// ParseTarget reads the target's line.
func ParseTarget(line string) (Target, error) {
	w := strings.Fields(line)
	if len(w) != 7 || w[0] != "target" {
		return Target{}, fmt.Errorf("no target's line: %.200q", line)
	}
	var t Target
	var err error
	if t.Blob, err = base64.StdEncoding.DecodeString(w[2]); err != nil {
		return Target{}, fmt.Errorf("the target's metadata: %w", err)
	}
	n, err := numbers(w[3:])
	if err != nil {
		return Target{}, err
	}
	t.Name, t.Mem, t.Dev, t.Addr, t.Size = w[1], nixl.MemType(n[0]), n[1], uintptr(n[2]), n[3]
	return t, nil
}

// Case is one measurement.
type Case struct {
	Op     nixl.Op
	Len    int // bytes of one descriptor
	Count  int
	Stride int // from start to start; Len when descriptors touch
	NSec   int64
}

// Line is the initiator's command.
func (c Case) Line() string {
	return fmt.Sprintf("case %s %d %d %d %d", c.Op, c.Len, c.Count, c.Stride, c.NSec)
}

// Span is how much memory the case touches, from first to last byte.
func (c Case) Span() int { return (c.Count-1)*c.Stride + c.Len }

// Bytes is how much one transfer moves.
func (c Case) Bytes() int { return c.Count * c.Len }

// Result is the answer to a case: sums over all iterations. CPU is the calling
// thread's.
type Result struct {
	Iters          int
	CPUNSec        int64
	WallNSec       int64
	BuildNSec      int64 // from the numbers of blocks to a request, best of several
	BuildArrayNSec int64 // Python: with numpy arrays instead of tuples; else 0
	Descs          int   // after joining, 0 when unknown
	BestCPU        int64 // nanoseconds of 1000 transfers, in the best chunk
	BestWall       int64
	PreparedNSec   int64 // as BuildNSec, from prepared lists
}

// CPUPerOp is microseconds of the calling thread's CPU per transfer, in the
// best chunk: what else the machine does only adds.
func (r Result) CPUPerOp() float64 { return float64(r.BestCPU) / 1e6 }

// WallPerOp is microseconds per transfer in the best chunk.
func (r Result) WallPerOp() float64 { return float64(r.BestWall) / 1e6 }

// GBps is the throughput over the whole time, in 10^9 bytes a second.
func (r Result) GBps(c Case) float64 {
	if r.WallNSec == 0 {
		return 0
	}
	return float64(c.Bytes()) * float64(r.Iters) / float64(r.WallNSec)
}

// Line is the initiator's answer.
func (r Result) Line() string {
	return fmt.Sprintf("result %d %d %d %d %d %d %d %d %d", r.Iters, r.CPUNSec, r.WallNSec, r.BuildNSec, r.Descs, r.BuildArrayNSec, r.BestCPU, r.BestWall, r.PreparedNSec)
}

// ParseResult reads the answer to a case; an `error` line is an error.
func ParseResult(line string) (Result, error) {
	w := strings.Fields(line)
	if len(w) != 10 || w[0] != "result" {
		return Result{}, answerError(line)
	}
	n, err := numbers(w[1:])
	if err != nil {
		return Result{}, err
	}
	return Result{
		Iters: n[0], CPUNSec: int64(n[1]), WallNSec: int64(n[2]), BuildNSec: int64(n[3]), Descs: n[4],
		BuildArrayNSec: int64(n[5]), BestCPU: int64(n[6]), BestWall: int64(n[7]), PreparedNSec: int64(n[8]),
	}, nil
}

func answerError(line string) error {
	if text, ok := strings.CutPrefix(line, "error "); ok {
		return fmt.Errorf("%s", text)
	}
	return fmt.Errorf("an answer makes no sense: %.200q", line)
}

func numbers(words []string) ([]int, error) {
	n := make([]int, len(words))
	for i, w := range words {
		v, err := strconv.ParseUint(w, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no number", w)
		}
		n[i] = int(v)
	}
	return n, nil
}

// FormatParams writes backend parameters as one word.
func FormatParams(m map[string]string) string {
	if len(m) == 0 {
		return "-"
	}
	var parts []string
	for k, v := range m {
		parts = append(parts, k+"="+v)
	}
	return strings.Join(parts, ";")
}

// ParseParams reads them.
func ParseParams(word string) map[string]string {
	m := map[string]string{}
	if word == "-" {
		return m
	}
	for _, part := range strings.Split(word, ";") {
		if k, v, ok := strings.Cut(part, "="); ok {
			m[k] = v
		}
	}
	return m
}
