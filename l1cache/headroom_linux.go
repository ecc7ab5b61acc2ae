package l1cache

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// headroomMarginBytes is what the population leaves untouched for the rest of
// the process and its neighbours in the cgroup.
const headroomMarginBytes = 64 << 20

// MemoryHeadroom returns how many bytes this process can still fill before its
// cgroup (any level, v1 or v2) or the machine runs out, counting file cache
// that the kernel can drop, and which of them is the limit. -1 when unknown.
func MemoryHeadroom() (freeBytes int64, source string) { return memoryHeadroom("/") }

// memoryHeadroom is MemoryHeadroom below another root directory.
func memoryHeadroom(root string) (int64, string) {
	left, source := int64(math.MaxInt64), ""
	consider := func(n int64, from string) {
		if n < left {
			left, source = max(n, 0), from
		}
	}
	if n, ok := fieldKiB(filepath.Join(root, "proc/meminfo"), "MemAvailable:"); ok {
		consider(n, "the machine (MemAvailable)")
	}
	groups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(groups)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		switch {
		case part[0] == "0" && part[1] == "":
			walkUp(filepath.Join(root, "sys/fs/cgroup"), part[2], func(dir string) {
				limit, ok1 := number(dir + "/memory.max")
				used, ok2 := number(dir + "/memory.current")
				if ok1 && ok2 {
					cache, _ := field(dir+"/memory.stat", "inactive_file")
					consider(limit-used+cache, "the cgroup limit (memory.max)")
				}
			})
		case hasController(part[1], "memory"):
			walkUp(filepath.Join(root, "sys/fs/cgroup/memory"), part[2], func(dir string) {
				limit, ok1 := number(dir + "/memory.limit_in_bytes")
				used, ok2 := number(dir + "/memory.usage_in_bytes")
				if ok1 && ok2 {
					cache, _ := field(dir+"/memory.stat", "total_inactive_file")
					consider(limit-used+cache, "the cgroup limit (memory.limit_in_bytes)")
				}
			})
		}
	}
	if source == "" {
		return -1, ""
	}
	return left, source
}

func hasController(list, name string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == name {
			return true
		}
	}
	return false
}

// walkUp calls f for the group and each of its parents up to the mount. In a
// container the path may not exist below the mount; the mount itself then is
// the container's group.
func walkUp(mount, group string, f func(dir string)) {
	for dir := filepath.Clean("/" + group); ; dir = filepath.Dir(dir) {
		f(filepath.Join(mount, dir))
		if dir == "/" {
			return
		}
	}
}

// number reads a file of one number; "max" is none.
func number(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return int64(min(n, math.MaxInt64)), err == nil
}

// field reads one "name value" line.
func field(path, name string) (int64, bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.Fields(s.Text())
		if len(w) >= 2 && w[0] == name {
			n, err := strconv.ParseInt(w[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func fieldKiB(path, name string) (int64, bool) {
	n, ok := field(path, name)
	return n * 1024, ok
}
