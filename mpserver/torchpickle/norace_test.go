//go:build !race

package torchpickle

const raceEnabled = false
