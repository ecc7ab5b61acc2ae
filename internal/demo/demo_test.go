package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lmcache-go/lmcache-go/connector"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The demo installs what the project is checked against.
func TestVersionsAreThoseOfTheReferenceEnvironment(t *testing.T) {
	pins, err := os.ReadFile("../../conformance/refenv-constraints.txt")
	require.NoError(t, err)
	require.Contains(t, string(pins), "\nvllm-router=="+routerVersion+"\n")
	require.Contains(t, string(pins), "\nnixl-cu12=="+nixlVersion+"\n")
}

// The engines get the deployment page's config, letter for letter.
func TestTransferConfigIsThePages(t *testing.T) {
	const page = `{"kv_connector":"MultiConnector","kv_role":"kv_producer","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_load_failure_policy":"fail"},{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_connector_extra_config":{"lmcache.mp.host":"tcp://localhost","lmcache.mp.port":6555}}]}}`
	require.Equal(t, page, (&topology{}).transferConfig("kv_producer", 6555))
	for _, s := range []shape{{lease: "3"}, {heartbeat: "1"}, {noLMCache: true}} {
		_, err := connector.ParseTransferConfig([]byte((&topology{shape: s}).transferConfig("kv_consumer", 6556)))
		require.NoError(t, err)
	}
}

func TestCommandLine(t *testing.T) {
	f := func(want int, says string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		got := Main(args, &out, &errs)
		require.Equal(t, want, got)
		require.Contains(t, out.String()+errs.String(), says)
	}
	f(exitUsage, "usage")
	f(exitOK, "usage", "--help")
	f(exitOK, "-keep", "pd", "--help")
	f(exitUsage, "choose prefill, decode, server or router", "pd", "--kill", "cat")
	f(exitUsage, "choose auto, real or stand-in", "pd", "--router", "none")
	f(exitUsage, "unexpected", "pd", "more")
	f(exitUsage, "at least 1", "pd", "--parallel", "0")
	f(exitUsage, "no Decode worker", "router", "--prefill", "http://localhost:1")
}

// pretend is a finder on a machine that has only what is said.
func pretend(t *testing.T, env map[string]string, run func(argv []string) (string, error)) (*finder, *bytes.Buffer) {
	t.Helper()
	t.Setenv("NIXL_LIB_DIR", env["NIXL_LIB_DIR"])
	t.Setenv("VIRTUAL_ENV", "")
	t.Setenv("PATH", env["PATH"])
	out := &bytes.Buffer{}
	return &finder{
		getenv: func(k string) string { return env[k] }, out: out, cache: t.TempDir(),
		run: func(_ context.Context, argv ...string) (string, error) { return run(argv) },
	}, out
}

// touch makes an executable file.
func touch(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700))
}

func TestPartsAreFoundInAnEnvironment(t *testing.T) {
	env := t.TempDir()
	lib := filepath.Join(env, "lib", "python3.11", "site-packages", ".nixl_cu12.mesonpy.libs", "libnixl_capi.so")
	touch(t, lib)
	touch(t, filepath.Join(env, "bin", "vllm-router"))
	f, _ := pretend(t, map[string]string{pythonEnv: filepath.Join(env, "bin", "python")}, func([]string) (string, error) { return routerVersion + "\n", nil })
	p, err := f.find(t.Context(), routerAuto)
	require.NoError(t, err)
	require.Equal(t, parts{filepath.Join(env, "bin", "vllm-router"), env, lib}, p)

	f, out := pretend(t, map[string]string{pythonEnv: filepath.Join(env, "bin", "python")}, func([]string) (string, error) { return "0.0.1\n", nil })
	p, err = f.find(t.Context(), routerAuto)
	require.NoError(t, err)
	require.Empty(t, p.router, "another version")
	require.Contains(t, out.String(), "no python3 on PATH")
	require.Contains(t, out.String(), "stand-in")
	_, err = f.find(t.Context(), routerReal)
	require.ErrorIs(t, err, errNoPython)
}

