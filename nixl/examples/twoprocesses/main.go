// Command twoprocesses moves memory between two processes of one host: this one
// writes to the other, reads from it, and each tells the other about it.
//
// It starts itself again as the other process, checks every byte, and ends with
// 1 when something is wrong.
package main

import (
	"bufio"
	"bytes"
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

const size = 8 << 20

func main() {
	role := owner
	if len(os.Args) == 2 && os.Args[1] == "peer" {
		role = peer
	}
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// hello is what the two exchange first, over any channel they have: here the
// pipes between parent and child.
type hello struct {
	Metadata []byte
	Addr     uintptr
}

// side is an agent with one registered buffer.
type side struct {
	agent *nixl.Agent
	ucx   *nixl.Backend
	buf   *nixl.HostBuffer
}

func newSide() (*side, error) {
	lib, err := nixl.Load(nixl.LoadOptions{})
	if err != nil {
		return nil, err
	}
	agent, err := nixl.NewAgent(lib, nixl.Config{}) // the name is new at each start
	if err != nil {
		return nil, err
	}
	ucx, err := agent.Backend(nixl.UCX{})
	if err != nil {
		return nil, err
	}
	buf, err := nixl.MapBuffer(size, nixl.MapOptions{Pages: nixl.PagesTransparent})
	if err != nil {
		return nil, err
	}
	if _, err := ucx.Register(buf.Region()); err != nil {
		return nil, err
	}
	return &side{agent, ucx, buf}, nil
}

// meet exchanges metadata with the other side.
func (s *side) meet(in io.Reader, out io.Writer) (*nixl.Remote, hello, error) {
	metadata, err := s.agent.Metadata()
	if err != nil {
		return nil, hello{}, err
	}
	if err := json.NewEncoder(out).Encode(hello{metadata, s.buf.Addr()}); err != nil {
		return nil, hello{}, err
	}
	var other hello
	line, err := bufio.NewReader(in).ReadBytes('\n')
	if err != nil {
		return nil, hello{}, err
	}
	if err := json.Unmarshal(line, &other); err != nil {
		return nil, hello{}, err
	}
	remote, err := s.agent.AddRemote(context.Background(), other.Metadata, "")
	return remote, other, err
}

func (s *side) close() error {
	return errors.Join(s.agent.Close(), s.buf.Close())
}

// owner is the process that starts: it writes, reads, and is told.
func owner() (err error) {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "peer")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close(), cmd.Wait()) }()

	s, err := newSide()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	remote, other, err := s.meet(out, in)
	if err != nil {
		return err
	}

	// One transfer object, posted twice would do too; here one each way.
	half := size / 2
	move := func(op nixl.Op, off int, msg string) error {
		local := nixl.Descs{Mem: nixl.DRAM, List: []nixl.Desc{s.buf.Desc(off, half)}}
		far := nixl.Descs{Mem: nixl.DRAM, List: []nixl.Desc{{Addr: other.Addr + uintptr(off), Len: uintptr(half)}}}
		t, err := remote.NewTransfer(op, s.ucx, local, far, nixl.XferOptions{Notif: []byte(msg)})
		if err != nil {
			return err
		}
		return errors.Join(t.Run(ctx), t.Close())
	}
	copy(s.buf.Bytes(), bytes.Repeat([]byte("from the owner. "), half/16))
	if err := move(nixl.Write, 0, "written"); err != nil {
		return err
	}
	if err := move(nixl.Read, half, "read"); err != nil {
		return err
	}
	if !bytes.Equal(s.buf.Bytes()[half:], bytes.Repeat([]byte("from the peer.. "), half/16)) {
		return errors.New("READ brought other bytes")
	}
	select {
	case n := <-s.agent.Notifications():
		if string(n.Msg) != "all is well" || n.From != remote.Name() {
			return fmt.Errorf("the peer says %q", n.Msg)
		}
	case <-ctx.Done():
		return errors.New("the peer says nothing")
	}
	fmt.Fprintln(os.Stdout, "wrote and read", half, "bytes each way; the peer agrees")
	return nil
}

// peer is the process that is written to and read from: it does nothing for
// that, but learns of it.
func peer() (err error) {
	s, err := newSide()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	half := size / 2
	copy(s.buf.Bytes()[half:], bytes.Repeat([]byte("from the peer.. "), half/16))
	remote, _, err := s.meet(os.Stdin, os.Stdout)
	if err != nil {
		return err
	}
	verdict := "all is well"
	for _, want := range []string{"written", "read"} {
		n := <-s.agent.Notifications()
		if string(n.Msg) != want {
			verdict = fmt.Sprintf("%q came instead of %q", n.Msg, want)
		}
	}
	// A notification of a transfer comes after its data.
	if !bytes.Equal(s.buf.Bytes()[:half], bytes.Repeat([]byte("from the owner. "), half/16)) {
		verdict = "WRITE brought other bytes"
	}
	if err := remote.Notify([]byte(verdict)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin) // until the owner is done
	return err
}
