// Package demo is `lmcache-go demo pd`: the five processes of a disaggregated
// prefill deployment on this machine (two servers, two simulated engines, the
// real vllm-router or a stand-in), the steps by which its operator verifies it,
// what a user sees when a part dies, and a small load.
//
// Every process is a child that ends with the demo: it has a process group of
// its own, which is killed at the end, and dies with its parent. Ports come from
// the kernel. Logs are in a folder that is named when something fails.
package demo
