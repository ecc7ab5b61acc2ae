package conformance

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// refused tells whether the reply refuses the request: two frames, the uid and
// the operation frame of another operation (24, noop; 21, get_chunk_size, when
// the request was a noop). The client raises ValueError at once.
func refused(request []frame, reply [][]byte) bool {
	return len(reply) == 2 && bytes.Equal(reply[0], request[0]) && !bytes.Equal(reply[1], request[1]) &&
		(bytes.Equal(reply[1], opNoop) || bytes.Equal(reply[1], []byte{21}))
}

// TestBorderRequests sends the requests at the border of what the real server
// accepts; where that is silent, ours answers as the operation's failure.
func TestBorderRequests(t *testing.T) {
	if *againstReference {
		t.Skip("the real server's silence is in the recording")
	}
	s := newServer(t, config{chunk: 16, poolMiB: 16})
	d := newDealer(t, s)
	for _, r := range recorded[request](t, "compat_and_rejects.json") {
		if err := d.send(raw(r.Frames)...); err != nil {
			t.Fatal(err)
		}
		dropped := false
		var value []byte
		switch {
		case slices.Contains([]string{"op_is_float", "op_is_bad_msgpack", "op_has_trailing_bytes"}, r.Name):
			dropped = true
		case strings.HasPrefix(r.Name, "key_"), r.Name == "lookup_one_payload_only":
			// A lookup never fails: it is acknowledged and counts 0.
		case strings.HasPrefix(r.Name, "ping_"), r.Name == "payload_is_bad_msgpack":
			value = []byte{0xc2}
		case r.Expect == "reply_echoes_name", r.Expect == "reply_echoes_uid":
			value = replyOK
		default:
			if got, err := d.receive(replyLimit); err != nil || !refused(r.Frames, got) {
				t.Errorf("%s: got %q, %v, want a refusal", r.Name, got, err)
			}
			continue
		}
		if dropped {
			// The next reply belongs to the next request.
			d.alive(t)
			continue
		}
		want := raw(r.Frames[:2])
		if value != nil {
			want = append(want, value)
		}
		if got, err := d.receive(replyLimit); err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%s: got %q, %v, want %q", r.Name, got, err, want)
		}
	}
	d.alive(t)
	s.terminate()
}

// mayBeRefused are the operations whose well-formed request may be refused:
// those we do not serve, and a registration that makes no sense here. The
// client re-raises a refusal of any other inside the engine.
var mayBeRefused = []string{
	"register_kv_cache", "register_kv_cache_engine_driven_context", "cb_protocol_handshake", "server_module_call",
}

// TestEveryRequestIsAnswered sends a request of every operation.
func TestEveryRequestIsAnswered(t *testing.T) {
	if *againstReference {
		t.Skip("the real server does not answer all of them")
	}
	s := newServer(t, config{chunk: 16, poolMiB: 16, pool: true})
	d := newDealer(t, s)
	for _, r := range recorded[request](t, "requests.json") {
		got := d.ask(t, replyLimit, raw(r.Frames)...)
		switch {
		case refused(r.Frames, got):
			if !slices.Contains(mayBeRefused, r.Op) {
				t.Errorf("%s was refused", r.Name)
			}
		case len(got) < 2 || len(got) > 3 || !bytes.Equal(got[0], r.Frames[0]) || !bytes.Equal(got[1], r.Frames[1]):
			t.Errorf("%s: got %q", r.Name, got)
		case len(got) == 3:
			if _, err := decode(got[2]); err != nil {
				t.Errorf("%s: %v", r.Name, err)
			}
		}
		if r.Op == "subscribe_kv_events" {
			// One batch, and the end only when the client asks for it.
			if batch, err := decode(got[len(got)-1]); err != nil || batch.(map[string]any)["enabled"] != true {
				t.Errorf("%s: got %v, %v, want enabled true", r.Name, batch, err)
			}
			if early, err := d.receive(silence); err != nil || early != nil {
				t.Errorf("%s: got %q, %v before the client cancelled", r.Name, early, err)
			}
			end := d.ask(t, replyLimit, r.Frames[0], nil, []byte("cancel"))
			if !slices.EqualFunc(end, raw(r.Frames[:2]), bytes.Equal) {
				t.Errorf("%s: got %q after cancel, want the end frame", r.Name, end)
			}
		}
	}
	d.alive(t)
	s.terminate()
}
