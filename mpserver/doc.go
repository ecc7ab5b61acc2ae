// Package mpserver is the MP cache server: it answers an unmodified
// lmcache 0.5.6 client (vLLM's LMCacheMPConnector) over ZMQ.
//
// A request takes one way through the package:
//
//	connection ─ socket.go ─▶ frames ─ dispatch.go ─▶ operation ─ inline or lane.go ─▶ handler ─▶ reply ─ transport.go ─▶ connection
//
// The types that matter:
//
//   - [Options] is the whole configuration, [Options.Check] validates it.
//   - [Server] is one running server: [New], [Server.Run], nothing global.
//
// Handlers sit in one file a concern: control.go, lookup.go, register.go,
// enginedriven.go, p2p.go and kvevents.go. Two tables hold what clients leave
// behind: sessions.go (requests with their read leases) and instances.go
// (registered workers with what they have in their hands). The store itself is
// package l1cache, frames and messages are package mpserver/wire.
//
// Every request with an identity, a uid and an operation is answered; the
// failure answer of each operation stands in its row of the table in
// dispatch.go. A [Server] is safe for concurrent use; one Run per Server.
package mpserver
