// Package testutil has what tests of several packages need: golden files,
// waiting for a condition, and a free port for a child process.
package testutil
