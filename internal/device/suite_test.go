package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

func TestMain(m *testing.M) {
	cudatest.Main(m, func(m *testing.M) { goleak.VerifyTestMain(m) })
}

// rig is a device and a way to make engine memory for it.
type rig struct {
	Device
	t      *testing.T
	memory func(key string, n int64) []byte
	// hardware: what was submitted runs, whatever is closed or canceled.
	hardware bool
}

// devices runs a test on every device.
func devices(t *testing.T, f func(r *rig)) {
	t.Helper()
	t.Run("cpu", func(t *testing.T) {
		t.Parallel()
		d := newCPU(t, CPUOptions{Threads: 2, PartBytes: 300, QueueLen: 8})
		f(&rig{Device: d.CPU, t: t, memory: d.create})
	})
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		d := NewFake(FakeOptions{Plans: copyplan.Options{PatternsBelow: 200}, QueueLen: 8})
		t.Cleanup(func() { _ = d.Close() })
		f(&rig{Device: d, t: t, memory: func(key string, n int64) []byte {
			b := make([]byte, n)
			d.AddMemory(key, b)
			return b
		}})
	})
	cudaSuite(t, f)
}

// cpuRig is a CPU device with its own folder of segments.
type cpuRig struct {
	*CPU
	t   testing.TB
	dir string
}

func newCPU(t testing.TB, o CPUOptions) *cpuRig {
	t.Helper()
	o.ShmDir = t.TempDir()
	d := NewCPU(o)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return &cpuRig{d, t, o.ShmDir}
}

// create makes a segment as a client would and maps it for the test.
func (r *cpuRig) create(name string, n int64) []byte {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	require.NoError(r.t, err)
	defer f.Close()
	require.NoError(r.t, f.Truncate(n))
	seg := segments{dir: r.dir, byKey: map[segmentKey]*segment{}}
	s, err := seg.open(name, n)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { seg.release(s) })
	return s.data
}

// cache is a small KV cache on a device: 3 layers of 32 blocks of 384 bytes, 4
// blocks a chunk.
type cache struct {
	layout *kvlayout.Layout
	engine []Memory
	bytes  [][]byte
	pool   []byte
}

const cacheBlocks, cacheObject = 32, 3 * 4 * 384

var segmentNumber atomic.Int64

func newCache(t testing.TB, d Device, memory func(string, int64) []byte) *cache {
	t.Helper()
	in := kvlayout.Input{Engine: kvlayout.EngineVLLM, Hints: kvlayout.Hints{KVLayout: "HND"}, ChunkTokens: 16}
	for range 3 {
		in.Tensors = append(in.Tensors, kvlayout.Tensor{
			DType: "float16", ElemBytes: 2, Shape: []int64{cacheBlocks, 3, 4, 16}, Stride: []int64{192, 64, 16, 1},
			Storage: fmt.Sprint(SegmentPrefix, segmentNumber.Add(1)), StorageBytes: cacheBlocks * 384,
		})
	}
	l, err := kvlayout.New(in)
	require.NoError(t, err)
	c := &cache{layout: l, pool: make([]byte, 8*cacheObject)}
	for _, s := range l.Storages {
		b := memory(s.Key, s.Bytes)
		fill(b)
		c.bytes = append(c.bytes, b)
		m, err := d.Open(s.Key, s.Bytes)
		require.NoError(t, err)
		t.Cleanup(m.Close)
		c.engine = append(c.engine, m)
	}
	return c
}

func fill(b []byte) {
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
}

// job copies one chunk between blocks first.. and object number object.
func (c *cache) job(t testing.TB, d Device, dir copyplan.Direction, object int, form *kvlayout.Form, done func(error), first ...int64) *Job {
	t.Helper()
	p := copyplan.Acquire()
	err := p.Add(&copyplan.Request{Layout: c.layout, BlockIDs: [][]int64{first}, Chunks: 1},
		[]copyplan.Object{{Offset: int64(object) * cacheObject, Bytes: cacheObject, Form: form}}, d.Traits().Plans)
	require.NoError(t, err)
	return &Job{Direction: dir, Plan: p, Engine: c.engine, Pool: c.pool, After: nil, Done: done}
}

// do runs one job to its end.
func do(t testing.TB, s Stream, j *Job) error {
	t.Helper()
	done := make(chan error, 1)
	j.Done = func(err error) { done <- err }
	_, err := s.Submit(j)
	require.NoError(t, err)
	return <-done
}

func stream(t testing.TB, d Device, label string) Stream {
	t.Helper()
	s, err := d.NewStream(label)
	require.NoError(t, err)
	return s
}

