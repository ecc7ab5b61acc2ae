//go:build !linux || !cgo

package device

import "testing"

func cudaSuite(*testing.T, func(r *rig)) {}
