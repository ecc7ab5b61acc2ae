package mpserver

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
)

// HashLogOptions is the log of lookups, for offline simulation of hit rates
// (`--lookup-hash-log-dir` and its neighbours).
type HashLogOptions struct {
	// Dir is the folder of the files, which is made when missing. "" is no log.
	Dir string
	// RotateAfter is the age at which a file is followed by the next. Default 6 h.
	RotateAfter time.Duration
	// RotateBytes is the size at which it is. Default 100 MiB.
	RotateBytes int64
	// MaxFiles is how many files stay, those of earlier runs included; the
	// oldest are deleted. Default 100.
	MaxFiles int
}

// hashLogQueue bounds the lookups that wait to be written; one more is left out
// and counted.
const hashLogQueue = 4096

// hashLogFiles matches the files of the log (lmcache 0.5.6,
// v1/mp_observability/subscribers/logging/lookup_hash.py).
const hashLogFiles = "lookup_hashes_*.jsonl"

// hashRecord is one lookup to be written.
type hashRecord struct {
	at        time.Time
	requestID string
	lay       *layout
	tokens    int
	chunks    []hash.Digest
}

// hashLog writes lookups to files that follow each other, on a goroutine of its
// own.
type hashLog struct {
	o         HashLogOptions
	chunkSize int
	log       *slog.Logger
	queue     chan hashRecord
	dropped   atomic.Int64

	// Of the writing goroutine.
	files  []string // oldest first
	count  int
	file   *os.File
	out    *bufio.Writer
	size   int64
	opened time.Time
	failed time.Time // the last time that a failure was logged
}

// newHashLog makes the folder and finds the files of earlier runs.
func newHashLog(o HashLogOptions, chunkSize int, log *slog.Logger) (*hashLog, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("--lookup-hash-log-dir: %w", err)
	}
	l := &hashLog{o: o, chunkSize: chunkSize, log: log, queue: make(chan hashRecord, hashLogQueue)}
	found, err := filepath.Glob(filepath.Join(o.Dir, hashLogFiles))
	if err != nil {
		return nil, fmt.Errorf("--lookup-hash-log-dir %q: %w", o.Dir, err)
	}
	age := map[string]time.Time{}
	for _, f := range found {
		if st, err := os.Stat(f); err == nil {
			age[f] = st.ModTime()
			l.files = append(l.files, f)
		}
	}
	slices.SortFunc(l.files, func(a, b string) int { return cmp.Or(age[a].Compare(age[b]), cmp.Compare(a, b)) })
	l.count = len(l.files)
	// The first file at once: a folder that cannot be written to is told at the start.
	return l, l.rotate(time.Now())
}

// note queues a lookup. It never waits; nil does nothing.
func (l *hashLog) note(r hashRecord) {
	if l == nil {
		return
	}
	select {
	case l.queue <- r:
	default:
		l.dropped.Add(1)
	}
}

// run writes what is queued until stop, and what is left then.
func (l *hashLog) run(stop <-chan struct{}) {
	defer l.close()
	for {
		select {
		case r := <-l.queue:
			l.write(&r)
		case <-stop:
			for {
				select {
				case r := <-l.queue:
					l.write(&r)
					continue
				default:
				}
				return
			}
		}
	}
}

// close flushes and closes the present file.
func (l *hashLog) close() {
	if l.file == nil {
		return
	}
	_ = l.out.Flush() // a failure was told when it began
	_ = l.file.Close()
	l.file = nil
}

func (l *hashLog) write(r *hashRecord) {
	if err := l.tryWrite(r); err != nil {
		l.dropped.Add(1)
		if now := time.Now(); now.Sub(l.failed) > time.Minute {
			l.failed = now
			l.log.Warn("the log of lookups cannot be written; lookups are left out", "component", "lookup_hash_log", "left_out", l.dropped.Load(), "err", err)
		}
	}
}

func (l *hashLog) tryWrite(r *hashRecord) error {
	if l.file == nil || r.at.Sub(l.opened) >= l.o.RotateAfter || l.size >= l.o.RotateBytes {
		if err := l.rotate(r.at); err != nil {
			return err
		}
	}
	data, err := json.Marshal(r.line(l.chunkSize))
	if err != nil {
		return err
	}
	n, err := l.out.Write(append(data, '\n'))
	l.size += int64(n)
	if err == nil && len(l.queue) == 0 {
		err = l.out.Flush()
	}
	if err != nil {
		l.close()
	}
	return err
}

// rotate begins the next file and deletes the oldest beyond the limit.
func (l *hashLog) rotate(now time.Time) error {
	l.close()
	name := filepath.Join(l.o.Dir, fmt.Sprintf("lookup_hashes_%s_%06d.jsonl", now.UTC().Format("20060102_150405"), l.count))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("--lookup-hash-log-dir: %w", err)
	}
	l.file, l.out, l.size, l.opened = f, bufio.NewWriterSize(f, 64<<10), 0, now
	l.count++
	l.files = append(l.files, name)
	for len(l.files) > l.o.MaxFiles {
		oldest := l.files[0]
		l.files = l.files[1:]
		if err := os.Remove(oldest); err != nil && !os.IsNotExist(err) {
			l.log.Warn("an old log of lookups cannot be deleted", "component", "lookup_hash_log", "err", err)
		}
	}
	return nil
}

// hashLine is a line of the log.
type hashLine struct {
	Timestamp   httpapi.Float `json:"timestamp"`
	RequestID   string        `json:"request_id"`
	ModelName   string        `json:"model_name"`
	ChunkSize   int           `json:"chunk_size"`
	SeqLen      int           `json:"seq_len"`
	DTypes      []string      `json:"dtypes"`
	Shapes      [][]int64     `json:"shapes"`
	ChunkHashes []string      `json:"chunk_hashes"`
}

func (r *hashRecord) line(chunkSize int) hashLine {
	out := hashLine{
		Timestamp: httpapi.Float(float64(r.at.UnixMicro()) / 1e6), RequestID: r.requestID, ModelName: r.lay.model, ChunkSize: chunkSize, SeqLen: r.tokens,
		DTypes: []string{}, Shapes: [][]int64{}, ChunkHashes: make([]string, len(r.chunks)),
	}
	for i := range r.chunks {
		out.ChunkHashes[i] = "0x" + hex.EncodeToString(r.chunks[i][:])
	}
	if len(r.lay.groups) == 0 {
		return out
	}
	for _, x := range r.lay.groups[0].form.AsTokenMajor().Regions {
		row := x.RowBytes
		if d, ok := torchdtype.Lookup(x.DType); ok {
			row /= int64(d.Size)
		}
		shape := []int64{int64(x.Planes), int64(x.Layers), x.Slots, row}
		if x.Planes == 1 {
			shape = shape[1:]
		}
		out.DTypes, out.Shapes = append(out.DTypes, "torch."+x.DType), append(out.Shapes, shape)
	}
	return out
}
