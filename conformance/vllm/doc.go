// Package vllm checks lmcache-go with vLLM 0.33 itself: its scheduler, its KV
// cache manager and its LMCacheMPConnector, unmodified, are stepped on a CPU
// against our server and against the real one of lmcache 0.5.6, and everything
// that their clients say and hear must be equal, but for a table of intended
// differences. It has tests only.
//
// What is not run: the model (the pages are filled by a function of the
// tokens), EngineCore and its processes, async scheduling, a GPU.
//
// env.sh makes the Python environment; LMCACHE_GO_VLLM_PYTHON names its
// interpreter, and without it the tests are skipped. LMCACHE_GO_BIN may name
// the server binary to test.
//
//	LMCACHE_GO_VLLM_PYTHON="$(conformance/vllm/env.sh)/bin/python" go test ./conformance/vllm -v
//	scripts/test.sh vllm
//
// testdata/trace.txt is what the real server and its client say to each other;
// -update rewrites it. cases.py also runs alone, against any server.
package vllm
