// Package conformance checks lmcache-go with its real peer: the unmodified
// client classes of lmcache 0.5.6 drive the server, and frames recorded from
// the real server are replayed against ours. It has tests only.
//
// Tests that need Python are skipped unless LMCACHE_GO_PYTHON names the
// interpreter of an environment with lmcache 0.5.6 (refenv.sh makes one and
// prints its folder); `make conformance` does both. LMCACHE_GO_BIN may name the
// server binary to test; without it the tests build cmd/lmcache-go once.
//
// The scenarios are Python scripts in this folder. Each prints a line per step,
// which becomes a subtest. oracle_client.py also passes against the real
// server, which TestOracleReference shows; the steps it cannot pass there are
// marked "ours" and left out with --reference. The flag -reference runs every
// other scenario against the real server too, to see what it makes of them.
//
//	LMCACHE_GO_PYTHON="$(conformance/refenv.sh)/bin/python" go test ./conformance -v -run TestOracle
//	go test ./conformance -run TestSoak -soak 10m -timeout 20m
//	LMCACHE_GO_SOAK=10m go test ./conformance -race -run TestBothModes -timeout 20m
package conformance
