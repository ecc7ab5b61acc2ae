package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/lmcache-go/lmcache-go/cuda"
)

// gpuToken is what an exporter tells: enough to open its memory and events.
type gpuToken struct {
	PID    int    `json:"pid"`
	UUID   string `json:"uuid"`
	Memory []byte `json:"memory"` // a cuda.MemHandle
	Event  []byte `json:"event"`  // a cuda.EventHandle
	// Namespaces of the exporter, as the links in /proc/self/ns read.
	Namespaces map[string]string `json:"namespaces"`
}

const (
	// exportedBytes is the memory that the exporter fills with exportedValue.
	exportedBytes = 2 << 20
	exportedValue = 0xC5
)

func (t gpuToken) String() string {
	b, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings, numbers and bytes
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

var errGPUToken = errors.New("is not what --export printed")

func parseGPUToken(s string) (t gpuToken, err error) {
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(s))
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	if err != nil || len(t.Memory) != 64 || len(t.Event) != 64 || t.UUID == "" {
		return t, fmt.Errorf("--open %.20s… %w", s, errGPUToken)
	}
	return t, nil
}

// exportGPU plays an engine: it exports memory and an event, prints the token,
// and keeps both until standard input ends.
func exportGPU(tools gpuTools, uuid string, w io.Writer) (err error) {
	drv, err := tools.load()
	if err != nil {
		return err
	}
	dev, err := pickGPU(drv, uuid)
	if err != nil {
		return err
	}
	ctx, err := drv.Retain(dev)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ctx.Release()) }()
	buf, err := ctx.Alloc(exportedBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buf.Free()) }()
	stream, err := ctx.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Destroy()) }()
	event, err := ctx.NewEvent(cuda.EventOptions{Interprocess: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, event.Destroy()) }()
	if err := errors.Join(stream.Fill(buf.Address, exportedValue, exportedBytes), event.Record(stream), stream.Wait()); err != nil {
		return err
	}
	memory, err := buf.Handle()
	if err != nil {
		return err
	}
	handle, err := event.Handle()
	if err != nil {
		return err
	}
	t := gpuToken{PID: os.Getpid(), UUID: dev.UUID, Memory: memory[:], Event: handle[:], Namespaces: namespaces()}
	fmt.Fprintln(w, t)
	_, err = io.Copy(io.Discard, tools.stdin)
	return err
}

// pickGPU is the GPU with a UUID, or the first.
func pickGPU(drv *cuda.Driver, uuid string) (*cuda.Device, error) {
	if uuid != "" {
		return drv.Device(uuid)
	}
	if devs := drv.Devices(); len(devs) > 0 {
		return devs[0], nil
	}
	return nil, cuda.ErrNoSuchDevice
}

// namespaces are those that CUDA IPC depends on.
func namespaces() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"pid", "ipc", "mnt"} {
		if link, err := os.Readlink("/proc/self/ns/" + name); err == nil {
			out[name] = link
		}
	}
	return out
}

// startExporter runs this program as an exporter.
func startExporter(ctx context.Context, uuid string) (t gpuToken, stop func(), err error) {
	exe, err := os.Executable()
	if err != nil {
		return t, nil, err
	}
	cmd := exec.CommandContext(ctx, exe, "doctor", "gpu", "--export", "--uuid", uuid)
	var said strings.Builder
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return t, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return t, nil, err
	}
	if err := cmd.Start(); err != nil {
		return t, nil, err
	}
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		t, err = parseGPUToken(line)
	}
	if err != nil {
		stop()
		return t, nil, fmt.Errorf("the process that plays the engine: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return t, stop, nil
}
