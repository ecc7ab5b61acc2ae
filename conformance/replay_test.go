package conformance

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"
)

const (
	replyLimit = 10 * time.Second
	// silence is how long a reply that must not come is waited for.
	silence = 500 * time.Millisecond
	// objectBytes is the size of the objects in the recorded conversations:
	// [2, 1 layer, 16 tokens, 4] of float16.
	objectBytes = 2 * 1 * 16 * 4 * 2
)

// recordedObject is what the recorded client stored as chunk i.
func recordedObject(i int) []byte {
	out := make([]byte, objectBytes)
	for n := range out {
		out[n] = byte(i+1+7*n) & 0x3f
	}
	return out
}

// conversation is one replay of a recording.
type conversation struct {
	t       *testing.T
	s       *server
	offsets map[int]int64 // where prepare_store wants each chunk
}

// differences are all the replies in which we mean to differ from the
// recording, by the name of the exchange. The function gets our value frame
// (nil when there is none) and checks it. Every other reply must be equal to
// the recorded one, byte for byte.
var differences = map[string]struct {
	why     string
	in      string // "pool", "pickle" or both ("")
	replied func(c *conversation, value []byte) error
}{
	"experimental": {
		why: "no event stream is advertised, so that no client subscribes",
		replied: func(_ *conversation, value []byte) error {
			return equal(value, []byte{0x90})
		},
	},
	"register": {
		why: "the name and the size of the pool are the server's own", in: "pool",
		replied: (*conversation).checkPool,
	},
	"register again (no-op)": {
		why: "the name and the size of the pool are the server's own", in: "pool",
		replied: (*conversation).checkPool,
	},
	"prepare_store": {
		why: "offsets are the allocator's own", in: "pool",
		replied: (*conversation).checkStoreSlots,
	},
	"prepare_retrieve": {
		why:     "offsets are the allocator's own; a pickle is any that loads to the same tensors",
		replied: (*conversation).checkRetrieved,
	},
	"prepare_store unregistered: no reply": {
		why: "a request that fails is answered in band",
		replied: func(_ *conversation, value []byte) error {
			return equal(value, []byte("\x81\xa7context\x80"))
		},
	},
}

// TestReplay sends two recorded conversations of a client with the real server
// to ours.
func TestReplay(t *testing.T) {
	f := func(name, file string, pool bool) {
		t.Run(name, func(t *testing.T) {
			// The recorded server had no stream of KV events.
			s := newServer(t, config{chunk: 16, poolMiB: 64, pool: pool, ours: []string{"--kv-event-log-size", "0"}})
			c := &conversation{t: t, s: s, offsets: map[int]int64{}}
			d := newDealer(t, s)
			for _, x := range recorded[exchange](t, file) {
				c.exchange(d, x, name)
			}
			s.terminate()
		})
	}
	f("pool", "live_shm.json", true)
	f("pickle", "live_pickle.json", false)
}

func (c *conversation) exchange(d *dealer, x exchange, kind string) {
	c.t.Helper()
	limit := replyLimit
	difference, differs := differences[x.Name]
	differs = differs && (difference.in == "" || difference.in == kind)
	if c.s.cfg.reference && (x.Recv == nil || x.Name == "experimental") {
		differs, limit = false, silence
	}
	got := d.ask(c.t, limit, raw(x.Send)...)
	if !differs {
		if want := raw(x.Recv); !reflect.DeepEqual(got, want) && len(got)+len(want) > 0 {
			c.t.Errorf("%s: got %q, want %q", x.Name, got, want)
		}
		return
	}
	if len(got) < 2 || !bytes.Equal(got[0], x.Send[0]) || !bytes.Equal(got[1], x.Send[1]) {
		c.t.Errorf("%s: got %q, want a reply of %q", x.Name, got, x.Send[:2])
		return
	}
	var value []byte
	if len(got) == 3 {
		value = got[2]
	}
	if err := difference.replied(c, value); err != nil {
		c.t.Errorf("%s: %v", x.Name, err)
	}
}

func equal(got, want any) error {
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

func (c *conversation) checkPool(value []byte) error {
	got, err := decode(value)
	if err != nil {
		return err
	}
	return equal(fmt.Sprint(got), fmt.Sprint(map[string]any{"shm_name": c.s.segment, "pool_size": c.s.poolBytes()}))
}

// slots checks the slots of a reply but for their offsets, which it returns.
func (c *conversation) slots(context map[string]any) ([]int64, error) {
	list, ok := context["slots"].([]any)
	if !ok || len(list) != 3 {
		return nil, fmt.Errorf("got %v, want three slots", context)
	}
	var offsets []int64
	for _, v := range list {
		slot, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("slot %v", v)
		}
		offset, ok := slot["offset"].(int64)
		if !ok || offset < 0 || offset%4096 != 0 || offset+objectBytes > c.s.poolBytes() {
			return nil, fmt.Errorf("offset %v", slot["offset"])
		}
		want := map[string]any{
			"offset": offset, "length": int64(objectBytes), "dtype": "float16",
			"shape": []any{int64(2), int64(1), int64(16), int64(4)},
		}
		if !reflect.DeepEqual(slot, want) {
			return nil, fmt.Errorf("got slot %v, want %v", slot, want)
		}
		offsets = append(offsets, offset)
	}
	return offsets, nil
}

// checkStoreSlots writes the objects into the slots, as the client did.
func (c *conversation) checkStoreSlots(value []byte) error {
	got, err := decode(value)
	if err != nil {
		return err
	}
	context, _ := got.(map[string]any)["context"].(map[string]any)
	offsets, err := c.slots(context)
	if err != nil {
		return err
	}
	indices := []any{int64(0), int64(1), int64(2)}
	if len(context) != 2 || !reflect.DeepEqual(context["chunk_indices"], indices) {
		return fmt.Errorf("got chunk_indices %v, want %v", context["chunk_indices"], indices)
	}
	pool, err := os.OpenFile(c.s.segmentPath(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	for i, offset := range offsets {
		c.offsets[i] = offset
		if _, err := pool.WriteAt(recordedObject(i), offset); err != nil {
			return err
		}
	}
	return nil
}

// checkRetrieved checks that the three objects come back.
func (c *conversation) checkRetrieved(value []byte) error {
	v, err := decode(value)
	if err != nil {
		return err
	}
	got, _ := v.(map[string]any)
	data, isBytes := got["data"].([]byte)
	context, isMap := got["context"].(map[string]any)
	if len(got) != 3 || got["success"] != true || !isBytes || !isMap {
		return fmt.Errorf("got %v", got)
	}
	if c.s.segment == "" {
		// The bytes of each object, in order, somewhere in the pickle; that it
		// loads is for the real client to say (TestOracle).
		for i := range 3 {
			at := bytes.Index(data, recordedObject(i))
			if at < 0 {
				return fmt.Errorf("object %d is not in the data", i)
			}
			data = data[at+objectBytes:]
		}
		return equal(len(context), 0)
	}
	offsets, err := c.slots(context)
	if err != nil {
		return err
	}
	pool, err := os.Open(c.s.segmentPath())
	if err != nil {
		return err
	}
	defer pool.Close()
	object := make([]byte, objectBytes)
	for i, offset := range offsets {
		if offset != c.offsets[i] {
			return fmt.Errorf("object %d is at %d, was stored at %d", i, offset, c.offsets[i])
		}
		if _, err := pool.ReadAt(object, offset); err != nil {
			return err
		}
		if err := equal(object, recordedObject(i)); err != nil {
			return err
		}
	}
	return equal(len(data), 0)
}
