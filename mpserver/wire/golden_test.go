package wire

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldenFile is testdata/wire_golden.json: frames of lmcache 0.5.6.
type goldenFile struct {
	Operations []struct {
		Op       string `json:"op"`
		LegacyID *int   `json:"legacy_id"`
		Wire     string `json:"wire"`
		Params   []any  `json:"params"`
	} `json:"operations"`
	Requests []struct {
		Name     string            `json:"name"`
		Op       string            `json:"op"`
		Frames   []string          `json:"frames"`
		Payloads []json.RawMessage `json:"payloads"`
	} `json:"requests"`
	Responses []struct {
		Name   string          `json:"name"`
		Op     string          `json:"op"`
		Frames []string        `json:"frames"`
		Value  json.RawMessage `json:"value"`
	} `json:"responses"`
	StreamControl map[string][]string `json:"stream_control"`
	Compat        []struct {
		Name   string   `json:"name"`
		Frames []string `json:"frames"`
		Expect string   `json:"expect"`
	} `json:"compat_and_rejects"`
	ObjectKeys goldenObjectKeys `json:"object_keys"`
}

func loadGolden(t testing.TB) *goldenFile {
	t.Helper()
	data, err := os.ReadFile("testdata/wire_golden.json")
	require.NoError(t, err)
	g := new(goldenFile)
	require.NoError(t, json.Unmarshal(data, g))
	require.NotEmpty(t, g.Requests)
	require.NotEmpty(t, g.Responses)
	return g
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// recode decodes a frame and appends what came out.
type recode func(frame []byte) ([]byte, error)

func recodeInt(b []byte) ([]byte, error) {
	v, err := DecodeInt(b)
	return AppendInt(nil, v), err
}

func recodeBool(b []byte) ([]byte, error) {
	v, err := DecodeBool(b)
	return AppendBool(nil, v), err
}

func recodeOptInt(b []byte) ([]byte, error) {
	v, ok, err := DecodeOptInt(b)
	if !ok {
		return AppendNil(nil), err
	}
	return AppendInt(nil, v), err
}

func recodeString(b []byte) ([]byte, error) {
	v, err := DecodeString(b)
	return AppendString(nil, v), err
}

func recodeStrings(b []byte) ([]byte, error) {
	v, err := DecodeStrings(b)
	return AppendStrings(nil, v), err
}

func recodeBytes(b []byte) ([]byte, error) {
	v, err := DecodeBytes(b)
	return AppendBytes(nil, v), err
}

func recodeFloat(b []byte) ([]byte, error) {
	v, err := DecodeFloat(b)
	return AppendFloat(nil, v), err
}

func recodeKey(b []byte) ([]byte, error) {
	var k Key
	err := DecodeKey(b, &k, nil)
	return AppendKey(nil, &k), err
}

func recodeBlockIDs(b []byte) ([]byte, error) {
	v, err := DecodeBlockIDs(b, nil)
	return AppendBlockIDs(nil, v), err
}

func recodeContext(b []byte) ([]byte, error) {
	var c EngineDrivenContext
	err := DecodeEngineDrivenContext(b, &c)
	return AppendEngineDrivenContext(nil, &c), err
}

func recodeContextReply(b []byte) ([]byte, error) {
	name, size, err := DecodeEngineDrivenReply(b)
	return AppendEngineDrivenReply(nil, name, size), err
}

func recodeWrappers(b []byte) ([]byte, error) {
	v, err := DecodeDeviceWrappers(b)
	return AppendDeviceWrappers(nil, v), err
}

func recodeEngineType(b []byte) ([]byte, error) {
	v, err := DecodeEngineType(b)
	return AppendString(nil, string(v)), err
}

func recodeHints(b []byte) ([]byte, error) {
	var h LayoutHints
	err := DecodeLayoutHints(b, &h)
	return AppendLayoutHints(nil, &h), err
}

func recodeGroups(b []byte) ([]byte, error) {
	v, err := DecodeEngineGroupInfos(b)
	return AppendEngineGroupInfos(nil, v), err
}

func recodeAllocations(b []byte) ([]byte, error) {
	v, err := DecodeBlockAllocationRecords(b)
	return AppendBlockAllocationRecords(nil, v), err
}

func recodeObjectKeys(b []byte) ([]byte, error) {
	v, err := DecodeObjectKeys(b)
	return AppendObjectKeys(nil, v), err
}

func recodeLayouts(b []byte) ([]byte, error) {
	v, err := DecodeGroupLayouts(b)
	var groups []int
	for g := range v {
		groups = append(groups, g)
	}
	slices.Sort(groups)
	return AppendGroupLayouts(nil, groups, v), err
}

func recodeAddresses(b []byte) ([]byte, error) {
	v, err := DecodeAddresses(b)
	return AppendAddresses(nil, v), err
}

func recodeStoreReply(b []byte) ([]byte, error) {
	event, ok, err := DecodeStoreReply(b)
	return AppendStoreReply(nil, event, ok), err
}

func recodePrepareStore(b []byte) ([]byte, error) {
	v, err := DecodePrepareStore(b)
	if err != nil {
		return nil, err
	}
	return AppendPrepareStore(nil, v.Slots, v.ChunkIndices, v.Present), nil
}

func recodePrepareRetrieve(b []byte) ([]byte, error) {
	v, err := DecodePrepareRetrieve(b)
	if err != nil {
		return nil, err
	}
	return AppendPrepareRetrieve(nil, v.Success, v.Data, v.Slots, v.Slots != nil), nil
}

func recodeBatch(b []byte) ([]byte, error) {
	v, err := DecodeKVEventBatch(b)
	if err != nil {
		return nil, err
	}
	return AppendKVEventBatch(nil, v), nil
}

func recodeModuleCall(b []byte) ([]byte, error) {
	v, err := DecodeModuleCall(b)
	return AppendModuleCall(nil, v), err
}

func recodeModuleReply(b []byte) ([]byte, error) {
	v, err := DecodeModuleReply(b)
	return AppendModuleReply(nil, v), err
}

// arguments holds the codec of each argument frame of each operation.
var arguments = map[string][]recode{
	"register_kv_cache": {
		recodeInt, recodeWrappers, recodeString, recodeInt, recodeEngineType, recodeHints, recodeGroups,
	},
	"unregister_kv_cache":   {recodeInt},
	"store":                 {recodeKey, recodeInt, recodeBlockIDs, recodeBytes},
	"retrieve":              {recodeKey, recodeInt, recodeBlockIDs, recodeBytes, recodeInt},
	"lookup":                {recodeKey, recodeInt},
	"query_prefetch_status": {recodeString},
	"wait_prefetch_status":  {recodeString, recodeFloat},
	"free_lookup_locks":     {recodeKey, recodeInt},
	"end_session":           {recodeString},
	"register_kv_cache_engine_driven_context":   {recodeContext},
	"unregister_kv_cache_engine_driven_context": {recodeInt},
	"prepare_store":            {recodeKey, recodeInt},
	"commit_store":             {recodeKey, recodeInt, recodeBytes},
	"prepare_retrieve":         {recodeKey, recodeInt},
	"commit_retrieve":          {recodeKey, recodeInt},
	"clear":                    {recodeBool},
	"get_chunk_size":           {},
	"ping":                     {recodeOptInt},
	"report_block_allocation":  {recodeInt, recodeString, recodeAllocations},
	"noop":                     {},
	"p2p_lookup_and_lock":      {recodeObjectKeys, recodeLayouts},
	"p2p_query_lookup_results": {recodeInt},
	"p2p_unlock_objects":       {recodeObjectKeys},
	"get_experimental":         {},
	"subscribe_kv_events":      {recodeInt, recodeString, recodeInt, recodeInt},
	"cb_protocol_handshake":    {recodeInt},
	"server_module_call":       {recodeModuleCall},
}

// replies holds the codec of the value of each operation that has one.
var replies = map[string]recode{
	"noop":                  recodeString,
	"get_chunk_size":        recodeInt,
	"get_experimental":      recodeStrings,
	"ping":                  recodeBool,
	"query_prefetch_status": recodeOptInt,
	"wait_prefetch_status":  recodeOptInt,
	"register_kv_cache_engine_driven_context": recodeContextReply,
	"prepare_store":            recodePrepareStore,
	"commit_store":             recodeBool,
	"prepare_retrieve":         recodePrepareRetrieve,
	"commit_retrieve":          recodeBool,
	"store":                    recodeStoreReply,
	"retrieve":                 recodeStoreReply,
	"p2p_lookup_and_lock":      recodeInt,
	"p2p_query_lookup_results": recodeAddresses,
	"subscribe_kv_events":      recodeBatch,
	"server_module_call":       recodeModuleReply,
}

func TestGoldenRequests(t *testing.T) {
	for _, q := range loadGolden(t).Requests {
		t.Run(q.Name, func(t *testing.T) {
			op, err := ParseOp(unhex(t, q.Frames[1]))
			require.NoError(t, err)
			if op.String() != q.Op {
				t.Errorf("operation: got %v, want %s", op, q.Op)
			}
			if got := hex.EncodeToString(AppendOp(nil, op)); got != q.Frames[1] {
				t.Errorf("operation frame: got %s, want %s", got, q.Frames[1])
			}
			frames := q.Frames[2:]
			codecs, ok := arguments[q.Op]
			require.True(t, ok, "no codecs for %s", q.Op)
			require.Len(t, codecs, len(frames))
			if op.Arity() != len(frames) {
				t.Errorf("arity: got %d, want %d", op.Arity(), len(frames))
			}
			for i, c := range codecs {
				want := unhex(t, frames[i])
				got, err := c(want)
				if q.Name == "wait_prefetch_status_int_timeout" && i == 1 {
					want = AppendFloat(nil, 2) // an integer is a float too
				}
				if err != nil || string(got) != string(want) {
					t.Errorf("argument %d: got %x (%v), want %x", i, got, err, want)
				}
			}
		})
	}
}

func TestGoldenResponses(t *testing.T) {
	for _, q := range loadGolden(t).Responses {
		t.Run(q.Name, func(t *testing.T) {
			op, err := ParseOp(unhex(t, q.Frames[1]))
			require.NoError(t, err)
			if op.String() != q.Op {
				t.Errorf("operation: got %v, want %s", op, q.Op)
			}
			if len(q.Frames) == 2 {
				if string(q.Value) != "null" {
					t.Errorf("no value frame for %s", q.Value)
				}
				return
			}
			c, ok := replies[q.Op]
			require.True(t, ok, "no codec for the reply to %s", q.Op)
			want := unhex(t, q.Frames[2])
			got, err := c(want)
			if err != nil || string(got) != string(want) {
				t.Errorf("value: got %x (%v), want %x", got, err, want)
			}
		})
	}
}

func TestGoldenStreamControl(t *testing.T) {
	g := loadGolden(t)
	for name, want := range map[string]string{"ack": StreamAck, "cancel": StreamCancel} {
		frames := g.StreamControl[name]
		require.Len(t, frames, 3)
		if got := string(unhex(t, frames[2])); got != want || frames[1] != "" {
			t.Errorf("%s: got %q behind operation %q, want %q behind an empty one", name, got, frames[1], want)
		}
	}
}
