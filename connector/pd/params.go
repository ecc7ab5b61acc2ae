package pd

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Params are vLLM's kv_transfer_params: what a prefill engine answers and a
// decode engine is given. Unknown keys are ignored.
type Params struct {
	// DoRemotePrefill: the KV of the prompt is at the engine that the other
	// fields name. False once it was used.
	DoRemotePrefill bool
	// DoRemoteDecode asks a prefill engine to keep the KV for another engine.
	DoRemoteDecode bool
	// RemoteBlockIDs are the producer's blocks, one list for each KV cache
	// group.
	RemoteBlockIDs [][]int64
	// RemoteEngineID, RemoteRequestID, RemoteHost and RemotePort say whose they
	// are and where its side channel is.
	RemoteEngineID, RemoteRequestID, RemoteHost string
	RemotePort                                  int
	// TPSize, DCPSize and PPSize of the producer; 1 when absent.
	TPSize, DCPSize, PPSize int
	// RemoteTokens is how many tokens the producer has computed.
	RemoteTokens int
	// RemoteExpiry is a deadline on the producer's clock in seconds, for blocks
	// of a decoder; nil otherwise.
	RemoteExpiry *float64
	// RemoteGeneration counts what the producer has registered.
	RemoteGeneration int
	// TransferMode is "pull", or "" when absent.
	TransferMode string
	// RemoteCachedTokens is how many tokens the producer found in its cache;
	// nil when absent.
	RemoteCachedTokens *int
	// HasTPSize: the key was there. vLLM sends no heartbeats without it.
	HasTPSize bool
}

// wireParams has the keys of vLLM in its order.
type wireParams struct {
	DoRemotePrefill    bool      `json:"do_remote_prefill"`
	DoRemoteDecode     bool      `json:"do_remote_decode"`
	RemoteBlockIDs     [][]int64 `json:"remote_block_ids"`
	RemoteEngineID     *string   `json:"remote_engine_id"`
	RemoteRequestID    *string   `json:"remote_request_id,omitempty"`
	RemoteHost         *string   `json:"remote_host"`
	RemotePort         *int      `json:"remote_port"`
	TPSize             *int      `json:"tp_size,omitempty"`
	DCPSize            *int      `json:"dcp_size,omitempty"`
	PPSize             *int      `json:"pp_size,omitempty"`
	RemoteTokens       *int      `json:"remote_num_tokens,omitempty"`
	RemoteExpiry       *float64  `json:"remote_blocks_expiry_time"`
	RemoteGeneration   *int      `json:"remote_registration_generation,omitempty"`
	TransferMode       string    `json:"transfer_mode,omitempty"`
	RemoteCachedTokens *int      `json:"remote_prefill_cached_tokens,omitempty"`
}

// ForPrefill are the params that a router gives to a prefill engine.
func ForPrefill() *Params { return &Params{DoRemoteDecode: true} }

// ParseParams reads kv_transfer_params of a request or response; nil for JSON
// null and for nothing. Errors wrap [ErrParams].
func ParseParams(data []byte) (*Params, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil //nolint:nilnil // no params are no error
	}
	p := &Params{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParams, err)
	}
	return p, nil
}

// MarshalJSON writes the keys that vLLM writes, in its order: null for what is
// empty in the params of a router, all of them in those of a producer.
func (p *Params) MarshalJSON() ([]byte, error) {
	if p.RemoteEngineID == "" { // as the router asks
		return json.Marshal(map[string]any{
			"do_remote_decode": p.DoRemoteDecode, "do_remote_prefill": p.DoRemotePrefill,
			"remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil,
		})
	}
	w := wireParams{
		DoRemotePrefill: p.DoRemotePrefill, DoRemoteDecode: p.DoRemoteDecode, RemoteBlockIDs: p.RemoteBlockIDs,
		RemoteEngineID: &p.RemoteEngineID, RemoteRequestID: &p.RemoteRequestID, RemoteHost: &p.RemoteHost, RemotePort: &p.RemotePort,
		TPSize: &p.TPSize, DCPSize: &p.DCPSize, PPSize: &p.PPSize, RemoteTokens: &p.RemoteTokens, RemoteExpiry: p.RemoteExpiry,
		RemoteGeneration: &p.RemoteGeneration, TransferMode: p.TransferMode, RemoteCachedTokens: p.RemoteCachedTokens,
	}
	return json.Marshal(&w)
}

// UnmarshalJSON reads what vLLM or a router wrote.
func (p *Params) UnmarshalJSON(data []byte) error {
	var w wireParams
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	*p = Params{
		DoRemotePrefill: w.DoRemotePrefill, DoRemoteDecode: w.DoRemoteDecode, RemoteBlockIDs: w.RemoteBlockIDs,
		RemoteEngineID: or(w.RemoteEngineID, ""), RemoteRequestID: or(w.RemoteRequestID, ""), RemoteHost: or(w.RemoteHost, ""), RemotePort: or(w.RemotePort, 0),
		TPSize: or(w.TPSize, 1), DCPSize: or(w.DCPSize, 1), PPSize: or(w.PPSize, 1), RemoteTokens: or(w.RemoteTokens, 0), RemoteExpiry: w.RemoteExpiry,
		RemoteGeneration: or(w.RemoteGeneration, 0), TransferMode: w.TransferMode, RemoteCachedTokens: w.RemoteCachedTokens, HasTPSize: w.TPSize != nil,
	}
	return nil
}

func or[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

// Check says whether a consumer can use the params: nil when it can, an error
// that wraps [ErrParams] and names everything that is missing otherwise. Params
// that do not ask for a remote prefill need no check; the KV is computed here.
func (p *Params) Check() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrParams, fmt.Sprintf(format, args...)))
	}
	if p == nil {
		return fmt.Errorf("%w: there are none", ErrParams)
	}
	blocks := 0
	for _, g := range p.RemoteBlockIDs {
		blocks += len(g)
	}
	if blocks == 0 {
		bad("no remote_block_ids")
	}
	for key, missing := range map[string]bool{
		"remote_engine_id": p.RemoteEngineID == "", "remote_request_id": p.RemoteRequestID == "", "remote_host": p.RemoteHost == "",
		"remote_port": p.RemotePort < 1 || p.RemotePort > 65535,
	} {
		if missing {
			bad("no %s", key)
		}
	}
	if p.TPSize < 1 || p.TPSize > maxRanks {
		bad("tp_size %d", p.TPSize)
	}
	if p.DCPSize > 1 || p.PPSize > 1 {
		bad("dcp_size %d and pp_size %d: only 1 is supported", p.DCPSize, p.PPSize)
	}
	if p.TransferMode != "" && p.TransferMode != modePull {
		bad("transfer_mode %q: only %s is supported; start the producer with NixlConnector", p.TransferMode, modePull)
	}
	return errors.Join(errs...)
}

const (
	modePull = "pull"
	// maxRanks bounds what a peer can make us do.
	maxRanks = 1024
)
