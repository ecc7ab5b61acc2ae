package nixl_test

import (
	"testing"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// eachPeer runs a test against a Go peer and against a Python one.
func eachPeer(t *testing.T, f func(t *testing.T, start func(t testing.TB, name string, size int, tls string) *peer)) {
	t.Run("go", func(t *testing.T) { f(t, startGo) })
	t.Run("python", func(t *testing.T) { f(t, startPython) })
}

// Both directions between two processes: each side writes, reads and notifies.
func TestTwoProcesses(t *testing.T) {
	eachPeer(t, func(t *testing.T, start func(testing.TB, string, int, string) *peer) {
		const size = 1<<20 + 17
		n := newNode(t, size, nixl.Config{})
		p := start(t, "peer-"+n.Name(), size, "")
		blob, err := n.MetadataRaw()
		if err != nil {
			t.Fatal(err)
		}
		if got := p.do(command{Cmd: "load", Blob: blob}).Name; got != n.Name() {
			t.Errorf("the peer loaded %q, want %q", got, n.Name())
		}
		r, err := n.AddRemoteRaw(t.Context(), p.blob, p.name)
		if err != nil {
			t.Fatal(err)
		}
		xfer := func(op nixl.Op, msg string) {
			t.Helper()
			x, err := r.NewTransfer(op, n.ucx, dram(n.buf.Desc(0, size)), dram(p.desc(0, size)), nixl.XferOptions{Notif: []byte(msg)})
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			if err := x.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		fill(n.buf.Bytes(), 1)
		xfer(nixl.Write, "written")
		p.do(command{Cmd: "check", Seed: 1})
		p.do(command{Cmd: "fill", Seed: 2})
		xfer(nixl.Read, "read \x00\xff")
		if !holds(n.buf.Bytes(), 2) {
			t.Error("READ: wrong bytes")
		}
		if err := r.Notify([]byte("alone")); err != nil {
			t.Fatal(err)
		}
		var got []string
		eventually(t, "three notifications at the peer", func() bool {
			for _, m := range p.do(command{Cmd: "notifs"}).Notifs {
				if m.From != n.Name() {
					t.Errorf("a notification from %q", m.From)
				}
				got = append(got, m.Msg)
			}
			return len(got) >= 3
		})
		// The Python peer decodes bytes as Latin-1, the Go peer sends them as a string.
		if len(got) != 3 || got[0] != "written" || got[2] != "alone" {
			t.Errorf("notifications %q", got)
		}

		p.do(command{Cmd: "fill", Seed: 3})
		p.do(command{Cmd: "xfer", Op: "WRITE", Peer: n.Name(), Addr: n.buf.Addr(), Len: size, Msg: "from the peer"})
		if !holds(n.buf.Bytes(), 3) {
			t.Error("the peer's WRITE: wrong bytes")
		}
		fill(n.buf.Bytes(), 4)
		p.do(command{Cmd: "xfer", Op: "READ", Peer: n.Name(), Addr: n.buf.Addr(), Len: size, Msg: "and again"})
		p.do(command{Cmd: "check", Seed: 4})
		p.do(command{Cmd: "notify", Peer: n.Name(), Msg: "bye"})
		var here []nixl.Notif
		eventually(t, "three notifications here", func() bool {
			list, err := n.PollNotifs()
			if err != nil {
				t.Fatal(err)
			}
			here = append(here, list...)
			return len(here) >= 3
		})
		for i, want := range []string{"from the peer", "and again", "bye"} {
			if here[i].From != p.name || string(here[i].Msg) != want {
				t.Errorf("notification %d: %q from %q, want %q", i, here[i].Msg, here[i].From, want)
			}
		}
	})
}
