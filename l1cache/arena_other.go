//go:build !linux

package l1cache

import (
	"errors"
	"time"
)

// errNotLinux says that the arena knows Linux only; the rest of the package
// builds elsewhere so that its tests and readers can.
var errNotLinux = errors.New("l1cache: the arena needs Linux")

type segment struct{}

func (*segment) close() error { return nil }

type populator struct{}

func mapPrivate(int64) ([]byte, error) { return nil, errNotLinux }
func openSegment(string, string, int64, time.Duration) (*segment, []byte, error) {
	return nil, nil, errNotLinux
}
func unmap([]byte) error                                               { return nil }
func newPopulator([]byte, *segment, func() (int64, string)) *populator { return &populator{} }
func (*populator) room(int64) error                                    { return nil }
func (*populator) populate(int64, int64) error                         { return errNotLinux }
func (*populator) discard(int64, int64)                                {}
func (*populator) lowerPriority()                                      {}

func machineHeadroom() (int64, string) { return -1, "" }