func TestStoreAndLoad(t *testing.T) {
	t.Parallel()
	devices(t, func(r *rig) {
		t := r.t
		a, b := newCache(t, r, r.memory), newCache(t, r, r.memory)
		b.pool = a.pool
		stores, loads := stream(t, r, "stores"), stream(t, r, "loads")
		own := a.layout.Object[0].Form
		forms := []*kvlayout.Form{own, own.AsTokenMajor()}
		if r.Traits().CopiesOnly {
			forms[1] = own
		}
		for i, form := range forms {
			require.NoError(t, do(t, stores, a.job(t, r, copyplan.Store, i, form, nil, 3, 4, 9, 1)))
			require.NoError(t, do(t, loads, b.job(t, r, copyplan.Load, i, form, nil, 30, 0, 2, 7)))
			for l := range a.bytes {
				for k, from := range []int{3, 4, 9, 1} {
					to := []int{30, 0, 2, 7}[k]
					if !bytes.Equal(a.bytes[l][from*384:(from+1)*384], b.bytes[l][to*384:(to+1)*384]) {
						t.Fatalf("form %d, layer %d: block %d did not arrive in %d", i, l, from, to)
					}
				}
				fill(b.bytes[l])
			}
		}
		if forms[0] != forms[1] && bytes.Equal(a.pool[:cacheObject], a.pool[cacheObject:2*cacheObject]) {
			t.Error("both forms are the same bytes")
		}
		st := r.Stats()
		if st.Stores != 2 || st.Loads != 2 || st.StoreBytes != 2*cacheObject || st.LoadBytes != 2*cacheObject || st.Failed != 0 || st.Mappings != 6 || st.StreamsActive != 2 {
			t.Errorf("got %+v", st)
		}
	})
}

// hold submits a job whose Done waits, so that what comes after stays queued.
func hold(t *testing.T, c *cache, r *rig, s Stream, object int) (release func()) {
	t.Helper()
	entered, gate := make(chan struct{}), make(chan struct{})
	_, err := s.Submit(c.job(t, r, copyplan.Store, object, nil, func(error) { close(entered); <-gate }, 0, 1, 2, 3))
	require.NoError(t, err)
	<-entered
	return sync.OnceFunc(func() { close(gate) })
}

func TestOrder(t *testing.T) {
	t.Parallel()
	devices(t, func(r *rig) {
		t := r.t
		c := newCache(t, r, r.memory)
		var wg sync.WaitGroup
		for n := range 3 {
			s := stream(t, r, fmt.Sprint(n))
			var got []int // of one stream: calls do not overlap
			wg.Add(40)
			var submit func(i int)
			submit = func(i int) {
				_, err := s.Submit(c.job(t, r, copyplan.Store, n, nil, func(err error) {
					defer wg.Done()
					if err != nil {
						t.Error(err)
					}
					got = append(got, i)
					if i+5 < 40 {
						submit(i + 5) // a job may be followed up from its Done
					}
				}, 0, 1, 2, 3))
				if err != nil {
					t.Error(err)
				}
			}
			release := hold(t, c, r, s, n)
			for i := range 5 {
				submit(i)
			}
			release()
			t.Cleanup(func() {
				if len(got) != 40 || !slices.IsSorted(got) {
					t.Errorf("stream %d: order %v", n, got)
				}
			})
		}
		wg.Wait()
		if p := r.Stats().Pending; p > 3 { // the last Done of a stream may still be returning
			t.Errorf("%d pending", p)
		}
	})
}

