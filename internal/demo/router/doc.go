// Package router is a small stand-in for vllm-router 0.1.17 in its P/D mode, for
// machines without Python: it sends engines the bytes that the real one sends
// them. It has no retries, no metrics and no policy but round robin, and looks
// at the health of its workers only when it is asked for it.
package router
