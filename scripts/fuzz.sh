#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME (default 30s) each. An input that fails is kept by Go under the
# package's testdata/fuzz and fails `go test` from then on: mend the code and commit it as a case.
set -euo pipefail
cd "$(dirname "$0")/.."

count=0 failed=()
while read -r dir; do
  while read -r target; do
    count=$((count + 1))
    echo "fuzz: $dir $target ${FUZZTIME:-30s}" >&2
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" "$dir" || failed+=("$dir $target")
  done < <(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | sed 's/^func //' | sort)
done < <(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r -n 1 dirname | sort -u)

if [ "$count" -eq 0 ]; then
  echo 'fuzz: no target found' >&2
  exit 1
fi
if [ ${#failed[@]} -ne 0 ]; then
  printf 'fuzz: failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "fuzz: $count targets, none failed"
