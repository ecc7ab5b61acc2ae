package copyplan

import (
	"errors"
	"fmt"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// Why a transfer was refused. Nothing has moved then, and the plan is as it was.
var (
	// ErrLists: the number of block id lists is not that of the layout.
	ErrLists = errors.New("copyplan: wrong number of block id lists")
	// ErrShort: a list does not cover all chunks of the request.
	ErrShort = errors.New("copyplan: block id list too short")
	// ErrBlockID: an id is negative or beyond the tensors.
	ErrBlockID = errors.New("copyplan: block id out of range")
	// ErrObject: an object is not one of the request's chunks, has another
	// size, or a form that cannot be converted.
	ErrObject = errors.New("copyplan: object does not fit the layout")
	// ErrBounds: a plan does not fit the memory that it is to run on. Its
	// layout belongs to other mappings.
	ErrBounds = errors.New("copyplan: copy out of bounds")
)

// CheckBlocks checks the block ids of a transfer of that many chunks: one list
// per list of the layout, each long enough (what follows is ignored), and each
// id a block of its kernel group. Ids of blocks that a window leaves out are
// checked too: they say that the client and the layout disagree.
func CheckBlocks(l *kvlayout.Layout, ids [][]int64, chunks int) error {
	if len(ids) != l.Lists {
		return fmt.Errorf("%w: got %d, the registration has %d groups", ErrLists, len(ids), l.Lists)
	}
	if chunks < 0 {
		return fmt.Errorf("%w: %d chunks", ErrShort, chunks)
	}
	for k := range l.Kernel {
		g := &l.Kernel[k]
		list := ids[g.List]
		if len(list)/g.BlocksPerChunk < chunks {
			return fmt.Errorf("%w: group %d has %d ids, %d chunks of %d blocks need more", ErrShort, k, len(list), chunks, g.BlocksPerChunk)
		}
		bound := uint64(g.NumBlocks)
		for i, id := range list[:chunks*g.BlocksPerChunk] {
			if uint64(id) >= bound { // catches negative ones too
				return fmt.Errorf("%w: %d, entry %d of group %d, which has %d blocks", ErrBlockID, id, i, k, g.NumBlocks)
			}
		}
	}
	return nil
}

// NullChunks says for each chunk of a request whether an object group has
// nothing there: all block ids of all its kernel groups are the null id. Such
// chunks must not be stored: their blocks hold no KV. The ids were checked. The
// result reuses dst.
func NullChunks(l *kvlayout.Layout, group int, ids [][]int64, chunks int, null int64, dst []bool) []bool {
	dst = dst[:0]
	for c := range chunks {
		empty := true
		for _, k := range l.Object[group].Kernel {
			g := &l.Kernel[k]
			for _, id := range ids[g.List][c*g.BlocksPerChunk : (c+1)*g.BlocksPerChunk] {
				if id != null {
					empty = false
					break
				}
			}
			if !empty {
				break
			}
		}
		dst = append(dst, empty)
	}
	return dst
}
