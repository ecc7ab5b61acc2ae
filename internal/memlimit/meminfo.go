package memlimit

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// readMeminfo takes the host's bound from /proc/meminfo.
func readMeminfo(path string) (Limit, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Limit{}, err
	}
	values := map[string]int64{}
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 2 && fields[1] == "kB" {
			if kb, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
				values[name] = kb << 10
			}
		}
	}
	total, ok := values["MemTotal"]
	available, ok2 := values["MemAvailable"]
	if !ok || !ok2 {
		return Limit{}, fmt.Errorf("%s has no MemTotal and MemAvailable", path)
	}
	return Limit{Name: "host memory", Bytes: total, UsedBytes: total - available}, nil
}

// Filesystem returns the size of the file system that holds path and how much
// of it this user may still write, in bytes.
func Filesystem(path string) (size, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}
