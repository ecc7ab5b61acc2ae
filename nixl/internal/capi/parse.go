package capi

import (
	"encoding/binary"
	"fmt"
)

// VersionError refuses a library whose C API is newer than this package.
type VersionError struct{ Major, Minor, Patch int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("its C API is version %d.%d.%d; this package knows NIXL 1.5.1, which has no version, and 0.1", e.Major, e.Minor, e.Patch)
}

// CUDAError is a refusal of the CUDA driver.
type CUDAError struct {
	Call   string
	Result int
}

func (e *CUDAError) Error() string { return fmt.Sprintf("%s: CUDA error %d", e.Call, e.Result) }

// SplitNotifs calls f for each message of a drain. The message aliases data.
func SplitNotifs(data []byte, f func(from, msg []byte)) {
	const head = 12
	for len(data) >= head {
		nameLen := int(binary.NativeEndian.Uint32(data))
		msgLen := int(binary.NativeEndian.Uint64(data[4:]))
		from := data[head : head+nameLen]
		msg := data[head+nameLen : head+nameLen+msgLen : head+nameLen+msgLen]
		f(from, msg)
		data = data[head+nameLen+msgLen:]
	}
}

// splitAnswers reads what nx_query wrote.
func splitAnswers(data []byte) []map[string]string {
	var out []map[string]string
	for len(data) > 0 {
		has := data[0] == 1
		data = data[1:]
		if !has {
			out = append(out, nil)
			continue
		}
		count := int(binary.NativeEndian.Uint32(data))
		data = data[4:]
		parts := make([]string, 0, 2*count)
		for range 2 * count {
			end := 0
			for data[end] != 0 {
				end++
			}
			parts = append(parts, string(data[:end]))
			data = data[end+1:]
		}
		out = append(out, toMap(parts))
	}
	return out
}

func toMap(parts []string) map[string]string {
	m := make(map[string]string, len(parts)/2)
	for i := 0; i+1 < len(parts); i += 2 {
		m[parts[i]] = parts[i+1]
	}
	return m
}
