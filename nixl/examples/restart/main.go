// Command restart shows what a program does when its peer dies and starts again
// under the same name: the transfer fails with an exact error, the old Remote is
// gone, and the metadata of the new start makes another.
//
// It starts itself again as the peer, twice, and ends with 1 when something is
// wrong.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

const size = 1 << 20

func main() {
	role := owner
	if len(os.Args) == 3 && os.Args[1] == "peer" {
		role = peer
	}
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type hello struct {
	Metadata []byte
	Addr     uintptr
}

// peer owns memory and does nothing until its standard input ends.
func peer() error {
	// A fixed name, which is what one should not do: see nixl.Config.Name.
	agent, _, buf, err := open(os.Args[2])
	if err != nil {
		return err
	}
	metadata, err := agent.Metadata()
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(hello{metadata, buf.Addr()}); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return errors.Join(agent.Close(), buf.Close())
}

func open(name string) (*nixl.Agent, *nixl.Backend, *nixl.HostBuffer, error) {
	lib, err := nixl.Load(nixl.LoadOptions{})
	if err != nil {
		return nil, nil, nil, err
	}
	agent, err := nixl.NewAgent(lib, nixl.Config{Name: name})
	if err != nil {
		return nil, nil, nil, err
	}
	// Over TCP, so that the death of the peer is felt: through shared memory
	// (cma) the kernel only says that the process is not there.
	ucx, err := agent.Backend(nixl.UCX{Engine: map[string]string{"TLS": "tcp"}})
	if err != nil {
		return nil, nil, nil, err
	}
	buf, err := nixl.MapBuffer(size, nixl.MapOptions{})
	if err != nil {
		return nil, nil, nil, err
	}
	_, err = ucx.Register(buf.Region())
	return agent, ucx, buf, err
}

// start starts the peer's process and reads what it says.
func start(ctx context.Context, name string) (cmd *exec.Cmd, h hello, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, h, err
	}
	cmd = exec.CommandContext(ctx, exe, "peer", name)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, h, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, h, err
	}
	if err := cmd.Start(); err != nil {
		return nil, h, err
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return nil, h, fmt.Errorf("the peer did not start: %w", err)
	}
	return cmd, h, json.Unmarshal(line, &h)
}

func owner() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	agent, ucx, buf, err := open("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.Close(), buf.Close()) }()

	write := func(r *nixl.Remote, h hello) error {
		local := nixl.Descs{Mem: nixl.DRAM, List: []nixl.Desc{buf.Desc(0, size)}}
		far := nixl.Descs{Mem: nixl.DRAM, List: []nixl.Desc{{Addr: h.Addr, Len: size}}}
		t, err := r.NewTransfer(nixl.Write, ucx, local, far, nixl.XferOptions{})
		if err != nil {
			return err
		}
		return errors.Join(t.Run(ctx), t.Close())
	}

	const name = "nixl-example-peer"
	first, h, err := start(ctx, name)
	if err != nil {
		return err
	}
	r, err := agent.AddRemote(ctx, h.Metadata, name)
	if err != nil {
		return err
	}
	if err := write(r, h); err != nil {
		return err
	}

	if err := first.Process.Kill(); err != nil {
		return err
	}
	_ = first.Wait() // killed
	if err := write(r, h); !errors.Is(err, nixl.ErrRemoteDisconnected) && !errors.Is(err, nixl.ErrRemoteGone) {
		return fmt.Errorf("writing to a dead peer: %w", err)
	}
	<-r.Lost() // closed: whoever watches the peer knows too
	fmt.Fprintln(os.Stdout, "the peer is gone:", errors.Is(r.Err(), nixl.ErrRemoteDisconnected))

	second, h2, err := start(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = second.Process.Kill(); _ = second.Wait() }()
	// Ends what is left of the former life before it loads the new one.
	r2, err := agent.AddRemote(ctx, h2.Metadata, name)
	if err != nil {
		return err
	}
	if err := write(r2, h2); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "its next start is reached")
	return nil
}
