package wire

// Op is an operation. Its value is the legacy id on the wire, 1 to 33, where
// the protocol has one (lmcache 0.5.6, v1/multiprocess/rpc.py); the three
// operations that go by name only have values of our own.
type Op uint8

// The operations of lmcache 0.5.6. OpUnknown stands for any that it does not have.
const (
	OpUnknown Op = iota
	OpRegisterKVCache
	OpUnregisterKVCache
	OpRegisterQCache
	OpUnregisterQCache
	OpStoreQ
	OpStore
	OpRetrieve
	OpLookup
	OpQueryPrefetchStatus
	OpWaitPrefetchStatus
	opRetired11 // never reused by the protocol
	OpFreeLookupLocks
	OpEndSession
	OpRegisterEngineDriven
	OpUnregisterEngineDriven
	OpPrepareStore
	OpCommitStore
	OpPrepareRetrieve
	OpCommitRetrieve
	OpClear
	OpGetChunkSize
	OpPing
	OpReportBlockAllocation
	OpNoop
	OpCBRegisterRope
	OpCBUnregisterRope
	OpCBRetrievePreComputed
	OpCBUnifiedLookup
	OpP2PLookupAndLock
	OpP2PQueryLookupResults
	OpP2PUnlockObjects
	OpGetExperimental
	OpCBProtocolHandshake
	OpSubscribeKVEvents // from here on by name only; the numbers are ours
	OpCBReorderPlan
	OpServerModuleCall

	// NumOps is the number of values of Op, for tables indexed by it.
	NumOps
)

// lastLegacy is the last operation with an id of its own on the wire.
const lastLegacy = OpCBProtocolHandshake

// opTable holds the name and the number of argument frames of each operation.
var opTable = [NumOps]struct {
	name  string
	arity int8
}{
	OpUnknown:                {"unknown", -1},
	OpRegisterKVCache:        {"register_kv_cache", 7},
	OpUnregisterKVCache:      {"unregister_kv_cache", 1},
	OpRegisterQCache:         {"register_q_cache", 7},
	OpUnregisterQCache:       {"unregister_q_cache", 1},
	OpStoreQ:                 {"store_q", 4},
	OpStore:                  {"store", 4},
	OpRetrieve:               {"retrieve", 5},
	OpLookup:                 {"lookup", 2},
	OpQueryPrefetchStatus:    {"query_prefetch_status", 1},
	OpWaitPrefetchStatus:     {"wait_prefetch_status", 2},
	opRetired11:              {"retired_11", -1},
	OpFreeLookupLocks:        {"free_lookup_locks", 2},
	OpEndSession:             {"end_session", 1},
	OpRegisterEngineDriven:   {"register_kv_cache_engine_driven_context", 1},
	OpUnregisterEngineDriven: {"unregister_kv_cache_engine_driven_context", 1},
	OpPrepareStore:           {"prepare_store", 2},
	OpCommitStore:            {"commit_store", 3},
	OpPrepareRetrieve:        {"prepare_retrieve", 2},
	OpCommitRetrieve:         {"commit_retrieve", 2},
	OpClear:                  {"clear", 1},
	OpGetChunkSize:           {"get_chunk_size", 0},
	OpPing:                   {"ping", 1},
	OpReportBlockAllocation:  {"report_block_allocation", 3},
	OpNoop:                   {"noop", 0},
	OpCBRegisterRope:         {"cb_register_rope", 8},
	OpCBUnregisterRope:       {"cb_unregister_rope", 1},
	OpCBRetrievePreComputed:  {"cb_retrieve_pre_computed", 5},
	OpCBUnifiedLookup:        {"cb_unified_lookup", 2},
	OpP2PLookupAndLock:       {"p2p_lookup_and_lock", 2},
	OpP2PQueryLookupResults:  {"p2p_query_lookup_results", 1},
	OpP2PUnlockObjects:       {"p2p_unlock_objects", 1},
	OpGetExperimental:        {"get_experimental", 0},
	OpCBProtocolHandshake:    {"cb_protocol_handshake", 1},
	OpSubscribeKVEvents:      {"subscribe_kv_events", 4},
	OpCBReorderPlan:          {"cb_reorder_plan", 3},
	OpServerModuleCall:       {"server_module_call", 1},
}

var opByName = func() map[string]Op {
	m := make(map[string]Op, NumOps)
	for op := OpUnknown + 1; op < NumOps; op++ {
		if op != opRetired11 {
			m[opTable[op].name] = op
		}
	}
	return m
}()

// String returns the name of the operation, as it goes over the wire.
func (op Op) String() string {
	if op >= NumOps {
		return opTable[OpUnknown].name
	}
	return opTable[op].name
}

// Arity returns the number of argument frames that a request must have, -1 for
// [OpUnknown].
func (op Op) Arity() int {
	if op >= NumOps {
		return -1
	}
	return int(opTable[op].arity)
}

// ParseOp reads an operation frame: a legacy id, of any integer width, or a
// name. An id or name that 0.5.6 does not have is [OpUnknown] without an error.
// An error means that the frame is neither, and that no reply can reach the
// sender's waiting caller: drop the message.
func ParseOp(frame []byte) (Op, error) {
	if len(frame) == 1 && frame[0] < mpFixMap {
		return legacyOp(uint64(frame[0])), nil
	}
	r := reader{b: frame}
	op := OpUnknown
	switch r.peek() {
	case kindInt:
		if v, negative := r.rawInt(); !negative {
			op = legacyOp(v)
		}
	case kindStr:
		op = opByName[string(r.str())]
	default:
		r.failType("an operation id or name")
	}
	if err := r.done(); err != nil {
		return OpUnknown, err
	}
	return op, nil
}

func legacyOp(id uint64) Op {
	if id > uint64(lastLegacy) || id == uint64(opRetired11) {
		return OpUnknown
	}
	return Op(id)
}

// AppendOp appends the operation frame of a request: the id where there is one,
// else the name, as the 0.5.6 client sends it.
func AppendOp(dst []byte, op Op) []byte {
	if op > OpUnknown && op <= lastLegacy {
		return append(dst, byte(op))
	}
	return AppendString(dst, op.String())
}

var (
	refusal     = []byte{byte(OpNoop)}
	refusalNoop = []byte{byte(OpGetChunkSize)}
)

// RefusalFrame returns the operation frame of a refusal of a request: that of
// an operation other than the requested one, which makes the client raise an
// error in the waiting caller at once (spec 3.1). Do not modify it.
func RefusalFrame(requested Op) []byte {
	if requested == OpNoop {
		return refusalNoop
	}
	return refusal
}

// Third frames of a stream control message: [uid][""][control]. Raw bytes, not
// msgpack; the operation frame is empty.
const (
	// StreamAck asks for the next batch.
	StreamAck = "ack"
	// StreamCancel ends the stream.
	StreamCancel = "cancel"
)
