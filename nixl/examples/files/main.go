// Command files writes host memory to a file through NIXL's POSIX plugin, reads
// it back, and checks every byte. The name of the file is its argument; without
// one it takes a temporary file.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

const size = 4 << 20

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	path := filepath.Join(os.TempDir(), "nixl-example")
	if len(args) == 1 {
		path = args[0]
	} else {
		defer os.Remove(path) //nolint:errcheck // a temporary file
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()

	lib, err := nixl.Load(nixl.LoadOptions{})
	if err != nil {
		return err
	}
	agent, err := nixl.NewAgent(lib, nixl.Config{})
	if err != nil {
		return err
	}
	posix, err := agent.Backend(nixl.POSIX{API: nixl.POSIXAIO})
	if err != nil {
		return err
	}
	buf, err := nixl.MapBuffer(size, nixl.MapOptions{})
	if err != nil {
		return err
	}
	// Closing the agent ends the registrations and transfers, in the right
	// order; then nothing holds the buffer.
	defer func() { err = errors.Join(err, agent.Close(), buf.Close()) }()
	if _, err := posix.Register(buf.Region()); err != nil {
		return err
	}
	onDisk, err := posix.Register(nixl.FileRegion(file, 0, size))
	if err != nil {
		return err
	}

	// For a storage plugin the agent itself is the peer, and the file its memory.
	want := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	copy(buf.Bytes(), want)
	move := func(op nixl.Op) error {
		memory := nixl.Descs{Mem: nixl.DRAM, List: []nixl.Desc{buf.Desc(0, size)}}
		far := nixl.Descs{Mem: nixl.File, List: []nixl.Desc{onDisk.Desc(0, 0, size)}}
		t, err := agent.Loopback().NewTransfer(op, posix, memory, far, nixl.XferOptions{})
		if err != nil {
			return err
		}
		return errors.Join(t.Run(ctx), t.Close())
	}
	if err := move(nixl.Write); err != nil {
		return err
	}
	clear(buf.Bytes())
	if err := move(nixl.Read); err != nil {
		return err
	}
	if !bytes.Equal(buf.Bytes(), want) {
		return errors.New("other bytes came back")
	}
	fmt.Fprintln(os.Stdout, "wrote and read back", size, "bytes")
	return nil
}
