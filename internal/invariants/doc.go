// Package invariants switches expensive self checks on: under the build tag
// "invariants", and under the race detector, so that every test run with
// -race makes them too. Code guarded by [Enabled] costs nothing elsewhere.
package invariants
