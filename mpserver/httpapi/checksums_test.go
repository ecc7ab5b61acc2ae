package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hashing is a server that numbers chunks instead of hashing them.
type hashing struct {
	*fake
	asked *ChecksumRequest
}

func (s *hashing) Checksums(_ context.Context, r *ChecksumRequest) ([][]string, error) {
	s.asked = r
	if r.InstanceID != 1<<62+1 {
		return nil, Failf(http.StatusNotFound, "instance_id %d not registered", r.InstanceID)
	}
	if r.ChunkBlocks < 1 {
		return nil, Failf(http.StatusBadRequest, "chunk_size must be positive")
	}
	row := make([]string, r.Chunks())
	for i := range row {
		row[i] = fmt.Sprint(i)
	}
	if r.Layerwise {
		return [][]string{row, row}, nil
	}
	return [][]string{row}, nil
}

func TestChecksums(t *testing.T) {
	s := &hashing{fake: &fake{}}
	h := NewHandler(s, Options{})
	f := func(body string, status int, want string) {
		t.Helper()
		r := do(h, "POST", "/cache/checksums", body)
		if got := text(t, r); r.StatusCode != status || !strings.Contains(got, want) {
			t.Errorf("%s: got %d %s, want %d %s", body, r.StatusCode, got, status, want)
		}
	}
	const id = `"instance_id":4611686018427387905`
	f(`{"block_ids":[1,2,3,4,5,7,8],"chunk_size":4,`+id+`}`, 200,
		`{"status":"success","chunk_size":4,"num_chunks":2,"chunk_checksums":["0","1"],"layerwise":false,"block_id_ranges":[[1,5],7,8]}`)
	require.Equal(t, []int64{1, 2, 3, 4, 5, 7, 8}, s.asked.BlockIDs)
	f(`{"block_ids":[5,3,1,2,4],"chunk_size":5,`+id+`,"layerwise":true}`, 200,
		`"num_chunks":1,"chunk_checksums":{"layer_0":["0"],"layer_1":["0"]},"layerwise":true,"block_id_ranges":[5,3,1,2,4]}`)
	f(`{"block_ids":[9,10,11,1,9,10,11,12],"chunk_size":9223372036854775807,`+id+`}`, 200, `"num_chunks":1,"chunk_checksums":["0"],"layerwise":false,"block_id_ranges":[[9,11],1,[9,12]]}`)
	f(`{"block_ids":["1",2.0,true],"chunk_size":"2",`+id+`,"layerwise":"no"}`, 200, `"block_id_ranges":[1,2,1]`)
	f(`{`+id+`}`, 400, `{"detail":"chunk_size must be positive"}`)
	f(`{}`, 404, `{"detail":"instance_id 0 not registered"}`)
	f(`{"block_ids":[1],"chunk_size":1,"instance_id":4242}`, 404, `{"detail":"instance_id 4242 not registered"}`) // recorded, as the empty body
	f(`{"instance_id":4611686018427387904}`, 404, `4611686018427387904 not registered`)                           // no float in between
	f(``, 422, `{"detail":[{"type":"missing","loc":["body"],"msg":"Field required","input":null}]}`)
	f(`{"block_ids":3}`, 422, `"type":"list_type","loc":["body","block_ids"]`)
	f(`{"block_ids":[1,1.5,"x"]}`, 422, `"loc":["body","block_ids",1]`)
	f(`{"block_ids":[1,1.5,"x"]}`, 422, `"type":"int_parsing","loc":["body","block_ids",2]`)
	f(`{"chunk_size":null}`, 422, `"type":"int_type","loc":["body","chunk_size"]`)
	f(`{"chunk_size":99999999999999999999}`, 422, `"type":"int_parsing_size"`)
	f(`{"layerwise":7}`, 422, `"loc":["body","layerwise"]`)
	f(`[]`, 422, `"type":"dataclass_type"`)
	bad := do(h, "POST", "/cache/checksums", `{"block_ids":[`+strings.Repeat(`"x",`, 1000)+`1]}`)
	require.Equal(t, 422, bad.StatusCode)
	require.Equal(t, maxListProblems, strings.Count(text(t, bad), "int_parsing"))
}

// A server without workers that it copies for says so.
func TestNoChecksums(t *testing.T) {
	r := do(NewHandler(&fake{}, Options{}), "POST", "/cache/checksums", `{"block_ids":[1],"chunk_size":1}`)
	require.Equal(t, 501, r.StatusCode)
	require.Equal(t, `{"detail":"checksum not supported for this engine type"}`, text(t, r))
}

func FuzzChecksums(f *testing.F) {
	f.Add(`{"block_ids":[1,"2",3.0],"chunk_size":1e3,"instance_id":4611686018427387905,"layerwise":"on"}`)
	f.Add(`{"block_ids":[1,2,3],"chunk_size":2,"instance_id":4611686018427387905}`)
	f.Add(`{"block_ids":{"a":1},"chunk_size":"\ud800"}`)
	h := NewHandler(&hashing{fake: &fake{}}, Options{})
	f.Fuzz(func(t *testing.T, body string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/cache/checksums", strings.NewReader(body)))
		if w.Code < 200 || w.Code >= 500 {
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
	})
}
