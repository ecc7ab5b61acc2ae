//go:build !race

package conformance

// raceEnabled makes the server binary a race-checked one as well.
const raceEnabled = false