func TestRefusedJobs(t *testing.T) {
	t.Parallel()
	devices(t, func(r *rig) {
		t := r.t
		c := newCache(t, r, r.memory)
		s := stream(t, r, "s")
		never := func(error) { t.Error("Done of a job that was refused") }
		f := func(name string, want error, change func(j *Job)) {
			t.Helper()
			j := c.job(t, r, copyplan.Store, 7, nil, never, 0, 1, 2, 3)
			change(j)
			if _, err := s.Submit(j); !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		f("small pool", copyplan.ErrBounds, func(j *Job) { j.Pool = j.Pool[:len(j.Pool)-1] })
		f("few storages", copyplan.ErrBounds, func(j *Job) { j.Engine = j.Engine[:2] })
		f("foreign memory", ErrMemory, func(j *Job) { j.Engine = []Memory{c.engine[0], nil, c.engine[2]} })
		other := NewFake(FakeOptions{})
		defer other.Close()
		other.AddMemory("x", make([]byte, cacheBlocks*384))
		m, err := other.Open("x", cacheBlocks*384)
		require.NoError(t, err)
		f("memory of another device", ErrMemory, func(j *Job) { j.Engine = []Memory{m, m, m} })

		closed := newCache(t, r, r.memory)
		closed.engine[1].Close()
		closed.engine[1].Close()
		f("closed memory", ErrMemory, func(j *Job) { j.Engine = closed.engine })

		release := hold(t, c, r, s, 0)
		for range 7 {
			_, err := s.Submit(c.job(t, r, copyplan.Store, 1, nil, func(error) {}, 0, 1, 2, 3))
			require.NoError(t, err)
		}
		f("full queue", ErrBusy, func(*Job) {})
		release()
		require.NoError(t, s.Close(t.Context()))
		f("closed stream", ErrClosed, func(*Job) {})

		require.NoError(t, r.Close())
		_, err = r.NewStream("late")
		require.ErrorIs(t, err, ErrClosed)
		_, err = r.Open(c.layout.Storages[0].Key, c.layout.Storages[0].Bytes)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// ends collects what Done hears of some jobs, in order.
type ends struct {
	mu   sync.Mutex
	errs []error
}

func (e *ends) done(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.errs = append(e.errs, err)
}

func TestClose(t *testing.T) {
	t.Parallel()
	devices(t, func(r *rig) {
		t := r.t
		c := newCache(t, r, r.memory)
		s := stream(t, r, "s")
		release := hold(t, c, r, s, 0)
		var e ends
		for range 4 {
			_, err := s.Submit(c.job(t, r, copyplan.Store, 1, nil, e.done, 0, 1, 2, 3))
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, s.Close(ctx), context.Canceled)
		_, err := s.Submit(c.job(t, r, copyplan.Store, 1, nil, e.done, 0, 1, 2, 3))
		require.ErrorIs(t, err, ErrClosed)
		release()
		require.NoError(t, s.Close(t.Context()))
		require.NoError(t, s.Close(t.Context()))
		if len(e.errs) != 4 || slices.ContainsFunc(e.errs, func(err error) bool { return errors.Is(err, ErrClosed) == r.hardware }) {
			t.Errorf("got %v", e.errs)
		}

		// The device's Close does the same for all streams.
		a, b := stream(t, r, "a"), stream(t, r, "b")
		release = hold(t, c, r, a, 0)
		e.errs = nil
		_, err = a.Submit(c.job(t, r, copyplan.Store, 1, nil, e.done, 0, 1, 2, 3))
		require.NoError(t, err)
		closed := make(chan error)
		go func() { closed <- r.Close() }()
		require.NoError(t, b.Close(t.Context()))
		release()
		require.NoError(t, <-closed)
		if st := r.Stats(); len(e.errs) != 1 || st.Pending != 0 || st.StreamsActive != 0 {
			t.Errorf("got %v, %+v", e.errs, st)
		}
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	devices(t, func(r *rig) {
		t := r.t
		c := newCache(t, r, r.memory)
		s := stream(t, r, "s")
		release := hold(t, c, r, s, 0)
		var e ends
		var jobs []*Job
		for i := range 4 {
			j := c.job(t, r, copyplan.Store, 2+i, nil, e.done, 0, 1, 2, 3)
			_, err := s.Submit(j)
			require.NoError(t, err)
			jobs = append(jobs, j)
		}
		empty := bytes.Clone(c.pool)
		s.Cancel(jobs[2])
		s.Cancel(jobs[1])
		s.Cancel(jobs[1])
		s.Cancel(&Job{})
		last := c.job(t, r, copyplan.Store, 1, nil, nil, 0, 1, 2, 3)
		go release()
		require.NoError(t, do(t, s, last))
		s.Cancel(last)
		ends := []error{nil, ErrCanceled, ErrCanceled, nil}
		if r.hardware {
			ends = make([]error, 4)
		}
		for i, want := range ends {
			if !errors.Is(e.errs[i], want) {
				t.Errorf("job %d: got %v, want %v", i, e.errs[i], want)
			}
			region := c.pool[(2+i)*cacheObject : (3+i)*cacheObject]
			if untouched := bytes.Equal(region, empty[(2+i)*cacheObject:(3+i)*cacheObject]); untouched != (want != nil) {
				t.Errorf("job %d: untouched %v", i, untouched)
			}
		}
		if st := r.Stats(); (st.Failed != 2) != r.hardware || st.Faults != 0 {
			t.Errorf("got %+v", st)
		}
	})
}

// TestMemoryOutlivesItsClose checks that a job keeps what it copies.
func TestMemoryOutlivesItsClose(t *testing.T) {
	t.Parallel()
	devices(t, func(r *rig) {
		t := r.t
		c := newCache(t, r, r.memory)
		s := stream(t, r, "s")
		release := hold(t, c, r, s, 0)
		done := make(chan error, 1)
		_, err := s.Submit(c.job(t, r, copyplan.Store, 1, nil, func(err error) { done <- err }, 5, 6, 7, 8))
		require.NoError(t, err)
		for _, m := range c.engine {
			m.Close()
		}
		release()
		require.NoError(t, <-done)
		for l := range c.bytes {
			if !bytes.Equal(c.pool[cacheObject+l*4*384:][:4*384], c.bytes[l][5*384:9*384]) {
				t.Errorf("layer %d is wrong", l)
			}
		}
		require.NoError(t, s.Close(t.Context()))
		if st := r.Stats(); st.Mappings != 0 || st.MappedBytes != 0 {
			t.Errorf("still mapped: %+v", st)
		}
	})
}
