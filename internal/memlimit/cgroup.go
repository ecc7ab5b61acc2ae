package memlimit

import (
	"bufio"
	"bytes"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// unlimited: a v1 limit at or above this is "none" (the kernel writes the
// largest multiple of a page in 63 bits).
const unlimited = 1 << 62

// mount is a mounted cgroup hierarchy that may bound memory.
type mount struct {
	root  string // the part of the hierarchy that is mounted
	point string
	v2    bool
}

// cgroups returns the bounds of this process's memory cgroup and its parents,
// innermost first.
func cgroups(root string) []Limit {
	mounts := readMounts(filepath.Join(root, "proc/self/mountinfo"))
	v1, v2 := readMembership(filepath.Join(root, "proc/self/cgroup"))
	var out []Limit
	for _, m := range mounts {
		own, read := v2, readV2
		if !m.v2 {
			own, read = v1, readV1
		}
		if own == "" {
			continue
		}
		for dir := m.dir(root, own); ; dir = path.Dir(dir) {
			if l, ok := read(filepath.Join(root, m.point, dir)); ok {
				l.Name = "cgroup " + dir
				out = append(out, l)
			}
			if dir == "/" {
				break
			}
		}
	}
	return out
}

// dir is where below the mount point the process's own cgroup lies. Inside a
// container the path of /proc/self/cgroup may be the host's, of which only a
// part is mounted; then the mount point is the container's own cgroup.
func (m mount) dir(root, own string) string {
	rel, ok := strings.CutPrefix(own, strings.TrimSuffix(m.root, "/"))
	rel = path.Join("/", rel)
	if !ok {
		return "/"
	}
	if _, err := os.Stat(filepath.Join(root, m.point, rel)); err != nil {
		return "/"
	}
	return rel
}

// readMounts lists the cgroup mounts that can hold memory files, see proc(5).
func readMounts(file string) []mount {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var out []mount
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		m := mount{root: unescape(left[3]), point: unescape(left[4])}
		switch right[0] {
		case "cgroup2":
			m.v2 = true
		case "cgroup":
			if !slices.Contains(strings.Split(right[2], ","), "memory") {
				continue
			}
		default:
			continue
		}
		out = append(out, m)
	}
	return out
}

// unescape undoes the octal escapes of mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

// readMembership returns the process's cgroup in the v1 memory hierarchy and in
// the unified one; "" is none.
func readMembership(file string) (v1, v2 string) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", ""
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[0] == "0" && parts[1] == "":
			v2 = parts[2]
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			v1 = parts[2]
		}
	}
	return v1, v2
}

// readV2 reads the bound of one unified cgroup: memory.max, or memory.high when
// that is lower, from which on the kernel stalls whoever allocates.
func readV2(dir string) (Limit, bool) {
	limit, ok := readNumber(filepath.Join(dir, "memory.max"))
	if high, okHigh := readNumber(filepath.Join(dir, "memory.high")); okHigh && (!ok || high < limit) {
		limit, ok = high, true
	}
	used, okUsed := readNumber(filepath.Join(dir, "memory.current"))
	if !ok || !okUsed {
		return Limit{}, false
	}
	used -= fileCache(filepath.Join(dir, "memory.stat"), "inactive_file", "active_file")
	return Limit{Bytes: limit, UsedBytes: max(0, used)}, true
}

// readV1 is the same for a cgroup of the old hierarchy.
func readV1(dir string) (Limit, bool) {
	limit, ok := readNumber(filepath.Join(dir, "memory.limit_in_bytes"))
	used, okUsed := readNumber(filepath.Join(dir, "memory.usage_in_bytes"))
	if !ok || !okUsed || limit >= unlimited {
		return Limit{}, false
	}
	used -= fileCache(filepath.Join(dir, "memory.stat"), "total_inactive_file", "total_active_file")
	return Limit{Bytes: limit, UsedBytes: max(0, used)}, true
}

// readNumber reads a file that holds one number; "max" is no number.
func readNumber(file string) (int64, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}

// fileCache sums fields of memory.stat: pages of files, which the kernel gives
// up before it kills anybody. Shared memory is not among them.
func fileCache(file string, names ...string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	var sum int64
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || !slices.Contains(names, name) {
			continue
		}
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			sum += n
		}
	}
	return sum
}
