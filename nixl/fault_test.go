package nixl_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// newTCPNode is a node whose UCX emulates everything over TCP: transfers take
// time and need both sides.
func newTCPNode(t testing.TB, size int) *node {
	t.Helper()
	n := &node{Agent: newAgent(t, nixl.Config{})}
	var err error
	if n.ucx, err = n.Backend(nixl.UCX{Engine: map[string]string{"TLS": "tcp"}}); err != nil {
		t.Fatal(err)
	}
	n.buf, n.reg = newBuffer(t, n.ucx, size)
	return n
}

func (n *node) add(t testing.TB, p *peer) *nixl.Remote {
	t.Helper()
	r, err := n.AddRemoteRaw(t.Context(), p.blob, p.name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (n *node) xfer(t testing.TB, r *nixl.Remote, op nixl.Op, local, remote nixl.Desc) *nixl.Transfer {
	t.Helper()
	x, err := r.NewTransfer(op, n.ucx, dram(local), dram(remote), nixl.XferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// A peer that is killed in the middle of a transfer: an exact error in bounded
// time, the other peers go on, and the killed one's next start is taken under
// the same name.
func TestPeerKilledDuringTransfer(t *testing.T) {
	const size = 256 << 20
	n := newTCPNode(t, size)
	p, other := startGo(t, "killed-"+n.Name(), size, "tcp"), startGo(t, "other-"+n.Name(), 1<<20, "tcp")
	r, ro := n.add(t, p), n.add(t, other)
	warm := n.xfer(t, r, nixl.Write, n.buf.Desc(0, 4096), p.desc(0, 4096))
	if err := warm.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := n.xfer(t, r, nixl.Write, n.buf.Desc(0, size), p.desc(0, size))
	if done, err := x.Post(); done || err != nil {
		t.Fatalf("Post = %v, %v; want a running transfer", done, err)
	}
	p.kill()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := x.Wait(ctx)
	if !errors.Is(err, nixl.ErrRemoteDisconnected) || !errors.Is(err, nixl.ErrBackend) {
		t.Fatalf("Wait = %v, want ErrRemoteDisconnected", err)
	}
	<-r.Lost()
	if err := r.Err(); !errors.Is(err, nixl.ErrRemoteGone) || !errors.Is(err, nixl.ErrRemoteDisconnected) {
		t.Errorf("Err = %v, want ErrRemoteGone and why", err)
	}
	if _, err := warm.Post(); !errors.Is(err, nixl.ErrRemoteGone) {
		t.Errorf("Post to the lost peer = %v, want ErrRemoteGone", err)
	}
	if _, err := r.NewTransfer(nixl.Write, n.ucx, dram(n.buf.Desc(0, 1)), dram(p.desc(0, 1)), nixl.XferOptions{}); !errors.Is(err, nixl.ErrRemoteGone) {
		t.Errorf("NewTransfer to the lost peer = %v, want ErrRemoteGone", err)
	}
	select {
	case <-r.Done():
	case <-ctx.Done():
		t.Error("the library was not made to forget the lost peer")
	}

	fill(n.buf.Bytes()[:1<<20], 5)
	if err := n.xfer(t, ro, nixl.Write, n.buf.Desc(0, 1<<20), other.desc(0, 1<<20)).Run(ctx); err != nil {
		t.Fatalf("the other peer: %v", err)
	}
	other.do(command{Cmd: "check", Seed: 5})

	again := startGo(t, p.name, 1<<20, "tcp")
	r2 := n.add(t, again)
	if err := n.xfer(t, r2, nixl.Write, n.buf.Desc(0, 1<<20), again.desc(0, 1<<20)).Run(ctx); err != nil {
		t.Fatalf("the peer's next start: %v", err)
	}
	again.do(command{Cmd: "check", Seed: 5})
}

// A peer that starts again under its name while its former life is still
// believed in.
func TestPeerRestart(t *testing.T) {
	const size = 1 << 20
	n := newNode(t, size, nixl.Config{})
	p := startGo(t, "restarted-"+n.Name(), size, "")
	r := n.add(t, p)
	old := n.xfer(t, r, nixl.Write, n.buf.Desc(0, size), p.desc(0, size))
	if err := old.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if same := n.add(t, p); same != r {
		t.Error("loading the same metadata again made another Remote")
	}
	p.kill()
	p2 := startGo(t, p.name, size, "")
	r2 := n.add(t, p2)
	if r2 == r {
		t.Fatal("the next start got the Remote of the former")
	}
	if _, err := old.Post(); !errors.Is(err, nixl.ErrRemoteGone) {
		t.Errorf("Post of an old transfer = %v, want ErrRemoteGone", err)
	}
	fill(n.buf.Bytes(), 9)
	if err := n.xfer(t, r2, nixl.Write, n.buf.Desc(0, size), p2.desc(0, size)).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	p2.do(command{Cmd: "check", Seed: 9})
}

// A cancelled transfer keeps its memory until it has ended: the data still
// arrives, and nothing may be reused before.
func TestCancelPinsMemory(t *testing.T) {
	const size = 128 << 20
	n := newTCPNode(t, size)
	p := startGo(t, "slow-"+n.Name(), size, "tcp")
	r := n.add(t, p)
	if err := r.Connect(n.ucx); err != nil {
		t.Fatal(err)
	}
	x := n.xfer(t, r, nixl.Read, n.buf.Desc(0, size), p.desc(0, size))
	if done, err := x.Post(); done || err != nil {
		t.Fatalf("Post = %v, %v; want a running transfer", done, err)
	}
	if _, err := x.Post(); !errors.Is(err, nixl.ErrRepostActive) {
		t.Errorf("second Post = %v, want ErrRepostActive", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Wait with an ended context = %v", err)
	}
	if done, err := x.Poll(); done || err != nil {
		t.Fatalf("Poll = %v, %v: a context that ends must not end the transfer", done, err)
	}
	if err := n.reg.Close(); !errors.Is(err, nixl.ErrBusy) {
		t.Errorf("Registration.Close = %v, want ErrBusy", err)
	}
	if err := n.buf.Close(); !errors.Is(err, nixl.ErrBusy) {
		t.Errorf("HostBuffer.Close = %v, want ErrBusy", err)
	}
	x.Cancel()
	if err := x.Wait(t.Context()); !errors.Is(err, nixl.ErrCanceled) {
		t.Errorf("Wait after Cancel = %v, want ErrCanceled", err)
	}
	if _, err := x.Post(); !errors.Is(err, nixl.ErrCanceled) {
		t.Errorf("Post after Cancel = %v, want ErrCanceled", err)
	}
	if s := n.Stats(); s.Abandoned != 1 {
		t.Errorf("%d abandoned transfers, want 1", s.Abandoned)
	}
	select {
	case <-n.buf.Done():
		t.Fatal("the memory was given back under a running transfer")
	default:
	}
	for _, done := range []<-chan struct{}{x.Settled(), n.reg.Done(), n.buf.Done()} {
		select {
		case <-done:
		case <-time.After(60 * time.Second):
			t.Fatal("the cancelled transfer did not end")
		}
	}
	if s := n.Stats(); s.Abandoned != 0 || s.Transfers != 0 || s.Registrations != 0 {
		t.Errorf("left over: %+v", s)
	}
}

// A peer that hangs: waits end with their context, and closing the agent ends
// too, in the time it was given, and gives no memory back that a late answer
// could write to.
func TestPeerHangs(t *testing.T) {
	const size = 64 << 20
	agent, err := nixl.NewAgent(needLib(t), nixl.Config{ReapTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Agent: agent}
	if n.ucx, err = n.Backend(nixl.UCX{Engine: map[string]string{"TLS": "tcp"}}); err != nil {
		t.Fatal(err)
	}
	n.buf, n.reg = newBuffer(t, n.ucx, size)
	idle, idleReg := newBuffer(t, n.ucx, 4096)
	p := startGo(t, "hung-"+n.Name(), size, "tcp")
	r := n.add(t, p)
	if err := n.xfer(t, r, nixl.Write, n.buf.Desc(0, 8), p.desc(0, 8)).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer p.cmd.Process.Signal(syscall.SIGKILL) //nolint:errcheck // it may be gone
	x := n.xfer(t, r, nixl.Read, n.buf.Desc(0, size), p.desc(0, size))
	if done, err := x.Post(); done || err != nil {
		t.Fatalf("Post = %v, %v; want a running transfer", done, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := x.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Wait = %v, want DeadlineExceeded", err)
	}
	before := nixl.Quarantined()
	err = n.Close()
	wantErr(t, "Close", err, nixl.ErrBusy, "1 transfers did not end within 100ms")
	if kept := nixl.Quarantined() - before; kept != size {
		t.Errorf("%d bytes are kept, want %d", kept, size)
	}
	<-idleReg.Done()
	if err := idle.Close(); err != nil {
		t.Errorf("a buffer that no transfer used: %v", err)
	}
	if err := n.buf.Close(); !errors.Is(err, nixl.ErrBusy) {
		t.Errorf("the buffer of the transfer: %v, want ErrBusy", err)
	}
	select {
	case <-n.reg.Done():
		t.Error("the registration of a transfer that never ended is done")
	case <-n.buf.Done():
		t.Error("the memory of a transfer that never ended was given back")
	default:
	}
	if _, err := x.Post(); !errors.Is(err, nixl.ErrClosed) {
		t.Errorf("Post = %v, want ErrClosed", err)
	}
}

// Without a progress thread calls into the agent make the progress.
func TestNoProgressThread(t *testing.T) {
	for _, sync := range []nixl.SyncMode{nixl.SyncRW, nixl.SyncStrict, nixl.SyncNone} {
		cfg := nixl.Config{NoProgressThread: true, Sync: sync}
		n, far := newNode(t, 1<<16, cfg), newNode(t, 1<<16, nixl.Config{})
		r := addRemote(t, n.Agent, far.Agent)
		fill(far.buf.Bytes(), 8)
		x := n.xfer(t, r, nixl.Read, n.buf.Desc(0, 1<<16), far.buf.Desc(0, 1<<16))
		done, err := x.Post()
		for !done && err == nil {
			done, err = x.Poll()
		}
		if err != nil || !holds(n.buf.Bytes(), 8) {
			t.Errorf("sync %d: %v, or wrong bytes", sync, err)
		}
	}
}
