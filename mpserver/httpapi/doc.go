// Package httpapi is the HTTP surface of the server: health, status, metrics and
// the few things an operator may change.
//
// It answers in the shapes of the reference (lmcache 0.5.6, v1/multiprocess/http_apis):
// compact JSON, both of its error bodies ({"detail": …} and {"error": …}), 405 with
// Allow, 307 for a trailing slash. It knows the server only through the small
// interface [Server], so that it is tested without one, and holds the types of
// the /status tree ([Status]), which the server fills in.
//
//	h := httpapi.NewHandler(server, httpapi.Options{Version: "v1.2.3"})
//	err := httpapi.NewServer(h, logger).Serve(listener)
//
// Routes are rows of one table (routes.go). There is no authentication, as in the
// reference, so the listener should be on loopback; requests that a browser sends
// for another site are refused. The reference's /env and /run_script are not
// offered at all: they hand out the environment and run code.
package httpapi
