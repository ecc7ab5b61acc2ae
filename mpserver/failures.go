package mpserver

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
)

// maxFailures bounds the kinds of failures that are remembered; the one seen
// longest ago goes first.
const maxFailures = 64

// maxFailureBytes bounds a remembered message, which may quote a client.
const maxFailureBytes = 512

// failureKind is an operation and why it failed: a few words of ours each.
type failureKind struct{ op, reason string }

type failureNote struct {
	count   int64
	last    time.Time
	message string
}

// failureLog remembers the latest failure of each kind, for GET /status.
type failureLog struct {
	mu   sync.Mutex
	kind map[failureKind]*failureNote // guarded by mu
}

// note counts a failure.
func (f *failureLog) note(op, reason string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := failureKind{op, reason}
	e := f.kind[k]
	if e == nil {
		e = f.room(k)
	}
	e.count++
	e.last = now
}

// explain keeps what err says of failures of that kind, which are counted
// elsewhere.
func (f *failureLog) explain(op, reason string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := failureKind{op, reason}
	e := f.kind[k]
	if e == nil {
		e = f.room(k)
	}
	e.message = clipped(err.Error())
}

// room makes an entry, if need be in the place of the oldest. mu is held.
func (f *failureLog) room(k failureKind) *failureNote {
	if f.kind == nil {
		f.kind = map[failureKind]*failureNote{}
	}
	if len(f.kind) >= maxFailures {
		var oldest failureKind
		first := true
		for k, e := range f.kind {
			if first || e.last.Before(f.kind[oldest].last) {
				oldest, first = k, false
			}
		}
		delete(f.kind, oldest)
	}
	e := &failureNote{}
	f.kind[k] = e
	return e
}

func clipped(s string) string {
	if len(s) > maxFailureBytes {
		return s[:maxFailureBytes] + "…"
	}
	return s
}

