package nixl_test

import (
	"testing"

	"github.com/lmcache-go/lmcache-go/nixl"
)

func TestTransfer(t *testing.T) {
	const size = 1 << 20
	a, b := newNode(t, size, nixl.Config{}), newNode(t, size, nixl.Config{})
	toB, _ := meet(t, a, b)
	for _, op := range []nixl.Op{nixl.Write, nixl.Read} {
		fill(a.buf.Bytes(), 1)
		fill(b.buf.Bytes(), 2)
		x, err := toB.NewTransfer(op, a.ucx, dram(a.buf.Desc(0, size)), dram(b.buf.Desc(0, size)), nixl.XferOptions{Notif: []byte("done " + op.String())})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := map[nixl.Op]int{nixl.Write: 1, nixl.Read: 2}[op]
		if !holds(a.buf.Bytes(), want) || !holds(b.buf.Bytes(), want) {
			t.Errorf("%v: wrong bytes", op)
		}
		var got nixl.Notif
		eventually(t, "notification", func() bool {
			list, err := b.PollNotifs()
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 1 {
				got = list[0]
			}
			return len(list) > 0
		})
		if got.From != a.Name() || string(got.Msg) != "done "+op.String() {
			t.Errorf("notification %q from %q", got.Msg, got.From)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}
