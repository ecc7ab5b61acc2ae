package l1cache_test

import (
	"context"
	"fmt"
	"log"

	"github.com/lmcache-go/lmcache-go/l1cache"
)

func Example() {
	arena, err := l1cache.OpenArena(l1cache.ArenaOptions{SizeBytes: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer arena.Close()
	cache, err := l1cache.New(l1cache.Options{Arena: arena, Evict: true})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()

	// A worker stores two chunks.
	scope := l1cache.Scope{Model: "llama"}
	hashes := []l1cache.Hash{{1}, {2}, {3}}
	res, err := cache.Reserve(context.Background(), l1cache.ReserveRequest{Scope: scope, Hashes: hashes[:2], SizeBytes: 5})
	if err != nil {
		log.Fatal(err)
	}
	for i, s := range res.Slots() {
		copy(arena.Bytes()[s.Offset:s.Offset+s.Length], fmt.Sprintf("kv %02d", i))
	}
	fmt.Println("published", res.Publish(nil))

	// A scheduler finds them, and they stay until the worker has read them.
	lease, _ := cache.Lookup(l1cache.LookupRequest{
		Groups: []l1cache.Group{{Scope: scope}}, Ranks: []uint32{0}, Hashes: hashes, Readers: 1,
	}, nil)
	fmt.Println("hit", lease.Hit())
	transfer, err := lease.Take(0, 0, 0, lease.Hit())
	if err != nil {
		log.Fatal(err)
	}
	for _, o := range transfer.Objects() {
		fmt.Printf("%s\n", arena.Bytes()[o.Offset:o.Offset+o.Length])
	}
	transfer.Done()
	// Output:
	// published 2
	// hit 2
	// kv 00
	// kv 01
}
