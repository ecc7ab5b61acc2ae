package mpserver

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// logLines are the lines of all files in dir, in the order of their names.
func logLines(t *testing.T, dir string) (files []string, lines [][]byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		for line := range bytes.Lines(data) {
			lines = append(lines, bytes.TrimSpace(line))
		}
	}
	return files, lines
}

// TestLookupHashLog: a lookup is written in the recorded form.
func TestLookupHashLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	s := startServer(t, func(o *Options) { o.ChunkSize, o.LookupHashLog.Dir = 256, dir })
	p := connect(t, s)
	c := wire.EngineDrivenContext{InstanceID: 1, Model: testModel, WorldSize: 1, BlockSize: 16, NumLayers: 4, HiddenDim: 64, DType: "bfloat16"}
	_, refused := p.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &c))
	require.False(t, refused)
	tokens := prompt(1, 1024+5)
	k := keyOf("req-3", tokens)
	k.End = 1024
	require.Zero(t, p.lookup(k))
	short := keyOf("short", tokens[:3])
	require.Zero(t, p.lookup(short))
	var lines [][]byte
	testutil.Eventually(t, "the line is written", func() bool {
		_, lines = logLines(t, dir)
		return len(lines) > 0
	})
	require.Len(t, lines, 1, "a lookup without a chunk is not worth a line")
	golden, err := os.ReadFile("testdata/lookup_hash_log.jsonl")
	require.NoError(t, err)
	first, _, _ := bytes.Cut(golden, []byte("\n"))
	require.Equal(t, pathsOf(t, first), pathsOf(t, lines[0]))
	var want, got hashLine
	require.NoError(t, json.Unmarshal(first, &want))
	require.NoError(t, json.Unmarshal(lines[0], &got))
	for i, h := range hashesOf(t, s, tokens) {
		want.ChunkHashes[i] = "0x" + h
	}
	require.InDelta(t, float64(time.Now().Unix()), float64(got.Timestamp), 60)
	want.Timestamp, want.SeqLen = got.Timestamp, 1029
	require.Equal(t, want, got)
}

func TestLookupHashLogRotation(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "lookup_hashes_20200101_000000_000000.jsonl")
	require.NoError(t, os.WriteFile(old, []byte("{}\n"), 0o600))
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(old, long, long))
	other := filepath.Join(dir, "somebody else's")
	require.NoError(t, os.WriteFile(other, nil, 0o600))

	l, err := newHashLog(HashLogOptions{Dir: dir, RotateAfter: time.Hour, RotateBytes: 300, MaxFiles: 3}, 256, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	lay := &layout{model: "m"}
	write := func(at time.Time) {
		l.write(&hashRecord{at: at, lay: lay, tokens: 512, chunks: make([]hash.Digest, 2)})
	}
	start := l.opened
	write(start)
	write(start)
	require.Len(t, l.files, 2, "the old one counts")
	write(start.Add(59 * time.Minute)) // 300 bytes are full
	require.Len(t, l.files, 3)
	write(start.Add(3 * time.Hour)) // an hour has passed
	require.Len(t, l.files, 3)
	l.close()
	files, lines := logLines(t, dir)
	require.Len(t, files, 4, "three, and one that is not ours")
	require.Len(t, lines, 4)
	require.NoFileExists(t, old)
	require.FileExists(t, other)
	require.Regexp(t, regexp.MustCompile(`^lookup_hashes_\d{8}_\d{6}_000003\.jsonl$`), filepath.Base(files[2]))
	require.Zero(t, l.dropped.Load())
}

func TestLookupHashLogFailures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := New(Options{HTTPPort: -1, L1: L1Options{SizeBytes: 1 << 20}, LookupHashLog: HashLogOptions{Dir: file}})
	require.ErrorContains(t, err, "--lookup-hash-log-dir")

	dir := t.TempDir()
	l, err := newHashLog(HashLogOptions{Dir: dir, RotateAfter: time.Hour, RotateBytes: 1, MaxFiles: 3}, 256, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	lay := &layout{model: "m"}
	l.write(&hashRecord{at: time.Now(), lay: lay})
	require.NoError(t, os.RemoveAll(dir))
	l.write(&hashRecord{at: time.Now(), lay: lay})
	require.Equal(t, int64(1), l.dropped.Load(), "a folder that has gone costs lines and nothing else")
	for range hashLogQueue + 5 {
		l.note(hashRecord{at: time.Now(), lay: lay})
	}
	require.Equal(t, int64(6), l.dropped.Load())
	var none *hashLog
	none.note(hashRecord{})
}
