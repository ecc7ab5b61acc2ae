// Package simengine is an engine without a model: it schedules, pages, reuses
// prefixes, evicts, preempts and talks to LMCache servers as vLLM does, but its
// KV is a function of layer, position and prefix, and its answers are read back
// from the pages of the request. One wrong, lost or stale block changes the
// text, so the answer of an engine that spills to a server can be compared with
// that of one that never had to.
//
//   - [Engine] is the engine; [Engine.Complete] one request;
//   - [NewHandler] is its OpenAI surface.
//
// One goroutine steps the engine; everything else talks to it by channels.
package simengine
