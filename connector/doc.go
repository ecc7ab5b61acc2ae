// Package connector is the engine side of the MP protocol of lmcache 0.5.6: what
// vLLM's LMCacheMPConnector does, for routers, gateways and inference engines
// written in Go.
//
//   - [Client] is one connection: requests matched with replies, timeouts,
//     reconnecting, and a typed call for each operation.
//   - [Scheduler] decides what to load and what to store: it counts the tokens
//     that a server has of a request, and turns each step of an engine into
//     transfers for its workers.
//   - [Worker] moves the blocks: it registers the engine's KV tensors, runs
//     loads and stores in the background, and tells when they are done.
//   - [Config] is what `--kv-transfer-config` says.
//
// A server that is down or slow never stops an engine: lookups then count
// nothing, stores are dropped, loads fail, and a heartbeat finds out when the
// server is back.
//
// Times are those of package time, so that a program which embeds an engine can
// be tested under testing/synctest. A Client may be shared; a Scheduler and a
// Worker belong to the goroutine that steps the engine.
package connector
