package mpserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// handleRegisterEngineDriven registers a worker that copies itself, through
// the shared segment if the server has one and by pickles otherwise.
func handleRegisterEngineDriven(s *Server, _ context.Context, r *request) reply {
	var c wire.EngineDrivenContext
	if err := wire.DecodeEngineDrivenContext(r.payloads[0], &c); err != nil {
		return s.registrationFailed(r, c.InstanceID, nil, err)
	}
	lay, err := s.engineDrivenLayout(&c)
	if err != nil {
		return s.registrationFailed(r, c.InstanceID, nil, err)
	}
	name, size := s.advertisedPool()
	if s.instances.refresh(c.InstanceID, lay, true, r.client, time.Now()) {
		return value(wire.AppendEngineDrivenReply(nil, name, size))
	}
	in := &instance{id: c.InstanceID, layout: lay, engine: true, conn: r.client}
	if _, err := s.instances.register(in, time.Now()); err != nil {
		return s.registrationFailed(r, c.InstanceID, lay, err)
	}
	s.met.InstanceEvent("registered")
	s.log.Info("registered", "component", "mq", "instance_id", c.InstanceID, "model", c.Model, "world_size", c.WorldSize,
		"mode", TransferEngineDriven, "layout", lay.fingerprint, "chunk_bytes", lay.groups[0].sizeBytes, "shm", name)
	return value(wire.AppendEngineDrivenReply(nil, name, size))
}

// advertisedPool is what engine-driven workers map; "" and 0 mean pickles.
func (s *Server) advertisedPool() (name string, size int64) {
	if !s.sharesPool() {
		return "", 0
	}
	return s.arena.ShmName(), s.arena.SizeBytes()
}

// registrationFailed logs why, and either refuses, which ends the engine's
// start at once, or lets it start without a cache (--on-register-failure).
func (s *Server) registrationFailed(r *request, id int64, lay *layout, err error) reply {
	s.instances.armPing(id)
	s.met.InstanceEvent("refused")
	reason := registrationReason(err)
	s.failures.explain(r.op.String(), reason, err)
	s.log.Error("a worker cannot be registered", "component", "mq", "instance_id", id, "op", r.op.String(), "policy", s.opt.OnRegisterFailure, "reason", reason, "err", err, "remedy", remedies[reason].remedy)
	if s.opt.OnRegisterFailure != RegisterDegrade || lay == nil {
		return refuse.because(reason)
	}
	ill := &instance{id: id, layout: lay, engine: r.op == wire.OpRegisterEngineDriven, ill: true, lastErr: err.Error(), conn: r.client}
	if _, err := s.instances.register(ill, time.Now()); err != nil {
		return refuse.because(reason)
	}
	if r.op == wire.OpRegisterEngineDriven {
		return value(wire.AppendEngineDrivenReply(nil, "", 0)).because(reason)
	}
	return empty.because(reason)
}

func failRegister(s *Server, r *request) reply {
	if !s.serves(r.op) {
		return s.registrationFailed(r, 0, nil, fmt.Errorf("this server runs with --supported-transfer-mode %s: start it with auto, or set the worker's lmcache.mp.mp_transfer_mode to match", s.opt.TransferMode))
	}
	return s.registrationFailed(r, 0, nil, errors.New("the request is not what lmcache 0.5.6 sends, or came too late"))
}

func handleUnregister(s *Server, _ context.Context, r *request) reply {
	id, err := wire.DecodeInt(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	in := s.instances.unregister(id)
	if in == nil {
		return empty
	}
	s.met.InstanceEvent("unregistered")
	s.log.Info("unregistered", "component", "mq", "instance_id", id)
	return s.whenClosed(in.driven, r, empty) // the engine frees its blocks when it hears us
}
