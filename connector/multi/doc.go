// Package multi composes the connectors of an engine as vLLM's MultiConnector
// does: several sources of KV side by side, asked in their order, of which one
// loads and all store.
//
//	s, err := multi.NewScheduler(multi.Child[multi.Scheduler]{"NixlConnector", peer}, multi.Child[multi.Scheduler]{"LMCacheMPConnector", multi.MP(sched)})
//
// The rules (vLLM 0.33, kv_connector/v1/multi_connector.py):
//
//   - children are asked until one does not know yet; then nobody loads in this
//     step, and those asked before are asked again;
//   - the first child with tokens loads; the others hear that none came from
//     them, and let go of what they held;
//   - all children hear of the request's blocks, and all may store;
//   - the blocks of a finished request are free once every child that wanted to
//     keep them has named the request in Progress.Sent;
//   - the params that children return are one object; two children with the same
//     key are an error.
//
// [Scheduler] and [Worker] are what a child implements: [MP] and [MPWorker]
// adapt the LMCache connector, package connector/pd has the NIXL peer. A
// composition implements them too.
package multi
