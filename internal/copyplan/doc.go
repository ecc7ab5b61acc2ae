// Package copyplan works out which bytes a STORE or RETRIEVE moves: from the
// engine's blocks, named by their ids, to objects in the pool, or back. It is
// pure; package device runs what it plans.
//
// A [Plan] has two kinds of copies: a [Run] of bytes that lie side by side in
// both places, neighbouring blocks merged, and a [Pattern], the same piece at
// regular distances, which is one 2-D copy for all layers, or, where an object
// has another order of heads and tokens than the engine, the transposition of
// a block. [Options] says which a device likes.
//
// Everything is checked before anything is planned ([CheckBlocks]): lists that
// are too short, ids that are no block. [Plan.Check] is the other half, run by
// the device: no copy leaves the memory it was given. So a client's mistake
// costs an error and never a byte.
//
// A store of one object group:
//
//	if err := copyplan.CheckBlocks(l, ids, chunks); err != nil {
//		return err // answer (event, false)
//	}
//	null = copyplan.NullChunks(l, group, ids, chunks, nullBlockID, null)
//	… // reserve objects of l.Object[group].ObjectBytes() for the chunks that are not null
//	p := copyplan.Acquire()
//	if err := p.Add(&copyplan.Request{Layout: l, Group: group, BlockIDs: ids, Chunks: chunks}, objects, dev.Traits().Plans); err != nil {
//		p.Release()
//		return err
//	}
//	… // submit p; release it when the copy is done
//
// More groups are added to the same plan. A retrieve takes the chunks that
// [kvlayout.Layout.RetrieveChunks] names, sets SkipTokens, and gives each
// object's own form; [Plan.Reorders] then tells whether a device needs more
// than plain copies. [Convert] makes a token-major copy of an object for a
// client that knows no other order.
//
// A Plan is not safe for concurrent use, except that parts of it ([Plan.Cut])
// may be copied at the same time.
package copyplan
