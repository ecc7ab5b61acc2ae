package wire

import (
	"bytes"
	"fmt"
	"math"
	"unicode/utf8"
)

// Key is the cache key that lookups, stores and retrieves carry
// (IPCCacheServerKey of lmcache 0.5.6, v1/multiprocess/custom_types.py).
type Key struct {
	// Model is the name of the model, unchecked.
	Model string
	// WorldSize is the number of KV shards of a chunk.
	WorldSize int
	// WorkerID is the shard that the key means, when HasWorker; without it, a
	// scheduler's key, all shards are meant.
	WorkerID  int
	HasWorker bool
	// Tokens are the msgpack integers of the token list, without the array's
	// head: a view into the frame. TokenCount is how many there are.
	Tokens     []byte
	TokenCount int
	// Start and End are the range of tokens that the operation means.
	Start, End int
	// RequestID names the session. It is no part of the key's identity.
	RequestID string
	// Salt separates tenants; see [CheckSalt].
	Salt string
	// Configs is the map of per-request settings as msgpack, a view into the
	// frame, or nil. The server does not read it.
	Configs []byte
	// NumKVReaders is the number of read holds that a lookup takes on each
	// object, 0 from clients that know nothing of it.
	NumKVReaders int
}

// TokenScanner consumes the count msgpack integers at the front of body, which
// may hold more, and returns the bytes that they take. It fails when count
// integers are not there. [DecodeKey] calls it with the token list, so that a
// caller can hash while it scans.
type TokenScanner func(body []byte, count int) (consumed int, err error)

// SkipTokens is the [TokenScanner] that only checks.
func SkipTokens(body []byte, count int) (int, error) {
	i := 0
	for n := range count {
		if i >= len(body) {
			return 0, fmt.Errorf("%w after %d of %d tokens", ErrTruncated, n, count)
		}
		c := classes[body[i]]
		if c.kind != kindInt {
			return 0, fmt.Errorf("token %d: %w: got %s, want an integer", n, ErrType, leadName(body[i]))
		}
		i += 1 + int(c.extra)
	}
	if i > len(body) {
		return 0, fmt.Errorf("%w inside the last of %d tokens", ErrTruncated, count)
	}
	return i, nil
}

// The keys of a [Key] on the wire, in the order that the client sends them.
const (
	keyModel = iota
	keyWorldSize
	keyWorker
	keyTokens
	keyStart
	keyEnd
	keyRequestID
	keySalt
	keyConfigs
	keyReaders
	numKeyFields
)

var keyNames = [numKeyFields]string{
	"model_name", "world_size", "worker_id", "token_ids", "start", "end",
	"request_id", "cache_salt", "request_configs", "num_kv_readers",
}

// keyRequired are the fields without a default.
const keyRequired fieldSet = 1<<keySalt - 1

// DecodeKey reads a key into k, whose earlier content is lost, but whose
// strings are kept where they are equal: decoding into the same Key again and
// again allocates for what changes only. scan reads the token list, nil stands
// for [SkipTokens]; where a client repeats token_ids it is called for each and
// the last one counts. After an error k holds nothing to rely on.
func DecodeKey(frame []byte, k *Key, scan TokenScanner) error {
	r := reader{b: frame}
	n := r.fields()
	if r.err != nil {
		return fmt.Errorf("key: %w", r.err)
	}
	// Defaults.
	k.Configs, k.NumKVReaders = nil, 0
	var seen fieldSet
	for range n {
		name := r.key()
		if r.err != nil {
			return fmt.Errorf("key: %w", r.err)
		}
		r.keyField(name, k, scan, &seen)
		if r.err != nil {
			return inField("key", name, r.err)
		}
	}
	if seen&(1<<keySalt) == 0 {
		k.Salt = ""
	}
	if err := seen.missing("key", keyNames[:], keyRequired); err != nil {
		return err
	}
	if err := r.done(); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	return CheckSalt(k.Salt)
}

