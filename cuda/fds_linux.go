package cuda

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// takeFDs duplicates file descriptors of another process.
func takeFDs(pid int, theirs []int) (fds []int, err error) {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	defer closeFDs([]int{p})
	for _, their := range theirs {
		fd, err := unix.PidfdGetfd(p, their, 0)
		if err != nil {
			closeFDs(fds)
			return nil, fmt.Errorf("pidfd_getfd of %d: %w", their, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
