package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// procState is a reading of /proc/PID.
type procState struct {
	CPUS    float64            `json:"cpu_s"`
	Threads int                `json:"threads"`
	MiB     map[string]float64 `json:"mib"`
}

// serverUse is what a run cost the server.
type serverUse struct {
	CPUS       float64   `json:"cpu_s"`
	CPUPct     float64   `json:"cpu_pct"`
	CPUUSPerOp float64   `json:"cpu_us_per_op"`
	Before     procState `json:"before"`
	After      procState `json:"after"`
}

// ticksPerSecond is USER_HZ, which Linux fixes at 100 on every architecture Go knows.
const ticksPerSecond = 100

// readProc reads a process's CPU time, thread count and resident memory.
func readProc(pid int) (procState, error) {
	s := procState{MiB: map[string]float64{}}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	end := bytes.LastIndexByte(stat, ')') // the name may hold anything
	f := strings.Fields(string(stat[end+1:]))
	if end < 0 || len(f) < 18 {
		return s, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	threads, err3 := strconv.Atoi(f[17])
	if err1 != nil || err2 != nil || err3 != nil {
		return s, fmt.Errorf("/proc/%d/stat holds no numbers where they belong", pid)
	}
	s.CPUS, s.Threads = float64(user+system)/ticksPerSecond, threads
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "VmRSS", "RssAnon", "RssFile", "RssShmem":
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			if err != nil {
				return s, fmt.Errorf("/proc/%d/status: %w", pid, err)
			}
			s.MiB[name] = round(kib/1024, 1)
		}
	}
	return s, nil
}

// use compares two readings over wall, divided by n operations.
func use(before, after procState, wall time.Duration, n int) *serverUse {
	u := &serverUse{Before: before, After: after, CPUS: round(after.CPUS-before.CPUS, 2)}
	u.CPUPct = round(100*u.CPUS/wall.Seconds(), 1)
	if n > 0 {
		u.CPUUSPerOp = round(u.CPUS/float64(n)*1e6, 2)
	}
	return u
}

// ownCPU is the CPU time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
