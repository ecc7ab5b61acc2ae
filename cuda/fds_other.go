//go:build !linux

package cuda

// takeFDs needs Linux.
func takeFDs(int, []int) ([]int, error) { return nil, ErrUnsupported }

func closeFDs([]int) {}
