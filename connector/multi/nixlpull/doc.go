// Package nixlpull makes a NIXL peer (package connector/pd) a child of a
// composition (package connector/multi), with the rules of vLLM's
// NixlPullConnector: a request with do_remote_prefill loads its whole prompt
// once, one with do_remote_decode keeps its blocks at its end until a decoder
// has read them or their lease is over.
//
// It is apart from connector/multi because NIXL needs cgo.
package nixlpull
