// Package fakecuda is a CUDA driver without a GPU, for tests: the functions of
// libcuda that package cuda uses, with its rules as far as they matter to us.
//
// Device memory is memory that other processes can map, streams are threads
// that run their operations in order, and an event of another process that does
// not fire holds up the streams that wait for it and nothing else. Host memory
// must be registered, and a copy must not cross two registrations. Calls are
// counted, and the n-th one fails with any result that a test wants.
//
// There is one fake in a process, as there is one driver; [New] waits for its
// turn. No program links this package.
package fakecuda
