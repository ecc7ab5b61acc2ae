#!/usr/bin/env bash
# Stores into a full pool of ours beside stores into one that was cleared, in alternation: what eviction costs. In both
# cases the client has touched every page before, and the run is shorter than the pool takes to fill again.
#   usage: bench/fullpool.sh [loadgen flags]      such as --layout tiny --chunks 16
# The column "real" is the cleared pool, "ours" the full one.
# Settings (environment): FILL=LAYOUT fills the pool with objects of another size than those that are stored;
# ROUNDS=7, SECONDS_EACH=0.5, WARMUP=5, POOL_GB=4, OURS=bin/lmcache-go
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${ROUNDS:-7} each=${SECONDS_EACH:-0.5} warmup=${WARMUP:-5} ours=${OURS:-bin/lmcache-go}
work=$(mktemp -d)
pid=
stop() {
  trap - EXIT INT TERM
  [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null || true
  [ -z "$pid" ] || wait "$pid" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

go build -o "$work/loadgen" ./bench/loadgen
"$ours" server --host 127.0.0.1 --port 0 --no-http --l1-size-gb "${POOL_GB:-4}" --shm-name "fullpool_$$" >"$work/log" 2>&1 &
pid=$!
url=
for _ in $(seq 100); do
  url=$(grep -o 'tcp://[0-9.:]*' "$work/log" | tail -n 1 || true)
  if [ -n "$url" ] && "$work/loadgen" --url "$url" --ops noop --seconds 0.01 >/dev/null 2>&1; then break; fi
  sleep 0.1
done

run() { # run LABEL FLAG...
  local label=$1
  shift
  "$work/loadgen" --json --label "store-full/$label" --url "$url" --server-pid "$pid" --ops store --warmup "$warmup" \
    --seconds "$each" "$@" >>"$work/runs"
}
for ((i = 0; i < rounds; i++)); do
  run real --clear-again "$@"
  run ours ${FILL:+--fill "$FILL"} "$@"
done
"$work/loadgen" --report "$work/runs"
