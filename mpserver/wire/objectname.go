package wire

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Object keys have three written forms outside of msgpack: the names of
// key-value stores, names of files, and JSON.

// String returns the key as key-value stores (Redis, S3) name the object:
//
//	model@rank in 8 hex digits@group in hex@hash in hex[@salt]
func (k *ObjectKey) String() string {
	return string(k.appendTail(append([]byte(nil), k.Model...), "@"))
}

// The file form: prefix of the rank, what stands for '/' in a model name, suffix.
const (
	fileRank   = "@0x"
	fileSlash  = "-SEP-"
	fileSuffix = ".data"
)

// FileName returns the key as the file system tier names the object:
//
//	model with -SEP- for every /@0x rank@group@hash[@salt].data
func (k *ObjectKey) FileName() string {
	name := []byte(strings.ReplaceAll(k.Model, "/", fileSlash))
	return string(append(k.appendTail(name, fileRank), fileSuffix...))
}

// appendTail appends what follows the model in both forms.
func (k *ObjectKey) appendTail(dst []byte, rankPrefix string) []byte {
	dst = fmt.Appendf(dst, "%s%08x@%x@", rankPrefix, k.Rank, k.Group)
	dst = hex.AppendEncode(dst, k.ChunkHash)
	if k.Salt != "" {
		dst = append(append(dst, '@'), k.Salt...)
	}
	return dst
}

// ParseObjectKey reads what [ObjectKey.String] writes.
func ParseObjectKey(s string) (ObjectKey, error) {
	return parseName(s, s, "")
}

// ParseFileName reads what [ObjectKey.FileName] writes. A model whose name
// holds -SEP- itself cannot be told from one with a slash; it comes back with
// the slash, as in the reference.
func ParseFileName(s string) (ObjectKey, error) {
	name, ok := strings.CutSuffix(s, fileSuffix)
	if !ok {
		return ObjectKey{}, fmt.Errorf("%w: object file %.64q does not end in %s", ErrValue, s, fileSuffix)
	}
	k, err := parseName(s, name, "0x")
	k.Model = strings.ReplaceAll(k.Model, fileSlash, "/")
	return k, err
}

func parseName(whole, s, rankPrefix string) (ObjectKey, error) {
	bad := func(what string) (ObjectKey, error) {
		return ObjectKey{}, fmt.Errorf("%w: object name %.128q: bad %s", ErrValue, whole, what)
	}
	parts := strings.Split(s, "@")
	if len(parts) != 4 && len(parts) != 5 {
		return bad("number of parts")
	}
	digits, ok := strings.CutPrefix(parts[1], rankPrefix)
	rank, err := strconv.ParseUint(digits, 16, 32)
	if !ok || err != nil || len(digits) != 8 {
		return bad("rank")
	}
	group, err := strconv.ParseUint(parts[2], 16, 31)
	if err != nil {
		return bad("group")
	}
	hash, err := hex.DecodeString(parts[3])
	if err != nil || len(hash) == 0 {
		return bad("hash")
	}
	k := ObjectKey{ChunkHash: hash, Model: parts[0], Rank: uint32(rank), Group: int(group)}
	if len(parts) == 5 {
		k.Salt = parts[4]
		if k.Salt == "" {
			return bad("salt")
		}
	}
	return k, k.Check()
}

// EncodedObjectKey is the JSON form of an [ObjectKey], as HTTP endpoints and
// the coordinator write it.
type EncodedObjectKey struct {
	ChunkHashHex  string `json:"chunk_hash_hex"`
	ModelName     string `json:"model_name"`
	KVRank        uint32 `json:"kv_rank"`
	ObjectGroupID int    `json:"object_group_id"`
	CacheSalt     string `json:"cache_salt"`
}

// Encoded returns the JSON form.
func (k *ObjectKey) Encoded() EncodedObjectKey {
	return EncodedObjectKey{
		ChunkHashHex: hex.EncodeToString(k.ChunkHash), ModelName: k.Model,
		KVRank: k.Rank, ObjectGroupID: k.Group, CacheSalt: k.Salt,
	}
}

// ObjectKey returns the key that e is the JSON form of.
func (e *EncodedObjectKey) ObjectKey() (ObjectKey, error) {
	hash, err := hex.DecodeString(e.ChunkHashHex)
	if err != nil {
		return ObjectKey{}, fmt.Errorf("%w: chunk_hash_hex %.80q: %w", ErrValue, e.ChunkHashHex, err)
	}
	k := ObjectKey{ChunkHash: hash, Model: e.ModelName, Rank: e.KVRank, Group: e.ObjectGroupID, Salt: e.CacheSalt}
	return k, k.Check()
}