// What is missing is installed; what cannot be is named, with the way to get it.
func TestMissingParts(t *testing.T) {
	bin := t.TempDir()
	touch(t, filepath.Join(bin, "python3"))
	var ran []string
	f, out := pretend(t, map[string]string{"PATH": bin}, func(argv []string) (string, error) {
		ran = append(ran, strings.Join(argv, " "))
		if strings.Contains(argv[len(argv)-1], "nixl") {
			return "no network", errors.New("exit status 1")
		}
		return "", nil
	})
	_, err := f.find(t.Context(), routerAuto)
	if err == nil {
		t.Skip("this machine has NIXL where nixl.Find looks without being told")
	}
	require.ErrorContains(t, err, "NIXL is missing")
	require.ErrorContains(t, err, "pip install --no-deps nixl-cu12=="+nixlVersion)
	require.ErrorContains(t, err, "NIXL_LIB_DIR")
	require.Contains(t, out.String(), "no network")
	require.Len(t, ran, 2)
	require.NoDirExists(t, f.own(), "half an environment is removed")
}

func TestProcessesEndWithTheirChildren(t *testing.T) {
	dir := t.TempDir()
	p := &process{name: "tree", argv: []string{"/bin/sh", "-c", "trap '' TERM; sleep 100 & echo child $!; wait"}}
	require.NoError(t, p.start(dir))
	m, err := p.said(t.Context(), regexp.MustCompile(`child (\d+)`), 0)
	require.NoError(t, err)
	require.True(t, p.alive())
	p.kill()
	require.False(t, p.alive())
	var child int
	_, err = fmt.Sscan(m[1], &child)
	require.NoError(t, err)
	require.True(t, eventually(t.Context(), stopLimit, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		return err != nil || strings.Contains(string(stat), ") Z ") || errors.Is(syscall.Kill(child, 0), syscall.ESRCH)
	}), "its child is gone too")

	p = &process{name: "early", argv: []string{"/bin/sh", "-c", "echo the port is taken; exit 3"}}
	require.NoError(t, p.start(dir))
	_, err = p.said(t.Context(), regexp.MustCompile(`serves`), 0)
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "the port is taken")
	p.stop()
}

func TestClient(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprint(w, "# TYPE a counter\na{x=\"1\"} 2.5\nab{x=\"1\"} 7\n")
		case "/status":
			fmt.Fprint(w, `{"storage_manager":{"l1_manager":{"total_object_count":5}}}`)
		case "/cut":
			fmt.Fprint(w, "data: {\"id\":\"x\",\"choices\":[]}\n\n")
		case "/error":
			fmt.Fprint(w, "data: {\"error\":{\"message\":\"Internal server error\"}}\n\ndata: [DONE]\n\n")
		default:
			fmt.Fprint(w, "data: {\"id\":\"x\",\"choices\":[{\"delta\":{\"content\":\"ab\"}}]}\n\ndata: {\"id\":\"x\",\"choices\":[{\"text\":\"c\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
		}
	}))
	defer s.Close()
	c := newClient()
	defer c.close()
	require.InDelta(t, 2.5, c.metric(t.Context(), s.URL, "a"), 0)
	require.InDelta(t, -1, c.metric(t.Context(), s.URL, "b"), 0)
	require.Equal(t, 5, c.objects(t.Context(), s.URL))
	a, err := c.ask(t.Context(), s.URL, "/ok", "p", 1, true)
	require.NoError(t, err)
	require.Equal(t, []string{"x", "abc", "length"}, []string{a.id, a.text, a.reason})
	_, err = c.ask(t.Context(), s.URL, "/cut", "p", 1, true)
	require.ErrorContains(t, err, "the stream ends")
	_, err = c.ask(t.Context(), s.URL, "/error", "p", 1, true)
	require.ErrorContains(t, err, "Internal server error")
}

func TestPromptsDiffer(t *testing.T) {
	require.Len(t, prompt(1, 700), 700)
	require.NotEqual(t, prompt(1, 16), prompt(2, 16), "within the first block")
	require.Equal(t, loadPrompts(5), loadPrompts(5))
}