// list returns the failures, the newest first.
func (f *failureLog) list(now time.Time) []httpapi.LastError {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]httpapi.LastError, 0, len(f.kind))
	for k, e := range f.kind {
		if e.count == 0 {
			continue
		}
		known := remedies[k.reason]
		l := httpapi.LastError{Op: k.op, Reason: k.reason, Count: e.count, AgeSeconds: httpapi.Float(max(0, now.Sub(e.last).Seconds())), Message: e.message, Remedy: known.remedy}
		if l.Message == "" {
			l.Message = known.meaning
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b httpapi.LastError) int {
		return cmp.Or(cmp.Compare(a.AgeSeconds, b.AgeSeconds), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// remedies says what a reason means and what to do about it.
var remedies = map[string]struct{ meaning, remedy string }{
	"arity":              {"a request had another number of parts than lmcache 0.5.6 sends", "use a client of lmcache 0.5.x"},
	"payload":            {"a part of a request could not be decoded", "use a client of lmcache 0.5.x; nothing else should speak to this port"},
	"unknown_operation":  {"an operation that this server does not have", "switch off the client's feature that asks for it"},
	"transfer_mode":      {"an operation of the transfer mode that is not served", "start the server with --supported-transfer-mode auto"},
	"stopping":           {"the server was stopping", "none: clients come back to the next server"},
	"queue_full":         {"a client sent more than it waits for", "raise --lane-depth or --workers"},
	"too_many_streams":   {"more workers subscribed to KV events than there is room for", "look for clients that subscribe under ever new instance ids"},
	"deadline":           {"a request waited longer than its operation may", "look for a busy machine; raise --workers"},
	"panic":              {"a handler failed; its stack is in the log", "report it with the stack"},
	"unknown_instance":   {"a transfer of a worker that is not registered here", "none: the worker registers again after its next heartbeat"},
	"other_model":        {"a transfer for another model than its worker registered", "give each engine its own instance id"},
	"instance_ill":       {"a lookup for a model whose worker could not be registered", "see the error of its registration"},
	"registration":       {"a worker could not be registered", "the message says what to change"},
	"chunk_size":         {"the chunk size does not fit an engine's blocks", "start the server with one of the --chunk-size that the message names"},
	"layout_conflict":    {"two workers of one model have different KV", "give one of the engines another model name, or its own server"},
	"no_gpu":             {"a worker's cache is on a GPU, and this server has no GPU driver", "give the server's container the GPU, or set lmcache.mp.mp_transfer_mode to engine_driven in the engine's kv_connector_extra_config"},
	"gpu_unknown":        {"a worker's cache is on a GPU that this server does not see", "let CUDA_VISIBLE_DEVICES and the container's devices of the server include it, or set lmcache.mp.mp_transfer_mode to engine_driven"},
	"gpu_pin":            {"the pool could not be registered with the GPU driver", "raise the memlock limit of the server (ulimit -l unlimited, LimitMEMLOCK=infinity, --ulimit memlock=-1), or lower --l1-size-gb"},
	"gpu_late":           {"the GPU driver did not answer in time", "look at dmesg and nvidia-smi for a GPU that hangs"},
	"gpu_memory_kind":    {"a kind of GPU memory that cannot be opened from another process", "see the message: leave out expandable_segments (PYTORCH_CUDA_ALLOC_CONF), sleep mode, or lmcache.mp.use_vmm_api"},
	"gpu_ipc":            {"the memory of a worker could not be opened by CUDA IPC", "let both containers share /dev/shm and the GPU, or set lmcache.mp.isolated_ipc to true in the engine"},
	"gpu_same_pid":       {"the worker and the server have the same pid in two pid namespaces", "run one of them with hostPID, or under an init so that its pid differs"},
	"gpu_driver":         {"a call of the GPU driver failed", "see the message, and try lmcache-go doctor gpu"},
	"gpu_memory":         {"the GPU had no memory left for the server's context", "lower gpu_memory_utilization of the engine by about 0.6 GiB of the GPU"},
	"range":              {"a transfer of a range that is not whole chunks", "make --chunk-size a multiple of the engine's block size"},
	"worker":             {"a transfer without a worker, or with one outside its world", "use a client of lmcache 0.5.x"},
	"key":                {"a lookup for an impossible world size or number of readers", "use a client of lmcache 0.5.x"},
	"token_range":        {"a token outside 0..4294967295", "look at what feeds the engine"},
	"no_space":           {"no room in L1 for a store: what is there is held, or eviction is off", "raise --l1-size-gb; with --eviction-policy noop nothing ever leaves"},
	"too_large":          {"a store larger than L1", "raise --l1-size-gb or lower --chunk-size"},
	"pool_growing":       {"a store waited too long for memory that is still being mapped", "none: it passes; a slow machine may want a smaller --l1-size-gb"},
	"reserve":            {"the store could not reserve memory", "see the log"},
	"not_held":           {"a retrieve of chunks that no lookup holds for it, or no longer", "raise --l1-read-ttl-seconds when engines queue longer than that"},
	"not_prepared":       {"a commit without a prepare", "use a client of lmcache 0.5.x"},
	"late_commit":        {"a commit of a worker that was dropped meanwhile; its bytes were not published", "raise --worker-reap-timeout-seconds if workers are silent that long"},
	"expired":            {"a commit after its reservation had expired", "raise --l1-write-ttl-seconds"},
	"pickle":             {"the tensors of a commit were not what the worker registered", "use a client of lmcache 0.5.x"},
	"object_form":        {"an object in a form that the engine's cannot be made from", "give engines with other layouts another model name"},
	"block_ids":          {"block ids outside the registered KV cache", "register again after the engine changes its cache"},
	"engine_memory_gone": {"the engine's memory went away during a copy", "look for a crashed worker"},
	"event":              {"the engine's event could not be used", "let both containers share /dev/shm, or set lmcache.mp.isolated_ipc to true in the engine; see the message"},
	"copy":               {"the device failed a copy", "see the log"},
}
