package httpapi

import (
	"net/http"
	"strconv"
)

// Routes about tiers that this server has not: they answer as the reference
// does without any L2 adapter and without Device-DAX, so that scripts that ask
// first go on.

// tierRoutes is the rows 8, 12 and 28 to 30 of the reference's table.
func (a *api) tierRoutes() []route {
	get := func(path string, h http.HandlerFunc) route {
		return route{path, map[string]http.HandlerFunc{http.MethodGet: h}}
	}
	post := func(path string, h http.HandlerFunc) route {
		return route{path, map[string]http.HandlerFunc{http.MethodPost: h}}
	}
	return []route{
		get("/config/adapters", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, map[string][]struct{}{"adapters": {}})
		}),
		get("/cache/objects", listObjects),
		get("/reconfigure/dax/l1/status", noDAX),
		post("/reconfigure/dax/l1/add", noDAX),
		post("/reconfigure/dax/l1/remove", noDAX),
		get("/reconfigure/{backend}/l2/status", func(w http.ResponseWriter, r *http.Request) {
			writeJSON(w, http.StatusOK, adapterStatus{Backend: r.PathValue("backend"), Adapters: []struct{}{}})
		}),
		post("/reconfigure/{backend}/l2/{operation}", func(w http.ResponseWriter, r *http.Request) {
			writeError(w, http.StatusNotFound, r.PathValue("backend")+" adapter not found")
		}),
	}
}

// adapterStatus is the answer of GET /reconfigure/{backend}/l2/status.
type adapterStatus struct {
	Enabled     bool       `json:"enabled"`
	Backend     string     `json:"backend"`
	NumAdapters int        `json:"num_adapters"`
	Adapters    []struct{} `json:"adapters"`
}

func noDAX(w http.ResponseWriter, _ *http.Request) {
	writeError(w, http.StatusConflict, "L1 is not Device-DAX backed (--l1-devdax-path not set)")
}

// listObjects checks its query as the reference does and then finds no L2.
func listObjects(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var problems []invalid
	tier := "l2"
	if q.Has("tier") {
		tier = q.Get("tier")
	}
	if tier != "l1" && tier != "l2" && tier != "all" {
		expected := orList([]string{"l1", "l2", "all"})
		problems = append(problems, invalid{
			Type: "enum", Loc: []any{"query", "tier"}, Msg: "Input should be " + expected,
			Input: tier, Ctx: map[string]string{"expected": expected},
		})
	}
	if text := q.Get("page_size"); q.Has("page_size") {
		if bad := pageSize(text); bad != nil {
			problems = append(problems, *bad)
		}
	}
	switch {
	case len(problems) > 0:
		writeInvalid(w, problems...)
	case tier != "l2":
		writeDetail(w, http.StatusBadRequest, "tier '"+tier+"' not supported; only 'l2'")
	default:
		writeDetail(w, http.StatusServiceUnavailable, "no L2 adapters configured")
	}
}

// maxPageSize is the reference's largest page (lmcache 0.5.6, v1/multiprocess/http_apis).
const maxPageSize = 5000

func pageSize(text string) *invalid {
	bad := &invalid{Loc: []any{"query", "page_size"}, Input: text}
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		bad.Type, bad.Msg = "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
	case n < 1:
		bad.Type, bad.Msg, bad.Ctx = "greater_than_equal", "Input should be greater than or equal to 1", map[string]int{"ge": 1}
	case n > maxPageSize:
		bad.Type, bad.Msg, bad.Ctx = "less_than_equal", "Input should be less than or equal to 5000", map[string]int{"le": maxPageSize}
	default:
		return nil
	}
	return bad
}
