// Command gputest drives a lmcache-go server with the KV caches of real GPU
// processes: torch allocates them as vLLM 0.33 does and exports them, and
// events of both schemes, by CUDA IPC. It checks every byte that comes back,
// kills workers, and measures speed on the device's own clock.
//
//	make gpu-test                      # on a machine with a GPU and torch
//	bin/gputest -server bin/lmcache-go -json report.json
//	bin/gputest -device cpu -quick     # gputest itself, without a GPU
//	scripts/gpu-build.sh               # both binaries, to be copied to such a machine
//
// It starts the server and the Python processes itself and needs nothing else:
// no vLLM, no lmcache, no network.
package main
