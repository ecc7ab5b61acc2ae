package nixl_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// command is what a test tells a peer in another process, one line of JSON.
type command struct {
	Cmd  string  `json:"cmd"`
	Blob []byte  `json:"blob,omitempty"`
	Seed int     `json:"seed"`
	Op   string  `json:"op,omitempty"`
	Peer string  `json:"peer,omitempty"`
	Msg  string  `json:"msg,omitempty"`
	Addr uintptr `json:"addr,omitempty"`
	Off  int     `json:"off"`
	Len  int     `json:"len,omitempty"`
}

// answer is what the peer says.
type answer struct {
	OK     bool    `json:"ok"`
	Err    string  `json:"err,omitempty"`
	Name   string  `json:"name,omitempty"`
	Addr   uintptr `json:"addr,omitempty"`
	Blob   []byte  `json:"blob,omitempty"`
	Notifs []struct {
		From string `json:"from"`
		Msg  string `json:"msg"`
	} `json:"notifs,omitempty"`
}

// peer is an agent in another process.
type peer struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	name string
	addr uintptr // of its buffer
	blob []byte  // raw metadata
}

// startGo starts a peer that runs this package; tls limits UCX's transports.
func startGo(t testing.TB, name string, size int, tls string) *peer {
	t.Helper()
	needLib(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), exe)
	cmd.Env = append(os.Environ(), envChild+"=peer", "NIXL_CHILD_ARGS="+strings.Join([]string{name, strconv.Itoa(size), tls}, ","))
	return start(t, cmd)
}

// startPython starts a peer that runs NIXL's Python binding.
func startPython(t testing.TB, name string, size int, tls string) *peer {
	t.Helper()
	needLib(t)
	python := os.Getenv(envPython)
	if python == "" {
		t.Skipf("set %s to the interpreter of an environment that holds nixl", envPython)
	}
	args := []string{"testdata/peer.py", name, strconv.Itoa(size)}
	if tls != "" {
		args = append(args, tls)
	}
	return start(t, exec.CommandContext(context.WithoutCancel(t.Context()), python, args...))
}

func start(t testing.TB, cmd *exec.Cmd) *peer {
	t.Helper()
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(p.stop)
	hello := p.do(command{Cmd: "hello"})
	p.name, p.addr, p.blob = hello.Name, hello.Addr, hello.Blob
	return p
}

// do asks the peer and fails the test when it does not succeed.
func (p *peer) do(c command) answer {
	p.t.Helper()
	a := p.ask(c)
	if !a.OK {
		p.t.Fatalf("peer: %s: %s", c.Cmd, a.Err)
	}
	return a
}

func (p *peer) ask(c command) answer {
	p.t.Helper()
	line, err := json.Marshal(c)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		p.t.Fatalf("peer: %s: %v", c.Cmd, err)
	}
	line, err = p.out.ReadBytes('\n')
	if err != nil {
		p.t.Fatalf("peer: %s: %v", c.Cmd, err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		p.t.Fatalf("peer: %s: %q: %v", c.Cmd, line, err)
	}
	return a
}

// kill ends the peer's process at once.
func (p *peer) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	_ = p.cmd.Wait()
}

func (p *peer) stop() {
	_ = p.in.Close()
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Wait()
	}
}

// desc is part of the peer's buffer.
func (p *peer) desc(off, n int) nixl.Desc {
	return nixl.Desc{Addr: p.addr + uintptr(off), Len: uintptr(n)}
}

// runChild is the other process.
func runChild(role string) int {
	if errTestLib != nil {
		fmt.Fprintln(os.Stderr, errTestLib)
		return 1
	}
	switch role {
	case "peer":
		args := strings.SplitN(os.Getenv("NIXL_CHILD_ARGS"), ",", 3)
		size, _ := strconv.Atoi(args[1])
		if err := servePeer(args[0], size, args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			return 1
		}
		return 0
	default:
		return 2
	}
}

// servePeer is the Go side of testdata/peer.py.
func servePeer(name string, size int, tls string) error {
	agent, err := nixl.NewAgent(testLib, nixl.Config{Name: name})
	if err != nil {
		return err
	}
	defer agent.Close()
	var config nixl.UCX
	if tls != "" {
		config.Engine = map[string]string{"TLS": tls}
	}
	ucx, err := agent.Backend(config)
	if err != nil {
		return err
	}
	buf, err := nixl.MapBuffer(size, nixl.MapOptions{})
	if err != nil {
		return err
	}
	defer buf.Close()
	reg, err := ucx.Register(buf.Region())
	if err != nil {
		return err
	}
	defer reg.Close()
	remotes := map[string]*nixl.Remote{}
	handle := func(c command) (answer, error) {
		switch c.Cmd {
		case "hello":
			blob, err := agent.MetadataRaw()
			return answer{Name: name, Addr: buf.Addr(), Blob: blob}, err
		case "load":
			r, err := agent.AddRemoteRaw(context.Background(), c.Blob, "")
			if err != nil {
				return answer{}, err
			}
			remotes[r.Name()] = r
			return answer{Name: r.Name()}, nil
		case "fill":
			fill(buf.Bytes(), c.Seed)
			return answer{}, nil
		case "check":
			if !holds(buf.Bytes(), c.Seed) {
				return answer{}, fmt.Errorf("the pattern of seed %d is not there", c.Seed)
			}
			return answer{}, nil
		case "xfer":
			op := map[string]nixl.Op{"READ": nixl.Read, "WRITE": nixl.Write}[c.Op]
			far := nixl.Desc{Addr: c.Addr, Len: uintptr(c.Len)}
			x, err := remotes[c.Peer].NewTransfer(op, ucx, dram(buf.Desc(c.Off, c.Len)), dram(far), nixl.XferOptions{Notif: []byte(c.Msg)})
			if err != nil {
				return answer{}, err
			}
			defer x.Close()
			return answer{}, x.Run(context.Background())
		case "notify":
			return answer{}, remotes[c.Peer].Notify([]byte(c.Msg))
		case "notifs":
			list, err := agent.PollNotifs()
			var a answer
			for _, n := range list {
				a.Notifs = append(a.Notifs, struct {
					From string `json:"from"`
					Msg  string `json:"msg"`
				}{n.From, string(n.Msg)})
			}
			return a, err
		default:
			return answer{}, fmt.Errorf("unknown command %q", c.Cmd)
		}
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c command
		if err := in.Decode(&c); err != nil {
			return nil // the test closed the pipe
		}
		a, err := handle(c)
		if a.OK = err == nil; err != nil {
			a.Err = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}
