package device

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
)

func TestNames(t *testing.T) {
	t.Parallel()
	d := newCPU(t, CPUOptions{Threads: 1})
	d.create(SegmentPrefix+"x", 100)
	require.NoError(t, os.WriteFile(filepath.Join(d.dir, "other"), make([]byte, 100), 0o600))
	require.NoError(t, os.Symlink("other", filepath.Join(d.dir, SegmentPrefix+"link")))
	require.NoError(t, os.Mkdir(filepath.Join(d.dir, SegmentPrefix+"dir"), 0o700))
	f := func(name string, n int64, want error) {
		t.Helper()
		m, err := d.Open(name, n)
		if want == nil {
			require.NoError(t, err, name)
			m.Close()
			return
		}
		require.ErrorIs(t, err, want, name)
	}
	f(SegmentPrefix+"x", 100, nil)
	f(SegmentPrefix+"x", 1, nil)
	f(SegmentPrefix+"x", 101, ErrShort)
	f(SegmentPrefix+"x", 0, ErrOpen)
	f(SegmentPrefix+"x", -1, ErrOpen)
	f(SegmentPrefix+"y", 100, ErrOpen)
	f(SegmentPrefix+"y", 100, os.ErrNotExist)
	f(SegmentPrefix+"link", 100, ErrOpen)
	f(SegmentPrefix+"dir", 100, ErrOpen)
	for _, name := range []string{"", "/", "x", "/other", "other", SegmentPrefix, SegmentPrefix + "/x", SegmentPrefix + "../../etc/passwd", SegmentPrefix + "a\x00", SegmentPrefix + strings.Repeat("a", 300), "lmcache_kv_x"} {
		f(name, 100, ErrName)
	}
	_, err := d.Open(SegmentPrefix+"x", 101)
	require.ErrorContains(t, err, "has 100 bytes, registered as 101")
	if n, _ := d.segs.count(); n != 0 {
		t.Errorf("%d mappings are left", n)
	}
}

func TestSharedMappings(t *testing.T) {
	t.Parallel()
	d := newCPU(t, CPUOptions{Threads: 1})
	name := SegmentPrefix + "x"
	d.create(name, 100)
	var ms []Memory
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 8 {
		wg.Go(func() {
			m, err := d.Open(name, 100)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			ms = append(ms, m)
			mu.Unlock()
		})
	}
	wg.Wait()
	if n, bytes := d.segs.count(); n != 1 || bytes != 100 {
		t.Errorf("%d mappings of %d bytes", n, bytes)
	}
	// Another segment under the same name is another mapping.
	require.NoError(t, os.Remove(filepath.Join(d.dir, name)))
	d.create(name, 100)[0] = 7
	again, err := d.Open(name, 100)
	require.NoError(t, err)
	if n, _ := d.segs.count(); n != 2 || again.(*mapped).seg.data[0] != 7 || ms[0].(*mapped).seg.data[0] != 0 {
		t.Errorf("%d mappings", n)
	}
	for _, m := range append(ms, again) {
		m.Close()
	}
	if n, bytes := d.segs.count(); n != 0 || bytes != 0 {
		t.Errorf("%d mappings of %d bytes are left", n, bytes)
	}
}

// TestTruncated cuts a client's segment short: its copies fail, in both
// directions, and nothing else does.
func TestTruncated(t *testing.T) {
	t.Parallel()
	for _, dir := range []copyplan.Direction{copyplan.Store, copyplan.Load} {
		t.Run(dir.String(), func(t *testing.T) {
			t.Parallel()
			d := newCPU(t, CPUOptions{Threads: 2, PartBytes: 300})
			bad, good := newCache(t, d.CPU, d.create), newCache(t, d.CPU, d.create)
			sick, well := stream(t, d.CPU, "sick"), stream(t, d.CPU, "well")
			key := bad.layout.Storages[1].Key
			require.NoError(t, do(t, sick, bad.job(t, d.CPU, dir, 0, nil, nil, 0, 1, 2, 31)))

			require.NoError(t, os.Truncate(filepath.Join(d.dir, key), 0))
			// Several parts fault, on both threads; Done comes once.
			err := do(t, sick, bad.job(t, d.CPU, dir, 0, nil, nil, 0, 1, 2, 31))
			require.ErrorIs(t, err, ErrLost)
			require.ErrorContains(t, err, key)
			require.NoError(t, do(t, well, good.job(t, d.CPU, dir, 1, nil, nil, 0, 1, 2, 31)))

			// From now on it is known.
			_, err = sick.Submit(bad.job(t, d.CPU, dir, 0, nil, func(error) { t.Error("done") }, 0, 1, 2, 31))
			require.ErrorIs(t, err, ErrLost)
			// Only jobs that touch it are affected: the first storage is fine.
			if st := d.Stats(); st.Failed != 1 || st.Faults != 1 || st.Pending != 0 {
				t.Errorf("got %+v", st)
			}
			_, err = d.Open(key, cacheBlocks*384)
			require.ErrorIs(t, err, ErrShort)

			// The client makes it whole again and registers: a new mapping.
			require.NoError(t, os.Truncate(filepath.Join(d.dir, key), cacheBlocks*384))
			m, err := d.Open(key, cacheBlocks*384)
			require.NoError(t, err)
			bad.engine[1].Close()
			bad.engine[1] = m
			require.NoError(t, do(t, sick, bad.job(t, d.CPU, dir, 0, nil, nil, 0, 1, 2, 31)))
			m.Close()
			if n, _ := d.segs.count(); n != 5 {
				t.Errorf("%d mappings, want the 5 that are open", n)
			}
		})
	}
}

