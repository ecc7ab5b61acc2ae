//go:build race

package torchpickle

const raceEnabled = true
