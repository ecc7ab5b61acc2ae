package nixl_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

func nixlAddr(s string) netip.AddrPort {
	if s == "" {
		return netip.AddrPort{}
	}
	return netip.MustParseAddrPort(s)
}

func loopback(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

// NIXL's own listener: fetch, push and withdraw, on a port of its choosing.
func TestListener(t *testing.T) {
	listening := nixl.Config{Listen: &nixl.Listen{Pause: 2 * time.Millisecond}}
	a, b := newNode(t, 4096, listening), newNode(t, 4096, listening)
	if a.ListenPort() == 0 || a.ListenPort() == b.ListenPort() {
		t.Fatalf("ports %d and %d", a.ListenPort(), b.ListenPort())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := a.FetchRemote(ctx, b.Name(), loopback(b.ListenPort()))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Covers(dram(b.buf.Desc(0, 4096))) || r.Covers(dram(a.buf.Desc(0, 4096))) {
		t.Error("what was fetched does not cover the peer's buffer alone")
	}
	fill(a.buf.Bytes(), 3)
	x, err := r.NewTransfer(nixl.Write, a.ucx, dram(a.buf.Desc(0, 4096)), dram(b.buf.Desc(0, 4096)), nixl.XferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if !holds(b.buf.Bytes(), 3) {
		t.Error("wrong bytes")
	}
	// a pushes itself to b.
	if err := a.SendMetadata(loopback(b.ListenPort())); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b knows a", func() bool { _, ok := b.Remote(a.Name()); return ok })
	// Somebody who pushed to the listener may also be added by a blob.
	addRemote(t, b.Agent, a.Agent)
	if err := a.WithdrawMetadata(loopback(b.ListenPort())); err != nil {
		t.Fatal(err)
	}
	c := newAgent(t, nixl.Config{})
	if _, ok := c.Remote(a.Name()); ok {
		t.Error("an agent that met nobody knows a")
	}

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = a.FetchRemote(short, "nobody", loopback(b.ListenPort()))
	wantErr(t, "fetch of an unknown name", err, context.DeadlineExceeded, "did not arrive", "nobody")

	_, err = nixl.NewAgent(a.Library(), nixl.Config{Listen: &nixl.Listen{Port: a.ListenPort()}})
	if err == nil {
		t.Error("a second listener on the same port: no error")
	}
}

// A peer gets connections first and regions later, one after another.
func TestPartialMetadata(t *testing.T) {
	a, b := newNode(t, 8192, nixl.Config{}), newNode(t, 8192, nixl.Config{})
	conn, err := b.ConnectionMetadata()
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.AddRemote(t.Context(), conn, b.Name())
	if err != nil {
		t.Fatal(err)
	}
	whole := dram(b.buf.Desc(0, 8192))
	if r.Covers(whole) || len(r.Regions()) != 0 {
		t.Errorf("connection metadata brought regions: %v", r.Regions())
	}
	_, err = r.Prep(a.ucx, whole)
	wantErr(t, "Prep before the regions", err, nixl.ErrNotRegistered)
	buf2, reg2 := newBuffer(t, b.ucx, 4096)
	for i, reg := range []*nixl.Registration{b.reg, reg2} {
		part, err := b.PartialMetadata(reg)
		if err != nil {
			t.Fatal(err)
		}
		same, err := a.AddRemote(t.Context(), part, b.Name())
		if err != nil || same != r {
			t.Fatalf("part %d: %v, %v", i, same, err)
		}
	}
	second := dram(buf2.Desc(0, 4096))
	if !r.Covers(whole) || !r.Covers(second) || len(r.Regions()) != 2 {
		t.Errorf("both regions are expected: %v", r.Regions())
	}
	fill(a.buf.Bytes(), 1)
	x, err := r.NewTransfer(nixl.Write, a.ucx, dram(a.buf.Desc(0, 4096)), second, nixl.XferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !holds(buf2.Bytes(), 1) {
		t.Error("wrong bytes")
	}
	// The whole again, after the peer has ended one: it is no longer offered.
	if err := reg2.Close(); err != nil {
		t.Fatal(err)
	}
	addRemote(t, a.Agent, b.Agent)
	_, err = r.Prep(a.ucx, second)
	wantErr(t, "Prep of what the peer has ended", err, nixl.ErrNotRegistered)
	if _, err := b.PartialMetadata(b.reg, a.reg); !errors.Is(err, nixl.ErrMismatch) {
		t.Errorf("registrations of two agents: %v", err)
	}
}

func TestTelemetry(t *testing.T) {
	a, b := newNode(t, 1<<20, nixl.Config{Telemetry: true}), newNode(t, 1<<20, nixl.Config{})
	r := addRemote(t, a.Agent, b.Agent)
	var l, f []nixl.Desc
	for i := range 16 {
		l, f = append(l, a.buf.Desc(i*4096, 4096)), append(f, b.buf.Desc(i*4096, 4096))
	}
	local, err := a.ucx.PrepLocal(dram(l...))
	if err != nil {
		t.Fatal(err)
	}
	remote, err := r.Prep(a.ucx, dram(f...))
	if err != nil {
		t.Fatal(err)
	}
	run := func(x *nixl.Transfer, err error) nixl.Telemetry {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		tel, err := x.Telemetry()
		if err != nil {
			t.Fatal(err)
		}
		if d, _, err := x.Estimate(); err != nil || d < 0 {
			t.Errorf("Estimate = %v, %v", d, err)
		}
		return tel
	}
	// Two runs of neighbours, named in a mixed order.
	idx := []int32{9, 1, 0, 8, 2}
	tel := run(nixl.NewTransfer(nixl.Read, local, idx, remote, idx, nixl.XferOptions{}))
	if tel.Bytes != 5*4096 || tel.Descs != 2 {
		t.Errorf("sorted: %+v, want 2 descriptors of 20480 bytes", tel)
	}
	tel = run(nixl.NewTransfer(nixl.Read, local, idx, remote, idx, nixl.XferOptions{KeepOrder: true}))
	if tel.Descs != 5 {
		t.Errorf("in the given order: %+v, want 5 descriptors", tel)
	}
	tel = run(nixl.NewTransfer(nixl.Read, local, idx, remote, idx, nixl.XferOptions{KeepApart: true}))
	if tel.Descs != 5 {
		t.Errorf("kept apart: %+v, want 5 descriptors", tel)
	}
	x, err := r.NewTransfer(nixl.Read, a.ucx, dram(l...), dram(f...), nixl.XferOptions{})
	if tel = run(x, err); tel.Descs != 1 || x.Descs() != 1 || tel.Bytes != 16*4096 {
		t.Errorf("descriptors: %+v, want one of 65536 bytes", tel)
	}
	x, err = r.NewTransfer(nixl.Read, a.ucx, dram(l...), dram(f...), nixl.XferOptions{KeepApart: true})
	if tel = run(x, err); tel.Descs != 16 {
		t.Errorf("descriptors kept apart: %+v, want 16", tel)
	}
}