// keyField consumes the value of one key.
func (r *reader) keyField(name []byte, k *Key, scan TokenScanner, seen *fieldSet) {
	switch string(name) {
	case keyNames[keyModel]:
		seen.add(keyModel)
		r.set(&k.Model)
	case keyNames[keyWorldSize]:
		seen.add(keyWorldSize)
		k.WorldSize = int(r.int())
	case keyNames[keyWorker]:
		seen.add(keyWorker)
		k.WorkerID, k.HasWorker = 0, !r.isNil()
		if k.HasWorker {
			k.WorkerID = int(r.int())
		}
	case keyNames[keyTokens]:
		seen.add(keyTokens)
		r.tokens(k, scan)
	case keyNames[keyStart]:
		seen.add(keyStart)
		k.Start = int(r.int())
	case keyNames[keyEnd]:
		seen.add(keyEnd)
		k.End = int(r.int())
	case keyNames[keyRequestID]:
		seen.add(keyRequestID)
		r.set(&k.RequestID)
	case keyNames[keySalt]:
		seen.add(keySalt)
		r.set(&k.Salt)
	case keyNames[keyConfigs]:
		k.Configs = nil
		if !r.isNil() {
			k.Configs = r.configs()
		}
	case keyNames[keyReaders]:
		k.NumKVReaders = int(r.int())
	default:
		r.skip()
	}
}

// tokens consumes the token list with scan.
func (r *reader) tokens(k *Key, scan TokenScanner) {
	n := r.array()
	if r.err != nil {
		return
	}
	if scan == nil {
		scan = SkipTokens
	}
	used, err := scan(r.b, n)
	if err != nil {
		r.fail(err)
		return
	}
	k.Tokens, k.TokenCount = r.take(used), n
}

// configs consumes a map with string keys and values of any kind.
func (r *reader) configs() []byte {
	start := r.b
	n := r.fields()
	for i := 0; i < n && r.err == nil; i++ {
		r.str()
		r.skip()
	}
	if r.err != nil {
		return nil
	}
	used := len(start) - len(r.b)
	return start[:used:used]
}

// MaxSaltRunes is the longest cache salt, in code points.
const MaxSaltRunes = 128

// CheckSalt checks a cache salt: at most [MaxSaltRunes] code points, and none of
// the separators of object names, '@', '/' and '\', nor NUL. The empty salt is
// the ordinary one. The error is an [ErrSalt].
func CheckSalt(salt string) error {
	for i := range len(salt) {
		switch salt[i] {
		case '@', '/', '\\', 0:
			return fmt.Errorf("%w: %q is not allowed in it", ErrSalt, salt[i])
		}
	}
	if n := utf8.RuneCountInString(salt); n > MaxSaltRunes {
		return fmt.Errorf("%w: %d code points, at most %d are allowed", ErrSalt, n, MaxSaltRunes)
	}
	return nil
}

// AppendKey appends a key. Tokens must hold TokenCount integers ([AppendTokens]
// makes them), Configs a msgpack map or nothing.
func AppendKey(dst []byte, k *Key) []byte {
	dst = appendMapHead(dst, numKeyFields)
	dst = AppendString(AppendString(dst, keyNames[keyModel]), k.Model)
	dst = AppendInt(AppendString(dst, keyNames[keyWorldSize]), int64(k.WorldSize))
	dst = AppendString(dst, keyNames[keyWorker])
	if k.HasWorker {
		dst = AppendInt(dst, int64(k.WorkerID))
	} else {
		dst = AppendNil(dst)
	}
	dst = appendArrayHead(AppendString(dst, keyNames[keyTokens]), k.TokenCount)
	dst = append(dst, k.Tokens...)
	dst = AppendInt(AppendString(dst, keyNames[keyStart]), int64(k.Start))
	dst = AppendInt(AppendString(dst, keyNames[keyEnd]), int64(k.End))
	dst = AppendString(AppendString(dst, keyNames[keyRequestID]), k.RequestID)
	dst = AppendString(AppendString(dst, keyNames[keySalt]), k.Salt)
	dst = AppendString(dst, keyNames[keyConfigs])
	if len(k.Configs) > 0 {
		dst = append(dst, k.Configs...)
	} else {
		dst = AppendNil(dst)
	}
	return AppendInt(AppendString(dst, keyNames[keyReaders]), int64(k.NumKVReaders))
}

// AppendTokens appends token ids as the integers of [Key.Tokens], without the
// head of an array.
func AppendTokens(dst []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		dst = AppendUint(dst, uint64(t))
	}
	return dst
}

// SameRequest reports whether two keys mean the same range of the same tokens
// for the same shards of the same request, which pairs a commit with its
// prepare. Token lists are compared by their bytes.
func (k *Key) SameRequest(o *Key) bool {
	return k.Start == o.Start && k.End == o.End && k.WorldSize == o.WorldSize &&
		k.HasWorker == o.HasWorker && k.WorkerID == o.WorkerID && k.TokenCount == o.TokenCount &&
		k.RequestID == o.RequestID && k.Model == o.Model && k.Salt == o.Salt && bytes.Equal(k.Tokens, o.Tokens)
}

// intBounds guards the conversions above: int must hold what int64 does.
const _ = uint(math.MaxInt - math.MaxInt64)
