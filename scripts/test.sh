#!/usr/bin/env bash
# The whole test, or the stages named: lint, race, alloc, conformance, vllm, demo.
# Every stage runs, also after one failed. The end tells which tests were skipped and why, and the last line is
# "N passed, N failed, N skipped"; the exit status is 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

stages=("$@")
[ $# -ne 0 ] || stages=(lint race alloc conformance vllm demo)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/testsum" ./internal/testsum || exit 1
testsum=$work/testsum

lint() { "$testsum" run -name lint -o "$work/1-lint.json" -plain -- scripts/lint.sh; }

race() {
  local packages
  mapfile -t packages < <(go list ./... | grep -v '/conformance\(/\|$\)')
  "$testsum" run -name race -o "$work/2-race.json" -- \
    go test -json -race -shuffle=on -timeout 15m "${packages[@]}"
}

# Tests that count allocations: the race detector and the self checks allocate, so they skip themselves above.
alloc() {
  local packages
  mapfile -t packages < <(grep -rlE --include='*_test.go' '^func Test[A-Za-z]*Alloc' . | xargs -n 1 dirname | sort -u)
  "$testsum" run -name alloc -o "$work/3-alloc.json" -- \
    go test -json -count=1 -run 'Alloc' -timeout 5m "${packages[@]}"
}

# The real LMCache client, against a server that is built with the race detector too.
conformance() {
  if [ -z "${LMCACHE_GO_PYTHON:-}" ]; then
    "$testsum" run -name conformance -o "$work/4-conformance.json" -plain -- false
    return
  fi
  "$testsum" run -name conformance -o "$work/4-conformance.json" -- \
    go test -json -race -count=1 -timeout 40m ./conformance
}

# The real scheduler and connectors of vLLM, on a CPU. One package after another: each has servers and engines of its own.
vllm() {
  if [ -z "${LMCACHE_GO_PYTHON:-}" ] || [ -z "${LMCACHE_GO_VLLM_PYTHON:-}" ]; then
    "$testsum" run -name vllm -o "$work/5-vllm.json" -plain -- false
    return
  fi
  local packages
  mapfile -t packages < <(go list ./conformance/... | grep -v '/conformance$')
  "$testsum" run -name vllm -o "$work/5-vllm.json" -- \
    go test -json -race -count=1 -p 1 -timeout 20m "${packages[@]}"
}

# The five processes of a disaggregated deployment, with the real router and the real NIXL.
demo() {
  "$testsum" run -name demo -o "$work/6-demo.json" -plain -- make -s demo DEMO='--router real'
}

# Its Python environment is made once and kept; some tests of other stages use it too.
if [ "${stages[*]}" != lint ] && [ -z "${LMCACHE_GO_PYTHON:-}" ]; then
  if env=$(conformance/refenv.sh); then
    export LMCACHE_GO_PYTHON=$env/bin/python
  else
    echo 'test.sh: no Python environment with the real client: its tests fail or are skipped' >&2
  fi
fi

if [[ " ${stages[*]} " == *' vllm '* ]] && [ -z "${LMCACHE_GO_VLLM_PYTHON:-}" ]; then
  if env=$(conformance/vllm/env.sh); then
    export LMCACHE_GO_VLLM_PYTHON=$env/bin/python
  else
    echo 'test.sh: no Python environment with vLLM: the stage vllm fails' >&2
  fi
fi

for stage in "${stages[@]}"; do
  case $stage in
    lint | race | alloc | conformance | vllm | demo)
      SECONDS=0
      "$stage"
      echo "$stage: ${SECONDS} s" >&2
      ;;
    *) echo "test.sh: no stage $stage: lint, race, alloc, conformance, vllm or demo" >&2; exit 2 ;;
  esac
done
"$testsum" total "$work"/*.json
