package mpserver

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
)

// TransferMode says which transfer operations a server answers
// (`--supported-transfer-mode`).
type TransferMode string

const (
	// TransferLMCacheDriven serves REGISTER_KV_CACHE, STORE and RETRIEVE: the server copies.
	TransferLMCacheDriven TransferMode = "lmcache_driven"
	// TransferEngineDriven serves PREPARE and COMMIT: the engine copies, through shared memory or pickles.
	TransferEngineDriven TransferMode = "engine_driven"
	// TransferAuto serves both.
	TransferAuto TransferMode = "auto"
)

// RegisterFailurePolicy says what a worker hears whose registration cannot be
// served (`--on-register-failure`).
type RegisterFailurePolicy string

const (
	// RegisterRefuse makes the engine's start fail at once, with the reason in our log.
	RegisterRefuse RegisterFailurePolicy = "refuse"
	// RegisterDegrade lets the engine start without a cache: its lookups count 0.
	RegisterDegrade RegisterFailurePolicy = "degrade"
)

// EvictionPolicy names how objects leave a full L1 (`--eviction-policy`).
type EvictionPolicy string

const (
	// EvictLRU drops the least recently used objects.
	EvictLRU EvictionPolicy = "LRU"
	// EvictARC keeps objects that lookups found again apart from those that came once.
	EvictARC EvictionPolicy = "ARC"
	// EvictIsolated is LRU with a quota per salt (PUT /quota/{salt}): a salt at its
	// limit pushes out its own objects. A salt without a quota has no limit.
	EvictIsolated EvictionPolicy = "IsolatedLRU"
	// EvictNone ("noop") never evicts: a store into a full pool fails.
	EvictNone EvictionPolicy = "noop"
)

// Options is the whole configuration of a [Server]. The zero value of every
// field but L1.SizeBytes means the default in its comment.
type Options struct {
	// Host is the address the request socket binds to. Default "localhost".
	Host string
	// Port of the request socket; 0 asks the kernel for a free one ([Server.Addr] tells it).
	Port int
	// HTTPHost is the address of the HTTP surface. Default "127.0.0.1".
	HTTPHost string
	// HTTPPort of the HTTP surface; 0 asks the kernel, -1 serves no HTTP at all.
	HTTPPort int
	// InstanceID is this server's identity in telemetry. Default: a random UUID.
	InstanceID string

	// ChunkSize is the number of tokens in a chunk. Default 256. It must be a
	// multiple of the block size of every engine.
	ChunkSize int
	// HashAlgorithm of chunk hashes: "blake3" (default) or "sha256_cbor".
	HashAlgorithm string
	// PythonHashSeed is the engine's PYTHONHASHSEED where it is set; it matters
	// to sha256_cbor only.
	PythonHashSeed string
	// SeparateObjectGroups gives each sliding-window size of a hybrid model its
	// own objects (`--separate-object-groups`).
	SeparateObjectGroups bool
	// NullBlockID is the engine's block id for "no KV here". Default 0.
	NullBlockID int
	// TransferMode: default [TransferAuto].
	TransferMode TransferMode
	// OnRegisterFailure: default [RegisterRefuse].
	OnRegisterFailure RegisterFailurePolicy

	// Workers is the number of requests that may run off the readers of connections at
	// the same time. Default: twice the number of CPUs, at least 4.
	Workers int
	// LaneDepth is how many requests of one client may wait; one more is
	// answered as that operation's failure. Default 1024.
	LaneDepth int
	// MaxMessageBytes bounds one message; a larger one ends its sender's
	// connection. Default and limit: 4 GiB, what a msgpack document can hold,
	// and 64 MiB for what goes with it.
	MaxMessageBytes int64

	// WorkerReapTimeout is how long a worker that has pinged may be silent
	// before it is dropped. Default 120 s; at least 30 s; negative switches reaping off.
	WorkerReapTimeout time.Duration
	// WorkerRegistrationGrace is the same for a worker that has not pinged yet. Default 3600 s.
	WorkerRegistrationGrace time.Duration
	// ConnectionGrace is how long a client whose connection has gone keeps
	// what it holds. Default 5 s.
	ConnectionGrace time.Duration
	// SessionTTL is how long an idle request session is kept. Default 600 s.
	SessionTTL time.Duration
	// PendingLookupTimeout bounds how long a lookup waits for objects whose
	// copy is in flight. Default 1 s; then they count as a miss.
	PendingLookupTimeout time.Duration
	// SessionGrace is how long the read leases of an ended session stay valid
	// for a retrieve that END_SESSION overtook. Default 30 s, at most L1.ReadTTL.
	SessionGrace time.Duration
	// DrainTimeout bounds the orderly stop. Default 5 s.
	DrainTimeout time.Duration
	// PromptCacheBytes bounds the cache of prompt hashes. Default 64 MiB.
	PromptCacheBytes int64

	// L1 is the store of chunks in host memory.
	L1 L1Options

	// LookupHashLog is a log of lookups. Off by default.
	LookupHashLog HashLogOptions
	// KVEventLogSize is how many records of stored and removed chunks are kept
	// for those that subscribe to them, from the first subscription on; the tokens
	// of a chunk take up to 5 bytes each.
	// Default [DefaultKVEventLogSize]; a negative size switches the stream off.
	KVEventLogSize int
	// MetricsSampleRate is the share of objects, above 0 and at most 1, that the
	// lifetime histograms of GET /metrics follow. Default 0.01.
	MetricsSampleRate float64
	// DisableMetrics leaves the server's own series out of GET /metrics.
	DisableMetrics bool
	// Logger: default discards.
	Logger *slog.Logger
	// LogLevel is the level of Logger, which GET /loglevel tells and sets. May be nil.
	LogLevel *slog.LevelVar
	// Shown is what GET /config tells of settings that have no effect here, by
	// their place in its tree: "mp.max_workers".
	Shown map[string]any
	// Version is what GET /version tells. Default "unknown".
	Version string
	// Commit is what GET /commit_id tells. Default "unknown".
	Commit string

	// Seams for tests: the device of host memory, which the server closes; the GPU
	// driver and the list of GPUs; how long copies and registrations may take, instead of their
	// operation's deadline; and how long an ended worker's copies may hold up an
	// answer. Default 10 s.
	device        device.Device
	gpuDriver     func() (gpuDriver, error)
	gpuInventory  func() ([]GPUInfo, error)
	copyLimit     time.Duration
	registerLimit time.Duration
	retireLimit   time.Duration
	// The store's clock, and what makes its background turn go round.
	l1Now   func() time.Time
	l1Ticks <-chan time.Time
}

