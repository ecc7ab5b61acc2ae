package wire_test

import (
	"fmt"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// A lookup as a client sends it, and what a server makes of it.
func Example() {
	key := wire.Key{
		Model: "org/model", WorldSize: 1, RequestID: "req-1", End: 3, NumKVReaders: 1,
		Tokens: wire.AppendTokens(nil, []uint32{9906, 1917, 128000}), TokenCount: 3,
	}
	request := [][]byte{
		wire.AppendUint(nil, 0), // uid: any bytes
		wire.AppendOp(nil, wire.OpLookup),
		wire.AppendKey(nil, &key),
		wire.AppendInt(nil, 1), // tp_size, ignored
	}

	op, err := wire.ParseOp(request[1])
	if err != nil || len(request)-2 != op.Arity() {
		fmt.Println("drop, or answer the operation's failure")
		return
	}
	var got wire.Key
	if err := wire.DecodeKey(request[2], &got, wire.SkipTokens); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(op, got.Model, got.TokenCount, "tokens for", got.RequestID)
	// Output: lookup org/model 3 tokens for req-1
}
