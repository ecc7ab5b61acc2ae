package wire

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type goldenObjectKeys struct {
	KVRank []struct {
		WorldSize int    `json:"world_size"`
		WorkerID  int    `json:"worker_id"`
		KVRank    uint32 `json:"kv_rank"`
	} `json:"kv_rank"`
	Derived []struct {
		Request struct {
			ObjectGroup int    `json:"object_group"`
			WorldSize   int    `json:"world_size"`
			WorkerID    *int   `json:"worker_id"`
			CacheSalt   string `json:"cache_salt"`
		} `json:"request"`
		Keys []struct {
			ChunkHash  string `json:"chunk_hash"`
			KVRank     uint32 `json:"kv_rank"`
			KeyString  string `json:"key_string"`
			FSFilename string `json:"fs_filename"`
		} `json:"keys"`
	} `json:"derived"`
}

func TestGoldenKVRank(t *testing.T) {
	for _, v := range loadGolden(t).ObjectKeys.KVRank {
		if got, ok := KVRank(v.WorldSize, v.WorkerID); !ok || got != v.KVRank {
			t.Errorf("KVRank(%d, %d): got %#x %v, want %#x", v.WorldSize, v.WorkerID, got, ok, v.KVRank)
		}
	}
	for _, v := range [][2]int{{0, 0}, {1, 1}, {1, -1}, {-1, 0}, {256, 0}, {256, 255}} {
		if got, ok := KVRank(v[0], v[1]); ok {
			t.Errorf("KVRank(%d, %d): got %#x", v[0], v[1], got)
		}
	}
}

func TestGoldenObjectNames(t *testing.T) {
	for _, d := range loadGolden(t).ObjectKeys.Derived {
		k := Key{WorldSize: d.Request.WorldSize}
		if d.Request.WorkerID != nil {
			k.WorkerID, k.HasWorker = *d.Request.WorkerID, true
		}
		ranks, ok := k.KVRanks(nil)
		require.True(t, ok)
		for i, g := range d.Keys {
			// Chunk-major, rank-minor.
			o := ObjectKey{
				ChunkHash: unhex(t, g.ChunkHash), Model: "test/model-7b",
				Rank: ranks[i%len(ranks)], Group: d.Request.ObjectGroup, Salt: d.Request.CacheSalt,
			}
			if o.Rank != g.KVRank {
				t.Errorf("rank: got %#x, want %#x", o.Rank, g.KVRank)
			}
			if got := o.String(); got != g.KeyString {
				t.Errorf("String: got %s, want %s", got, g.KeyString)
			}
			if got := o.FileName(); got != g.FSFilename {
				t.Errorf("FileName: got %s, want %s", got, g.FSFilename)
			}
			checkNames(t, o)
		}
	}
}

// checkNames reads every written form of a key back.
func checkNames(t *testing.T, o ObjectKey) {
	t.Helper()
	back, err := ParseObjectKey(o.String())
	require.NoError(t, err)
	require.Equal(t, o, back)
	back, err = ParseFileName(o.FileName())
	require.NoError(t, err)
	require.Equal(t, o, back)
	data, err := json.Marshal(o.Encoded())
	require.NoError(t, err)
	var e EncodedObjectKey
	require.NoError(t, json.Unmarshal(data, &e))
	back, err = e.ObjectKey()
	require.NoError(t, err)
	require.Equal(t, o, back)
}

func TestSaltedNames(t *testing.T) {
	o := ObjectKey{ChunkHash: []byte{0xab, 1}, Model: "org/m", Rank: 0x02010201, Group: 17, Salt: "tenant é"}
	require.Equal(t, "org/m@02010201@11@ab01@tenant é", o.String())
	require.Equal(t, "org-SEP-m@0x02010201@11@ab01@tenant é.data", o.FileName())
	checkNames(t, o)
	data, err := json.Marshal(o.Encoded())
	require.NoError(t, err)
	require.JSONEq(t, `{"chunk_hash_hex": "ab01", "model_name": "org/m", "kv_rank": 33620481, "object_group_id": 17, "cache_salt": "tenant é"}`, string(data))
}

func TestBadNames(t *testing.T) {
	f := func(s string) {
		t.Helper()
		if k, err := ParseObjectKey(s); err == nil {
			t.Errorf("%s: accepted as %+v", s, k)
		}
		file := strings.Replace(s, "@", "@0x", 1) + ".data"
		if k, err := ParseFileName(file); err == nil {
			t.Errorf("%s: accepted as %+v", file, k)
		}
	}
	f("")
	f("m@01000100@0")
	f("m@1000100@0@ab")
	f("m@0100010x@0@ab")
	f("m@101000100@0@ab")
	f("m@01000100@-1@ab")
	f("m@01000100@ffffffff@ab")
	f("m@01000100@0@abc")
	f("m@01000100@0@")
	f("m@01000100@0@ab@")
	f("m@01000100@0@ab@a/b")
	f("m@01000100@0@ab@s@t")
	_, err := ParseFileName("m@0x01000100@0@ab")
	require.ErrorContains(t, err, ".data")
	_, err = ParseFileName("m@01000100@0@ab.data")
	require.ErrorIs(t, err, ErrValue)
	e := EncodedObjectKey{ChunkHashHex: "zz"}
	_, err = e.ObjectKey()
	require.ErrorIs(t, err, ErrValue)
}

func TestKVRanks(t *testing.T) {
	f := func(k Key, want ...string) {
		t.Helper()
		ranks, ok := k.KVRanks(nil)
		if ok != (want != nil) {
			t.Fatalf("%+v: ok %v", k, ok)
		}
		for i, w := range want {
			require.Equal(t, w, hex.EncodeToString([]byte{byte(ranks[i] >> 24), byte(ranks[i] >> 16), byte(ranks[i] >> 8), byte(ranks[i])}))
		}
		if ok {
			require.Len(t, ranks, len(want))
		}
	}
	f(Key{WorldSize: 2}, "02000200", "02010201")
	f(Key{WorldSize: 2, HasWorker: true, WorkerID: 1}, "02010201")
	f(Key{WorldSize: 2, HasWorker: true, WorkerID: 2})
	f(Key{WorldSize: 2, HasWorker: true, WorkerID: -1})
	f(Key{WorldSize: 0})
	f(Key{WorldSize: 256})
	f(Key{WorldSize: 1 << 40})
}