// TestTruncatedPool is our own pool gone, which must not end the process either.
func TestTruncatedPool(t *testing.T) {
	t.Parallel()
	d := newCPU(t, CPUOptions{Threads: 2, PartBytes: 300})
	c := newCache(t, d.CPU, d.create)
	name := SegmentPrefix + "pool"
	c.pool = d.create(name, 8*cacheObject)
	require.NoError(t, os.Truncate(filepath.Join(d.dir, name), 0))
	s := stream(t, d.CPU, "s")
	for _, dir := range []copyplan.Direction{copyplan.Store, copyplan.Load} {
		require.ErrorIs(t, do(t, s, c.job(t, d.CPU, dir, 1, nil, nil, 0, 1, 2, 3)), ErrPool)
	}
}

// TestPanicInCopy: a plan that lies, which Check would refuse, fails its job.
func TestPanicInCopy(t *testing.T) {
	t.Parallel()
	c := &cpuJob{job: &Job{}, plan: &copyplan.Plan{Runs: []copyplan.Run{{Bytes: 10}}}}
	err := c.copy(copyplan.Pos{}, c.plan.End())
	require.ErrorIs(t, err, ErrCopy)
	require.ErrorContains(t, err, "index out of range")
}

// TestBothThreadsOnOneJob: parts of one request are copied at the same time.
func TestBothThreadsOnOneJob(t *testing.T) {
	t.Parallel()
	d := newCPU(t, CPUOptions{Threads: 2, PartBytes: 300})
	c := newCache(t, d.CPU, d.create)
	var entered atomic.Int32
	both := make(chan struct{})
	d.onPart = func() {
		if entered.Add(1) == 2 {
			close(both)
		}
		<-both // hangs if the second thread never comes
	}
	require.NoError(t, do(t, stream(t, d.CPU, "s"), c.job(t, d.CPU, copyplan.Store, 0, nil, nil, 0, 2, 4, 6)))
}

// TestFairness: a small job does not wait for a large one of another stream.
func TestFairness(t *testing.T) {
	t.Parallel()
	d := newCPU(t, CPUOptions{Threads: 1, PartBytes: 100})
	c := newCache(t, d.CPU, d.create)
	var parts atomic.Int32
	d.onPart = func() { parts.Add(1) }
	gate, big, small := stream(t, d.CPU, "gate"), stream(t, d.CPU, "big"), stream(t, d.CPU, "small")
	release := hold(t, c, &rig{Device: d.CPU}, gate, 7) // holds the only thread

	p := copyplan.Acquire()
	for range 1000 {
		p.Runs = append(p.Runs, copyplan.Run{Bytes: 100})
	}
	bigDone := make(chan int32, 1)
	_, err := big.Submit(&Job{Plan: p, Engine: c.engine, Pool: c.pool, Done: func(error) { bigDone <- parts.Load() }})
	require.NoError(t, err)
	q := copyplan.Acquire()
	for range 3 {
		q.Runs = append(q.Runs, copyplan.Run{Bytes: 100})
	}
	smallDone := make(chan int32, 1)
	_, err = small.Submit(&Job{Plan: q, Engine: c.engine, Pool: c.pool, Done: func(error) { smallDone <- parts.Load() }})
	require.NoError(t, err)
	before := parts.Load()
	release()
	if n := <-smallDone - before; n > 6 {
		t.Errorf("the small job of 3 parts was done after %d parts", n)
	}
	if n := <-bigDone - before; n != 1003 {
		t.Errorf("the big job was done after %d parts", n)
	}
}

