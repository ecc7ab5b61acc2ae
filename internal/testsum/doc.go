// Command testsum runs `go test -json` (or any command) as one stage of a
// larger test and adds the stages up.
//
//	testsum run -name race -o race.json -- go test -json -race ./...
//	testsum run -name lint -o lint.json -plain -- scripts/lint.sh
//	testsum total race.json lint.json
//
// run prints a line per package and the whole output of what failed, and
// writes a tally. With -plain the command is one check: its output passes
// through, and its exit status is its result. total lists the skipped tests
// with their reasons and ends with the line that CI reads, "N passed, N
// failed, N skipped". Both exit 1 when anything failed.
//
// It exists because `go test` alone says nothing of skipped tests: a suite
// that skips everything looks like one that passes.
package main