// L1Options configures the L1 store.
type L1Options struct {
	// SizeBytes of the pool. Required.
	SizeBytes int64
	// AlignBytes is the step of object addresses and sizes, a power of two. Default 4096.
	AlignBytes int
	// ShmName puts the pool in the POSIX shared memory segment of that name
	// (prefix "lmcache_l1_pool_" is added when missing); "" keeps it private,
	// and engine-driven clients then send pickles.
	ShmName string
	// WriteTTL is how long a client may fill a reservation. Default 600 s.
	WriteTTL time.Duration
	// ReadTTL is how long a lookup's hit is held for its retrieve. Default 300 s.
	ReadTTL time.Duration
	// EvictionPolicy: default [EvictLRU].
	EvictionPolicy EvictionPolicy
	// TriggerWatermark is the used fraction from which the background loop
	// evicts. Default 0.8.
	TriggerWatermark float64
	// EvictionRatio is the fraction of objects one turn of the loop evicts. Default 0.2.
	EvictionRatio float64
}

// ShmPrefix is what the name of every segment starts with (lmcache 0.5.6,
// v1/multiprocess/config: operators look for it in /dev/shm).
const ShmPrefix = "lmcache_l1_pool_"

// SegmentName is the name below /dev/shm for an [L1Options].ShmName, "" for "".
func SegmentName(shmName string) string {
	name := strings.TrimLeft(shmName, "/")
	if name == "" || strings.HasPrefix(name, ShmPrefix) {
		return name
	}
	return ShmPrefix + name
}

const (
	// maxBinBytes is what a msgpack document can hold.
	maxBinBytes = 1<<32 - 1
	// maxMessageBytes leaves room for the key beside it.
	maxMessageBytes = 4<<30 + 64<<20
)

