package nixl_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// Where the library would be looked for, without loading it.
func ExampleFind() {
	for _, c := range nixl.Find(nixl.LoadOptions{Path: "/opt/none", NoPython: true}) {
		fmt.Println(c.Origin, c.Path, c.Exists)
	}
	// Output:
	// option /opt/none false
}

// A program that does without NIXL when it is not there.
func ExampleLoad() {
	_, err := nixl.Load(nixl.LoadOptions{Path: "/opt/none"})
	switch {
	case errors.Is(err, nixl.ErrLibraryNotFound):
		fmt.Println("going on without NIXL")
	case errors.Is(err, nixl.ErrIncompatible):
		fmt.Println("going on without this NIXL")
	}
}

// Memory outside the Go heap, with huge pages where the system has them.
func ExampleMapBuffer() {
	buf, err := nixl.MapBuffer(4<<20, nixl.MapOptions{Pages: nixl.PagesTransparent})
	if err != nil {
		log.Fatal(err)
	}
	copy(buf.Bytes(), "hello")
	fmt.Printf("%s %d %v\n", buf.Bytes()[:5], buf.Size(), buf.Addr()%(2<<20) == 0)
	fmt.Println(buf.Close())
	// Output:
	// hello 4194304 true
	// <nil>
}

// What a blob says, without loading it.
func ExampleParseMetadata() {
	blob, err := os.ReadFile("testdata/metadata_1.5.1.bin")
	if err != nil {
		log.Fatal(err)
	}
	info, err := nixl.ParseMetadata(blob)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Agent, info.Backends, info.Regions[0].Mem, info.Regions[0].Len)
	_, err = nixl.ParseMetadata(blob[:len(blob)-1])
	fmt.Println(errors.Is(err, nixl.ErrBadMetadata))
	// Output:
	// alpha [UCX] DRAM 1048576
	// true
}

// The blocks of a KV cache: prepared once for a peer, then named by number.
func ExampleNewTransfer() {
	pull := func(ctx context.Context, ucx *nixl.Backend, peer *nixl.Remote, here, there nixl.Blocks) error {
		local, err := ucx.PrepLocalBlocks(nixl.VRAM, here)
		if err != nil {
			return err
		}
		defer local.Close()
		remote, err := peer.PrepBlocks(ucx, nixl.VRAM, there)
		if err != nil {
			return err
		}
		defer remote.Close()
		t, err := nixl.NewTransfer(nixl.Read, local, []int32{0, 1, 2}, remote, []int32{40, 41, 7},
			nixl.XferOptions{Notif: []byte("request-1:1")})
		if err != nil {
			return err
		}
		defer t.Close()
		return t.Run(ctx)
	}
	_ = pull
}

// When memory may be given back after a transfer that nobody waits for.
func ExampleTransfer_Cancel() {
	giveUp := func(ctx context.Context, t *nixl.Transfer, free func()) error {
		err := t.Wait(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Cancel() // the data still comes
			go func() {
				<-t.Settled()
				free()
			}()
			return err
		}
		free()
		return err
	}
	_ = giveUp
}

// Messages of peers, as a stream.
func ExampleAgent_Notifications() {
	serve := func(agent *nixl.Agent, release func(request string)) {
		for n := range agent.Notifications() { // ends when the agent is closed
			release(string(n.Msg))
		}
	}
	_ = serve
}

// Metadata by NIXL's own listener instead of a channel of one's own.
func ExampleAgent_FetchRemote() {
	meet := func(ctx context.Context, agent *nixl.Agent, name, address string) (*nixl.Remote, error) {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		return agent.FetchRemote(ctx, name, at)
	}
	_ = meet
}

// A peer that may start again.
func ExampleRemote_Lost() {
	follow := func(ctx context.Context, agent *nixl.Agent, metadata func() ([]byte, error), use func(*nixl.Remote)) error {
		for ctx.Err() == nil {
			blob, err := metadata() // asks the peer, wherever it is now
			if err != nil {
				return err
			}
			peer, err := agent.AddRemote(ctx, blob, "")
			if err != nil {
				return err
			}
			use(peer)
			select {
			case <-peer.Lost():
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}
	_ = follow
}
