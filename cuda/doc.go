// Package cuda calls the CUDA driver. The driver is loaded at run time, so that
// a program built without CUDA runs on machines with and without a GPU.
//
// A [Driver] is loaded once. A [Device] is found by its UUID; ordinals mean
// nothing to other processes. A [Context] is retained for a device that is in
// use, and costs GPU memory for as long. Memory of other processes is mapped by
// [Context.OpenMemory], host memory is pinned by [Driver.PinHost], and a
// [Stream] takes whole requests: wait for another process, copy some thousand
// pieces, tell the other process. One request is one call into C.
//
//	drv, err := cuda.Load(cuda.LoadOptions{})
//	dev, err := drv.Device("d5a55c39-…")
//	ctx, err := drv.Retain(dev)
//	defer ctx.Release()
//	peer, err := ctx.OpenMemory(handle)
//	defer peer.Release()
//	s, err := ctx.NewStream()
//	defer s.Destroy()
//	_, err = s.Submit(&cuda.Request{Dst: …, Src: …, Size: …, Direction: cuda.ToHost, Done: done})
//	err = done.Wait()
//
// Every failed call is an [*Error] that wraps a [Result] and, for what users
// meet, says the remedy. Without cgo, or on another system than Linux, the
// package compiles and Load fails with [ErrNoDriver].
//
// Not safe to share: one goroutine at a time submits to a stream.
package cuda
