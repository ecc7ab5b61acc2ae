// Package pd moves KV caches between engines of a disaggregated deployment: a
// peer of the NixlConnector of vLLM 0.33 (NIXL_CONNECTOR_VERSION 15, pull
// mode), over package nixl. A producer here serves vLLM decoders, a consumer
// here pulls from vLLM prefillers, and both work with each other.
//
//   - [Peer] is one rank of one engine: a NIXL agent, the registered KV cache,
//     and both roles.
//   - [SideChannel] is the socket where the ranks of an engine tell peers how to
//     reach their memory; a Peer makes one for itself when none is given.
//   - [Params] are the kv_transfer_params that travel with requests and
//     responses, through the router.
//   - [Model] names what must agree on both sides; [Region] is the KV cache of
//     one layer.
//
// # A producer
//
//	peer, err := pd.New(pd.Options{
//		Model: model, Host: "10.0.0.1", Port: 5600,
//		Memory: []nixl.Region{nixl.HostMemory(pool)}, Regions: regions,
//		Released: func(r pd.Release) { engine.free(r.RequestID) },
//	})
//	…
//	params, err := peer.Offer(pd.Offer{RequestID: id, Blocks: blocks, Tokens: n})
//
// The blocks of a request that was offered must stay as they are until Released
// is called for it: because the consumer has read them, or because nobody came
// in time.
//
// # A consumer
//
//	peer.Track(id, params) // on arrival: keeps the producer's lease alive
//	…
//	res, err := peer.Pull(ctx, id, params, blocks)
//
// blocks are those that the prefix cache did not have: the last of the
// producer's are read into them. Without any, Pull only tells the producer that
// it may free its blocks. After a failure nothing may reuse the blocks before
// res.Settled is closed: NIXL cannot stop a transfer.
//
// # What can go wrong
//
// Errors wrap the sentinels of this package ([ErrHandshake], [ErrIncompatible],
// [ErrTransfer] and others), and name the values of both sides where two values
// disagree. Every wait is bounded by an option. An engine that was started again
// has another engine id and another agent name; it is found by its params, and
// what is known of its former life is dropped once nothing uses it.
//
// # Limits
//
// One pipeline stage, no context parallelism, no push mode, no reading back from
// decoders (bidirectional_kv_xfer), equal block sizes on both sides, attention
// layers only.
package pd
