package mpserver

import "sync"

// largeBuffers keeps the buffers of pickle replies between requests: a fresh
// one of megabytes costs more in page faults and garbage collection than the
// copy into it. Buffers that nobody wants go with the next collections.
var largeBuffers sync.Pool // of *[]byte

// getBuffer returns an empty buffer with room for n bytes.
func getBuffer(n int) []byte {
	if p, ok := largeBuffers.Get().(*[]byte); ok && cap(*p) >= n {
		return (*p)[:0]
	}
	return make([]byte, 0, n)
}

// putBuffer gives b back; nobody may use it any more.
func putBuffer(b []byte) { largeBuffers.Put(&b) }
