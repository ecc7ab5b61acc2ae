package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/bytesize"
)

// noDriver is a machine without libcuda.
func noDriver() gpuTools {
	return gpuTools{
		load: func() (*cuda.Driver, error) { return nil, fmt.Errorf("%w: not here", cuda.ErrNoDriver) },
		exporter: func(context.Context, string) (gpuToken, func(), error) {
			return gpuToken{}, nil, errGPUToken
		},
		stdin: strings.NewReader(""),
	}
}

// gpuDoctorOn runs `doctor gpu` on a machine of the tests.
func gpuDoctorOn(tools gpuTools, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = doctorGPU(args, console{stdout: &out, stderr: &errs, lookupEnv: noEnv, host: fakeMachine(bytesize.GiB, bytesize.GiB)}, tools)
	return code, out.String(), errs.String()
}

// Without a driver the doctor says so, and what else it can see.
func TestDoctorGPUWithoutADriver(t *testing.T) {
	code, out, errs := gpuDoctorOn(noDriver())
	require.Equal(t, exitInvalid, code)
	require.Empty(t, errs)
	require.Regexp(t, `(?m)^fail +driver +cuda: no driver: not here`, out)
	require.Contains(t, out, "engine_driven")
	require.Regexp(t, `(?m)^ok +process +pid \d+`, out)

	code, out, _ = gpuDoctorOn(noDriver(), "--json")
	require.Equal(t, exitInvalid, code)
	var r gpuReport
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, gpuFail, r.Checks[0].State)
	require.True(t, r.failed())

	code, _, errs = gpuDoctorOn(noDriver(), "--export")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "no driver")
}

func TestDoctorGPUUsage(t *testing.T) {
	code, out, _ := gpuDoctorOn(noDriver(), "--help")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "usage: lmcache-go doctor gpu")
	for _, args := range [][]string{{"--open", "garbage"}, {"--open", "e30"}, {"dance"}, {"--no-such-flag"}} {
		code, _, errs := gpuDoctorOn(noDriver(), args...)
		require.Equal(t, exitUsage, code, args)
		require.NotEmpty(t, errs, args)
	}
}

// A token survives the way through two terminals.
func TestGPUToken(t *testing.T) {
	want := gpuToken{PID: 7, UUID: "d5a55c39-9e1d-4f00-8000-000000000000", Memory: bytes.Repeat([]byte{1}, 64), Event: bytes.Repeat([]byte{2}, 64), Namespaces: namespaces()}
	got, err := parseGPUToken(" " + want.String() + "\n")
	require.NoError(t, err)
	require.Equal(t, want, got)
	want.Memory = want.Memory[:63]
	_, err = parseGPUToken(want.String())
	require.ErrorIs(t, err, errGPUToken)
}

// Two processes of one number in two namespaces cannot share memory.
func TestDoctorGPUSamePID(t *testing.T) {
	r := &gpuReport{}
	d := gpuDoctor{r: r}
	d.process(nil)
	require.NotEqual(t, gpuFail, r.Checks[0].State)
	d.process(&gpuToken{PID: 1 << 22, Namespaces: namespaces()})
	require.Equal(t, gpuOK, r.Checks[1].State)
	d.process(&gpuToken{PID: os.Getpid(), Namespaces: map[string]string{"pid": "pid:[1]"}})
	require.Equal(t, gpuFail, r.Checks[2].State)
	require.Contains(t, r.Checks[2].Remedy, "hostPID")
}