// TestCancelRunning stops a job between its parts.
func TestCancelRunning(t *testing.T) {
	t.Parallel()
	d := newCPU(t, CPUOptions{Threads: 1, PartBytes: 300})
	c := newCache(t, d.CPU, d.create)
	var parts atomic.Int32
	entered, gate := make(chan struct{}), make(chan struct{})
	d.onPart = func() {
		if parts.Add(1) == 2 {
			close(entered)
			<-gate
		}
	}
	a, b := stream(t, d.CPU, "a"), stream(t, d.CPU, "b")
	var ends ends
	first := c.job(t, d.CPU, copyplan.Store, 0, nil, ends.done, 0, 2, 4, 6)
	_, err := a.Submit(first)
	require.NoError(t, err)
	<-entered
	// The only thread is in the second part; this one waits in the ring.
	second := c.job(t, d.CPU, copyplan.Store, 1, nil, ends.done, 0, 2, 4, 6)
	_, err = b.Submit(second)
	require.NoError(t, err)
	a.Cancel(first)
	b.Cancel(second)
	close(gate)
	require.NoError(t, a.Close(t.Context()))
	require.NoError(t, b.Close(t.Context()))
	if n := parts.Load(); n != 2 || len(ends.errs) != 2 {
		t.Errorf("%d parts were copied, ends %v", n, ends.errs)
	}
	for _, err := range ends.errs {
		require.ErrorIs(t, err, ErrCanceled)
	}
}

// TestConversion reorders an object inside the pool.
func TestConversion(t *testing.T) {
	t.Parallel()
	d := newCPU(t, CPUOptions{Threads: 2, PartBytes: 300})
	c := newCache(t, d.CPU, d.create)
	from := c.layout.Object[0].Form
	fill(c.pool)
	want := make([]byte, cacheObject)
	require.NoError(t, copyplan.Convert(want, from.AsTokenMajor(), c.pool[:cacheObject], from))
	p := copyplan.Acquire()
	require.NoError(t, p.AddConversion(3*cacheObject, from.AsTokenMajor(), 0, from))
	pool := d.Local("pool", c.pool)
	require.NoError(t, do(t, stream(t, d.CPU, "s"), &Job{Plan: p, Engine: []Memory{pool}, Pool: c.pool}))
	pool.Close()
	if !bytes.Equal(c.pool[3*cacheObject:4*cacheObject], want) {
		t.Error("wrong bytes")
	}
}

// TestManyClients has engines store, load, cancel, and come and go at random.
func TestManyClients(t *testing.T) {
	t.Parallel()
	d := newCPU(t, CPUOptions{Threads: 3, PartBytes: 500})
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for round := range 5 {
				c := newCache(t, d.CPU, d.create)
				s := stream(t, d.CPU, fmt.Sprint(n, round))
				var pending sync.WaitGroup
				for i := range 30 {
					b := int64(rng.IntN(cacheBlocks - 4))
					pending.Add(1)
					j := c.job(t, d.CPU, copyplan.Store, i%8, nil, func(err error) {
						defer pending.Done()
						if err == nil {
							if !bytes.Equal(c.pool[(i%8)*cacheObject:][:4*384], c.bytes[0][b*384:][:4*384]) {
								t.Error("wrong bytes")
							}
						}
					}, b, b+1, b+2, b+3)
					if _, err := s.Submit(j); err != nil {
						t.Error(err)
						pending.Done()
					}
					if i%7 == 3 {
						s.Cancel(j)
					}
				}
				for _, m := range c.engine {
					m.Close()
				}
				if round%2 == 0 {
					pending.Wait()
				}
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
				pending.Wait()
			}
		})
	}
	wg.Wait()
	if st := d.Stats(); st.Mappings != 0 || st.Pending != 0 || st.StreamsActive != 0 || st.Faults != 0 {
		t.Errorf("left: %+v", st)
	}
}

// TestTruncatedLarge is TestTruncated where copies go past the caches.
func TestTruncatedLarge(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	for _, dir := range []copyplan.Direction{copyplan.Store, copyplan.Load} {
		d := newCPU(t, CPUOptions{Threads: 2})
		name := SegmentPrefix + "x"
		d.create(name, size)
		m, err := d.Open(name, size)
		require.NoError(t, err)
		t.Cleanup(m.Close)
		require.NoError(t, os.Truncate(filepath.Join(d.dir, name), size/2))
		p := copyplan.Acquire()
		p.AddRun(copyplan.Run{Bytes: size})
		err = do(t, stream(t, d.CPU, "s"), &Job{Direction: dir, Plan: p, Engine: []Memory{m}, Pool: make([]byte, size)})
		require.ErrorIs(t, err, ErrLost)
	}
}
