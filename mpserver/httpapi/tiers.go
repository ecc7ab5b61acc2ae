package httpapi

import "net/http"

// Routes about tiers that this server has not: they answer as the reference
// does without any L2 adapter and without Device-DAX, so that scripts that ask
// first go on.

// tierRoutes is the rows 8 and 28 to 30 of the reference's table.
func (a *api) tierRoutes() []route {
	get := func(path string, h http.HandlerFunc) route {
		return route{path: path, methods: map[string]http.HandlerFunc{http.MethodGet: h}}
	}
	post := func(path string, h http.HandlerFunc) route {
		return route{path: path, methods: map[string]http.HandlerFunc{http.MethodPost: h}}
	}
	return []route{
		get("/config/adapters", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, map[string][]struct{}{"adapters": {}})
		}),
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
