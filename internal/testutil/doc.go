// Package testutil has what tests of several packages need: golden files,
// waiting for a condition, a free port for a child process, and what the real
// client leaves behind.
package testutil
