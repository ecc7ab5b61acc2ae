package nixl_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// envEtcd names an etcd server's program, to run the test of metadata in etcd.
const envEtcd = "LMCACHE_GO_ETCD"

// Two agents that find each other by name alone.
func TestEtcd(t *testing.T) {
	needLib(t)
	etcd := os.Getenv(envEtcd)
	if etcd == "" {
		t.Skipf("set %s to an etcd program", envEtcd)
	}
	client, peer := freeAddress(t), freeAddress(t)
	cmd := exec.CommandContext(t.Context(), etcd, "--data-dir", t.TempDir(), "--listen-client-urls", "http://"+client, "--advertise-client-urls", "http://"+client,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer, "--initial-cluster", "default=http://"+peer, "--log-level", "error")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	eventually(t, "etcd", func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", client)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	t.Setenv("NIXL_ETCD_ENDPOINTS", "http://"+client)
	a, b := newNode(t, 4096, nixl.Config{}), newNode(t, 4096, nixl.Config{})
	server := netip.AddrPort{}
	if err := b.SendMetadata(server); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := a.FetchRemote(ctx, b.Name(), server)
	if err != nil {
		t.Fatal(err)
	}
	fill(a.buf.Bytes(), 4)
	if err := a.xfer(t, r, nixl.Write, a.buf.Desc(0, 4096), b.buf.Desc(0, 4096)).Run(ctx); err != nil {
		t.Fatal(err)
	}
	if !holds(b.buf.Bytes(), 4) {
		t.Error("wrong bytes")
	}
	if err := b.WithdrawMetadata(server); err != nil {
		t.Error(err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr())
}
