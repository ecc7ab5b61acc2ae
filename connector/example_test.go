package connector_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/mpserver"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// serve runs a server in this process; a real engine has its url from the
// transfer config.
func serve() (url string, stop func()) {
	s, err := mpserver.New(mpserver.Options{
		Host: "127.0.0.1", HTTPPort: -1,
		L1: mpserver.L1Options{SizeBytes: 16 << 20, ShmName: fmt.Sprintf("connector_example_%d", os.Getpid())},
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s.Addr(), func() {
		cancel()
		if err := <-done; err != nil {
			panic(err)
		}
	}
}

// A router asks how much of a prompt a server has, without an engine.
func ExampleClient() {
	url, stop := serve()
	defer stop()
	c, err := connector.Dial(url, connector.Options{Timeout: 5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	tokens := make([]uint32, 600)
	key := wire.Key{
		Model: "my/model", WorldSize: 1, Tokens: wire.AppendTokens(nil, tokens), TokenCount: len(tokens), End: 512,
		RequestID: "probe-1", NumKVReaders: 1,
	}
	if err := c.Lookup(ctx, &key, 1); err != nil {
		fmt.Println(err)
		return
	}
	chunks, _, err := c.WaitPrefetch(ctx, key.RequestID, time.Second)
	fmt.Println("chunks:", chunks, err)
	c.FreeLookupLocks(&key, 1) // what was found is held until then
	c.EndSession(key.RequestID)
	// Output: chunks: 0 <nil>
}

// An engine of one rank computes a prompt, stores it, forgets it, and loads it.
func Example() {
	url, stop := serve()
	defer stop()
	ctx := context.Background()
	cfg := connector.DefaultConfig()
	cfg.Servers = []string{url}

	// One layer of 64 blocks: [K and V, blocks, tokens, heads, head size].
	const layerBytes = 2 * 64 * 16 * 2 * 8 * 2
	memory := connector.HostMemory{make([]byte, layerBytes)}
	worker, err := connector.NewWorker(ctx, connector.WorkerOptions{Model: "my/model", Config: cfg})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer worker.Close(ctx)
	err = worker.Register(ctx, &connector.Caches{
		Memory: memory, Hints: wire.LayoutHints{KVLayout: "NHD"},
		Tensors: []connector.Tensor{{DType: "bfloat16", Shape: []int64{2, 64, 16, 2, 8}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	scheduler, err := connector.NewScheduler(ctx, connector.SchedulerOptions{Model: "my/model", Config: cfg, BlockTokens: []int{16}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer scheduler.Close()

	run := func(id string, compute func()) {
		r := &connector.Request{ID: id, Tokens: make([]uint32, 600), PromptTokens: 600}
		blocks := [][]int64{make([]int64, 38)} // 38 blocks of 16 tokens
		for i := range blocks[0] {
			blocks[0][i] = int64(i + 1)
		}
		_ = scheduler.Await(ctx, r) // an engine with other work just asks Match again at its next step
		hit, _ := scheduler.Match(r, 0)
		fmt.Println(id, "finds", hit)
		scheduler.Allocated(r, blocks, hit)
		if hit > 0 {
			worker.Load(scheduler.BuildMeta(&connector.Step{}).Loads)
			for len(worker.Poll(nil).Received) == 0 {
				time.Sleep(time.Millisecond) // an engine would go on with other requests
			}
			r.ComputedTokens = hit
		}
		compute()
		meta := scheduler.BuildMeta(&connector.Step{Scheduled: []connector.Scheduled{{Request: r, Kind: connector.New, Tokens: 600 - hit}}})
		worker.Save(meta.Stores)
		scheduler.Finish(r)
		for sent := worker.Poll([]string{id}).Sent; len(sent) == 0; sent = worker.Poll(nil).Sent {
			time.Sleep(time.Millisecond)
		}
	}
	run("first", func() {
		for i := range memory[0] {
			memory[0][i] = byte(i)
		}
	})
	before := bytes.Clone(memory[0])
	clear(memory[0])
	run("second", func() {})
	const blockBytes = 16 * 2 * 8 * 2
	fmt.Println("loaded:", bytes.Equal(before[blockBytes:33*blockBytes], memory[0][blockBytes:33*blockBytes]))
	// Output:
	// first finds 0
	// second finds 512
	// loaded: true
}

// A transfer config of vLLM is read as it is.
func ExampleParseTransferConfig() {
	c, err := connector.ParseTransferConfig([]byte(`{
		"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
		"kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 6555}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	mp, err := c.Find(connector.MPConnector).MP()
	fmt.Println(mp.Servers, mp.Mode, mp.HeartbeatInterval, err)
	// Output: [tcp://localhost:6555] auto 10s <nil>
}
