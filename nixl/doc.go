// Package nixl is NIXL for Go: it moves memory between processes, hosts, GPUs
// and storage through NVIDIA's NIXL library, which it loads at run time.
package nixl
