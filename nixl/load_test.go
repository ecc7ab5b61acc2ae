package nixl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/invariants"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// The hot path allocates nothing: not a repost, not a poll, not a wait.
func TestNoAllocations(t *testing.T) {
	n, far := newNode(t, 1<<16, nixl.Config{}), newNode(t, 1<<16, nixl.Config{})
	r := addRemote(t, n.Agent, far.Agent)
	x := n.xfer(t, r, nixl.Write, n.buf.Desc(0, 4096), far.buf.Desc(0, 4096))
	run := func() {
		done, err := x.Post()
		for !done && err == nil {
			done, err = x.Poll()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run()
	if allocs := testing.AllocsPerRun(200, run); allocs != 0 {
		t.Errorf("post and poll: %v allocations", allocs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if allocs := testing.AllocsPerRun(200, func() {
		if err := x.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}); allocs != 0 {
		t.Errorf("run: %v allocations", allocs)
	}
}

// Sixteen goroutines make, post, wait for and close transfers of one agent,
// register and end memory beside it, and exchange notifications.
func TestManyGoroutines(t *testing.T) {
	n, far := newNode(t, 1<<20, nixl.Config{}), newNode(t, 1<<20, nixl.Config{})
	r, back := meet(t, n, far)
	fill(far.buf.Bytes(), 6)
	const workers, rounds = 16, 40
	received := 0
	var readers, all sync.WaitGroup
	readers.Go(func() {
		for range far.Notifications() {
			received++
			if received == workers*rounds {
				return
			}
		}
	})
	for w := range workers {
		all.Go(func() {
			const part = 1 << 16
			for i := range rounds {
				x, err := r.NewTransfer(nixl.Read, n.ucx, dram(n.buf.Desc(w*part, part)), dram(far.buf.Desc(w*part, part)), nixl.XferOptions{Notif: []byte("x")})
				if err != nil {
					t.Error(err)
					return
				}
				if err := x.Run(t.Context()); err != nil {
					t.Error(err)
				}
				if err := x.Close(); err != nil {
					t.Error(err)
				}
				switch i % 8 {
				case 0:
					buf, err := nixl.MapBuffer(8192, nixl.MapOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					reg, err := n.ucx.Register(buf.Region())
					if err != nil {
						t.Error(err)
						return
					}
					_ = buf.Close()
					if err := reg.Close(); err != nil {
						t.Error(err)
					}
				case 4:
					if err := back.Notify([]byte("hello")); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	readers.Wait()
	if !holds(n.buf.Bytes(), 6) {
		t.Error("wrong bytes")
	}
	if s := n.Stats(); s.Transfers != 0 || s.Registrations != 1 {
		t.Errorf("left over: %+v", s)
	}
}

// Many wait at once for slow transfers; one goroutine polls for all of them.
func TestManyWaiters(t *testing.T) {
	const size = 64 << 20
	n := newTCPNode(t, size)
	p := startGo(t, "waited-"+n.Name(), size, "tcp")
	r := n.add(t, p)
	const parts = 128
	var all sync.WaitGroup
	for i := range parts {
		x := n.xfer(t, r, nixl.Write, n.buf.Desc(i*(size/parts), size/parts), p.desc(i*(size/parts), size/parts))
		if _, err := x.Post(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			all.Go(func() {
				if err := x.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
}

// The stream holds a bounded number of messages and loses none.
func TestNotificationStream(t *testing.T) {
	n, far := newNode(t, 4096, nixl.Config{NotifQueue: 4}), newNode(t, 4096, nixl.Config{})
	back := addRemote(t, far.Agent, n.Agent)
	const count = 300
	for i := range count {
		if err := back.Notify([]byte(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	ch := n.Notifications()
	if _, err := n.PollNotifs(); !errors.Is(err, nixl.ErrInvalidState) {
		t.Errorf("PollNotifs beside the stream: %v", err)
	}
	eventually(t, "a full queue", func() bool { return n.Stats().NotifsQueued == 4 })
	for i := range count {
		if m := <-ch; m.From != far.Name() || string(m.Msg) != strconv.Itoa(i) {
			t.Fatalf("message %d: %q from %q", i, m.Msg, m.From)
		}
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, msg := range [][]byte{{}, {0, 255, 0}, big} {
		if err := back.Notify(msg); err != nil {
			t.Fatal(err)
		}
		if m := <-ch; !bytes.Equal(m.Msg, msg) {
			t.Errorf("%d bytes came as %d", len(msg), len(m.Msg))
		}
	}
}

// The notification of a transfer can be changed or left out with each post.
func TestPostNotif(t *testing.T) {
	n, far := newNode(t, 4096, nixl.Config{}), newNode(t, 4096, nixl.Config{})
	r := addRemote(t, n.Agent, far.Agent)
	x, err := r.NewTransfer(nixl.Write, n.ucx, dram(n.buf.Desc(0, 8)), dram(far.buf.Desc(0, 8)), nixl.XferOptions{Notif: []byte("first")})
	if err != nil {
		t.Fatal(err)
	}
	ch := far.Notifications()
	post := func(f func() (bool, error)) {
		t.Helper()
		if _, err := f(); err != nil {
			t.Fatal(err)
		}
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := func(msg string) {
		t.Helper()
		if m := <-ch; string(m.Msg) != msg {
			t.Errorf("got %q, want %q", m.Msg, msg)
		}
	}
	post(x.Post)
	want("first")
	post(func() (bool, error) { return x.PostNotif([]byte("second")) })
	want("second")
	post(x.Post)
	want("second") // it stays
	post(func() (bool, error) { return x.PostNotif(nil) })
	post(func() (bool, error) { return x.PostNotif([]byte{}) })
	want("") // what was posted without one sent none
}

// residentKiB is the memory that this process holds.
func residentKiB(t testing.TB) int {
	t.Helper()
	debug.FreeOSMemory()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(data))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize() / 1024
}

// Registering, transferring and ending again leaves nothing behind. The number
// of cycles is LMCACHE_GO_NIXL_CYCLES, 1000 by default; 10000 is the real test.
func TestCyclesLeaveNothing(t *testing.T) {
	cycles := 1000
	if s := os.Getenv("LMCACHE_GO_NIXL_CYCLES"); s != "" {
		var err error
		if cycles, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	if testing.Short() {
		cycles = 100
	}
	far := newNode(t, 1<<16, nixl.Config{})
	n := newNode(t, 1<<16, nixl.Config{})
	r := addRemote(t, n.Agent, far.Agent)
	cycle := func(i int) {
		buf, err := nixl.MapBuffer(1<<20, nixl.MapOptions{})
		if err != nil {
			t.Fatal(err)
		}
		reg, err := n.ucx.Register(buf.Region())
		if err != nil {
			t.Fatal(err)
		}
		x, err := r.NewTransfer(nixl.Read, n.ucx, dram(buf.Desc(0, 1<<16)), dram(far.buf.Desc(0, 1<<16)), nixl.XferOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, c := range []func() error{x.Close, reg.Close, buf.Close} {
			if err := c(); err != nil {
				t.Fatal(fmt.Errorf("cycle %d: %w", i, err))
			}
		}
	}
	warm := cycles / 10
	for i := range warm {
		cycle(i)
	}
	before := residentKiB(t)
	start := time.Now()
	for i := range cycles {
		cycle(i)
	}
	grown := residentKiB(t) - before
	t.Logf("%d cycles in %v: %+d KiB", cycles, time.Since(start).Round(time.Millisecond), grown)
	// A leaked page, request or handle in each cycle would be more than this.
	limit := 2048 + cycles/5
	if invariants.Enabled {
		limit += 16 << 10 // the race detector's own
	}
	if grown > limit {
		t.Errorf("memory grew by %d KiB in %d cycles, limit %d", grown, cycles, limit)
	}
}

// Transfers, lists and messages while the peer is forgotten and met again all
// the time, and the agent is closed in the middle of it.
func TestChurn(t *testing.T) {
	n, far := newNode(t, 1<<16, nixl.Config{}), newNode(t, 1<<16, nixl.Config{})
	blob, err := far.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	// What may go wrong when everything is taken away under one's hands.
	expected := func(err error) bool {
		for _, e := range []error{nixl.ErrRemoteGone, nixl.ErrClosed, nixl.ErrBusy, nixl.ErrNotFound, nixl.ErrRemoteDisconnected} {
			if errors.Is(err, e) {
				return true
			}
		}
		return err == nil
	}
	var once sync.Once
	check := func(what string, err error) bool {
		if !expected(err) {
			once.Do(func() { t.Errorf("%s: %v", what, err) }) // the first tells the story
		}
		return err == nil
	}
	var all sync.WaitGroup
	var transfers atomic.Int64
	for range 4 {
		all.Go(func() {
			for !stopped() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				r, err := n.AddRemote(ctx, blob, far.Name())
				cancel()
				if !check("AddRemote", err) {
					continue
				}
				list, err := n.ucx.PrepLocal(dram(n.buf.Desc(0, 4096)))
				if check("PrepLocal", err) {
					flist, err := r.Prep(n.ucx, dram(far.buf.Desc(0, 4096)))
					if check("Prep", err) {
						x, err := nixl.NewTransfer(nixl.Write, list, []int32{0}, flist, []int32{0}, nixl.XferOptions{})
						if check("NewTransfer", err) {
							if check("Run", x.Run(context.Background())) {
								transfers.Add(1)
							}
							check("Close", x.Close())
						}
						check("Close", flist.Close())
					}
					check("Close", list.Close())
				}
				x, err := r.NewTransfer(nixl.Read, n.ucx, dram(n.buf.Desc(0, 64)), dram(far.buf.Desc(0, 64)), nixl.XferOptions{})
				if check("NewTransfer", err) {
					check("Run", x.Run(context.Background()))
					// Left open: Remote.Close and Agent.Close end it.
				}
				check("Notify", r.Notify([]byte("x")))
			}
		})
	}
	all.Go(func() {
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for !stopped() {
			<-tick.C
			if r, ok := n.Remote(far.Name()); ok {
				check("Remote.Close", r.Close())
			}
			n.Stats()
		}
	})
	eventually(t, "50 transfers", func() bool { return transfers.Load() >= 50 })
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	close(stop)
	all.Wait()
	if s := n.Stats(); s.Transfers+s.Lists+s.Registrations+s.Remotes+s.Running != 0 {
		t.Errorf("left over: %+v", s)
	}
}
