package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/lmcache-go/lmcache-go/mpserver"
)

// plan is a configuration held against the machine: what would be started, and
// everything that stands in the way.
type plan struct {
	settings *settings
	options  mpserver.Options
	build    build
	room     room
	gpus     []mpserver.GPUInfo
	gpuErr   error // why there are none
	problems error
}

// examine completes the settings with what only this machine can tell and
// collects every problem, not the first. before is what went wrong earlier.
func examine(s *settings, before error, h machine) plan {
	if s.get("instance-id").text == "" {
		s.derive("instance-id", value{text: newUUID()}, "a random UUID")
	}
	p := plan{settings: s, build: thisBuild()}
	var sizing error
	p.room, sizing = s.size(h)
	p.problems = s.problems(before, sizing)
	p.options = s.options()
	p.options.Version, p.options.Commit = p.build.version, p.build.commit
	// The default says nothing about a port that cannot be read.
	if s.get("port").origin == unread {
		p.options.Port = 0
	}
	if s.get("http-port").origin == unread {
		p.options.HTTPPort = 0
	}
	ports := h.checkPorts(p.options.Host, p.options.Port, p.options.HTTPHost, p.options.HTTPPort)
	p.problems = errors.Join(p.problems, errors.Join(without(ports, flatten(p.problems))...))
	p.problems = errors.Join(p.problems, checkHashLog(p.options.LookupHashLog.Dir))
	p.gpus, p.gpuErr = h.gpus()
	return p
}

// checkHashLog says why the start could not write there, and leaves nothing behind.
func checkHashLog(dir string) error {
	if dir == "" {
		return nil
	}
	at, err := filepath.Abs(dir)
	for err == nil { // the start makes what is missing
		if _, err = os.Stat(at); !errors.Is(err, os.ErrNotExist) || at == filepath.Dir(at) {
			break
		}
		at, err = filepath.Dir(at), nil
	}
	if err == nil {
		var made string
		if made, err = os.MkdirTemp(at, ".lmcache-go-check-"); err == nil {
			err = os.Remove(made)
		}
	}
	if err != nil {
		return fmt.Errorf("--lookup-hash-log-dir %s cannot be written to (%w): give a folder of this user's, or leave it out", dir, err)
	}
	return nil
}

// newUUID is a random UUID, version 4 of RFC 9562, as the reference mints.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// printCheck is `server --check`: the effective configuration, what the machine
// offers, what vLLM has to be told, and all problems.
func printCheck(c console, p plan) int {
	w := c.stdout
	fmt.Fprintf(w, "lmcache-go %s (commit %s)\n\nconfiguration:\n", p.build.version, p.build.commit)
	used, idle := p.settings.effective()
	printSettings(w, used)
	if len(idle) > 0 {
		fmt.Fprintf(w, "\naccepted, without effect:\n")
		printSettings(w, idle)
	}
	fmt.Fprintf(w, "\nmachine:\n")
	for _, line := range p.room.describe(p.options.L1.SizeBytes) {
		fmt.Fprintf(w, "  %s\n", line)
	}
	for _, line := range p.describeGPUs() {
		fmt.Fprintf(w, "  %s\n", line)
	}
	fmt.Fprintln(w)
	switch {
	case p.settings.get("port").origin == unread:
		fmt.Fprintf(w, "Without a --port there is no connector JSON.\n")
	case p.options.Port == 0:
		fmt.Fprintf(w, "The port is chosen at start; the server prints the connector JSON then.\n")
	default:
		printConnector(w, p.options.Host, p.options.Port, p.options, len(p.gpus) > 0)
	}
	problems := flatten(p.problems)
	if len(problems) == 0 {
		fmt.Fprintf(w, "\nThe server can start.\n")
		return exitOK
	}
	fmt.Fprintf(w, "\nThe server cannot start (%d):\n", len(problems))
	for _, e := range problems {
		fmt.Fprintf(w, "  %v\n", e)
	}
	if isUsage(p.problems) {
		return exitUsage
	}
	return exitInvalid
}

// describeGPUs is a line for each GPU, or why there is none.
func (p plan) describeGPUs() []string {
	if len(p.gpus) == 0 {
		why := "`lmcache-go doctor gpu` says why"
		if errors.Is(p.gpuErr, errGPUsHidden) || errors.Is(p.gpuErr, errGPUWait) {
			why = p.gpuErr.Error()
		}
		return []string{"no NVIDIA GPU (" + why + "): engines with one copy themselves"}
	}
	lines := make([]string, 0, len(p.gpus))
	for _, g := range p.gpus {
		line := fmt.Sprintf("GPU %s: %s, ", g.UUID, g.Name)
		if g.UsedBytes >= 0 {
			line += sizeText(g.UsedBytes) + " used of "
		}
		line += sizeText(g.MemoryBytes)
		if g.PCIeGen > 0 {
			line += fmt.Sprintf(", PCIe %d x%d", g.PCIeGen, g.PCIeWidth)
		}
		if g.NUMANode >= 0 {
			line += fmt.Sprintf(", NUMA node %d", g.NUMANode)
		}
		lines = append(lines, line)
	}
	return lines
}

func printSettings(w io.Writer, list []setting) {
	name, val := 0, 0
	for _, s := range list {
		name, val = max(name, len(s.name)), max(val, min(len(s.value), 40))
	}
	for _, s := range list {
		fmt.Fprintf(w, "  %-*s  %-*s  %s\n", name, s.name, val, s.value, s.origin)
	}
}

// describe says what the machine leaves, and how the pool compares.
func (r room) describe(pool int64) []string {
	if r.memory.Name == "" {
		return []string{"memory cannot be told"}
	}
	lines := []string{fmt.Sprintf("%s: %s left of %s; the pool takes %s", r.memory.Name, sizeText(r.memoryLeft), sizeText(r.memory.Bytes), sizeText(pool))}
	if r.shared {
		lines = append(lines, fmt.Sprintf("%s: %s free of %s", shmFolder, sizeText(r.shmFree), sizeText(r.shmSize)))
	}
	if r.stale > 0 {
		lines = append(lines, fmt.Sprintf("an old pool of %s lies in %s; the start removes it", sizeText(r.stale), shmFolder))
	}
	if len(r.users) > 0 {
		var who []string
		for _, u := range r.users {
			who = append(who, u.String())
		}
		lines = append(lines, "an old pool is still mapped by "+strings.Join(who, ", ")+"; its memory comes back when they let go")
	}
	return lines
}
