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
		post("/reconfigure/dax/l1/add", changeDAX(true)),
		post("/reconfigure/dax/l1/remove", changeDAX(false)),
		get("/reconfigure/{backend}/l2/status", adaptersStatus),
		post("/reconfigure/{backend}/l2/{operation}", changeAdapter),
	}
}
