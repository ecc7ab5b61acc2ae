package mpserver

import (
	"context"
	"errors"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// errServerDriven tells the operator what to do until transfers by the server
// are served.
var errServerDriven = errors.New("transfers by the server (lmcache_driven) are not served yet: set lmcache.mp.mp_transfer_mode to engine_driven in kv_connector_extra_config")

// handleRegisterKVCache refuses workers that expect the server to copy.
func handleRegisterKVCache(s *Server, _ context.Context, r *request) reply {
	id, err := wire.DecodeInt(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	return s.registrationFailed(r, id, nil, errServerDriven)
}

// handleStore answers that nothing was stored: no instance is registered for it.
func handleStore(s *Server, _ context.Context, r *request) reply {
	return s.failed(r, "unknown_instance")
}

// handleRetrieve likewise.
func handleRetrieve(s *Server, _ context.Context, r *request) reply {
	return s.failed(r, "unknown_instance")
}