func (o *Options) setDefaults() {
	def(&o.Host, "localhost")
	def(&o.HTTPHost, "127.0.0.1")
	def(&o.ChunkSize, 256)
	def(&o.HashAlgorithm, hash.Blake3)
	def(&o.TransferMode, TransferAuto)
	def(&o.OnRegisterFailure, RegisterRefuse)
	def(&o.LaneDepth, 1024)
	def(&o.MaxMessageBytes, maxMessageBytes)
	def(&o.WorkerReapTimeout, 120*time.Second)
	def(&o.WorkerRegistrationGrace, time.Hour)
	def(&o.ConnectionGrace, 5*time.Second)
	def(&o.SessionTTL, 600*time.Second)
	def(&o.PendingLookupTimeout, time.Second)
	def(&o.SessionGrace, 30*time.Second)
	def(&o.KVEventLogSize, DefaultKVEventLogSize)
	if o.gpuDriver == nil {
		o.gpuDriver = loadGPUDriver
	}
	if o.gpuInventory == nil {
		o.gpuInventory = ListGPUs
	}
	def(&o.DrainTimeout, 5*time.Second)
	def(&o.retireLimit, 10*time.Second)
	def(&o.PromptCacheBytes, 64<<20)
	def(&o.Version, "unknown")
	def(&o.MetricsSampleRate, 0.01)
	def(&o.LookupHashLog.RotateAfter, 6*time.Hour)
	def(&o.LookupHashLog.RotateBytes, 100<<20)
	def(&o.LookupHashLog.MaxFiles, 100)
	def(&o.L1.AlignBytes, 4096)
	def(&o.L1.WriteTTL, 600*time.Second)
	def(&o.L1.ReadTTL, 300*time.Second)
	def(&o.L1.EvictionPolicy, EvictLRU)
	def(&o.L1.TriggerWatermark, 0.8)
	def(&o.L1.EvictionRatio, 0.2)
	if o.SessionGrace > o.L1.ReadTTL {
		o.SessionGrace = o.L1.ReadTTL
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o Options) workers() int {
	if o.Workers > 0 {
		return o.Workers
	}
	return max(4, 2*runtime.GOMAXPROCS(0))
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Check reports everything that is wrong with o, joined into one error, each
// line with what to change. It looks at values only, not at the machine.
func (o Options) Check() error {
	o.setDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	port := func(flag string, p, low int) {
		if p < low || p > 65535 {
			bad("%s must be between 0 and 65535, got %d", flag, p)
		}
	}
	port("--port", o.Port, 0)
	port("--http-port", o.HTTPPort, -1)
	if o.ChunkSize < 1 {
		bad("--chunk-size must be at least 1 token, got %d", o.ChunkSize)
	}
	if !hash.Known(o.HashAlgorithm) {
		bad("--hash-algorithm %q is not served: use %s or %s", o.HashAlgorithm, hash.Blake3, hash.SHA256CBOR)
	}
	switch o.TransferMode {
	case TransferAuto, TransferEngineDriven, TransferLMCacheDriven:
	default:
		bad("--supported-transfer-mode %q: use lmcache_driven, engine_driven or auto", o.TransferMode)
	}
	switch o.OnRegisterFailure {
	case RegisterRefuse, RegisterDegrade:
	default:
		bad("--on-register-failure %q: use refuse or degrade", o.OnRegisterFailure)
	}
	switch o.L1.EvictionPolicy {
	case EvictLRU, EvictARC, EvictIsolated, EvictNone:
	default:
		bad("--eviction-policy %q: use LRU, ARC, IsolatedLRU or noop", o.L1.EvictionPolicy)
	}
	if t := o.WorkerReapTimeout; t > 0 && t < 30*time.Second {
		bad("--worker-reap-timeout-seconds must be 0 (off) or at least 30, or a live worker could be dropped between two heartbeats; got %g", t.Seconds())
	}
	if o.WorkerReapTimeout > 0 && o.WorkerRegistrationGrace < o.WorkerReapTimeout {
		bad("--worker-registration-grace-seconds must be at least the reap timeout (%g), got %g", o.WorkerReapTimeout.Seconds(), o.WorkerRegistrationGrace.Seconds())
	}
	a := o.L1.AlignBytes
	if a < 1 || a&(a-1) != 0 {
		bad("--l1-align-bytes must be a power of two, got %d", a)
	} else if o.L1.SizeBytes < int64(a) {
		bad("--l1-size-gb gives %d bytes, less than one step of --l1-align-bytes (%d)", o.L1.SizeBytes, a)
	}
	ratio := func(flag string, v float64) {
		if math.IsNaN(v) || v < 0 || v > 1 {
			bad("%s must be between 0 and 1, got %g", flag, v)
		}
	}
	ratio("--eviction-trigger-watermark", o.L1.TriggerWatermark)
	ratio("--eviction-ratio", o.L1.EvictionRatio)
	ratio("--metrics-sample-rate", o.MetricsSampleRate)
	positive := func(flag string, d time.Duration) {
		if d < 0 {
			bad("%s must be positive, got %g", flag, d.Seconds())
		}
	}
	positive("--session-ttl-seconds", o.SessionTTL)
	positive("--l1-read-ttl-seconds", o.L1.ReadTTL)
	positive("--l1-write-ttl-seconds", o.L1.WriteTTL)
	positive("--lookup-hash-log-rotation-interval", o.LookupHashLog.RotateAfter)
	if o.LookupHashLog.RotateBytes < 0 || o.LookupHashLog.MaxFiles < 0 {
		bad("--lookup-hash-log-rotation-max-size and --lookup-hash-log-max-files must be positive")
	}
	if o.Workers < 0 || o.LaneDepth < 0 {
		bad("workers and lane depth must not be negative")
	}
	if o.MaxMessageBytes < 0 || o.MaxMessageBytes > maxMessageBytes {
		bad("the largest message must be between 1 and %d bytes, got %d", int64(maxMessageBytes), o.MaxMessageBytes)
	}
	return errors.Join(errs...)
}
