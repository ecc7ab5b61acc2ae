// Package pd checks connector/pd with the NixlConnector of vLLM 0.33 itself,
// inside its MultiConnector, over real NIXL and UCX: prefill and decode engines
// of Go and of vLLM in all four pairs, with the pages compared and the producer's
// blocks freed by the notification. It has tests only.
//
// peer.py is one engine of vLLM; conformance/vllm/env.sh makes its environment,
// and LMCACHE_GO_VLLM_PYTHON names the interpreter, without which the tests are
// skipped. NIXL itself is taken from the environment of LMCACHE_GO_PYTHON.
//
//	scripts/test.sh vllm
package pd
