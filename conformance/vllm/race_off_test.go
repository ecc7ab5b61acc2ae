//go:build !race

package vllm

// raceEnabled makes the server binary a race-checked one as well.
const raceEnabled = false
