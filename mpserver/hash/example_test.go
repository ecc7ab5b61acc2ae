package hash_test

import (
	"fmt"

	"github.com/lmcache-go/lmcache-go/mpserver/hash"
)

// Two chunks of 16 tokens and a tail of one; the array is followed by other
// bytes of its frame.
func ExampleHasher_Prompt() {
	h, err := hash.New(hash.Options{ChunkSize: 16})
	if err != nil {
		fmt.Println(err)
		return
	}
	var body []byte
	for token := range byte(33) {
		body = append(body, token) // below 128 a msgpack integer is its own byte
	}
	p, consumed, err := h.Prompt(append(body, "more"...), 33)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Tokens(), "tokens,", consumed, "bytes")
	for _, digest := range p.Chunks() {
		fmt.Printf("%x\n", digest[:8])
	}
	// Output:
	// 33 tokens, 33 bytes
	// 32748aa00c5090e4
	// b41527751e5bac5a
}
