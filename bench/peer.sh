#!/usr/bin/env bash
# Measures our server beside the real one: starts both, runs every workload against them in alternation, and prints
# the ratios as median [min..max] over the rounds. Figures of one machine are worth something only as such pairs.
#   usage: bench/peer.sh [WORKLOAD...]      names of the list below, or process; none means all
# The workload process is process.py: start, idle, many objects, end. all.sh runs this script in all its ways.
# Settings (environment):
#   ROUNDS=3        pairs of each workload      SECONDS_EACH=2   length of one run
#   POOL_GB=2       L1 of each server           OUT=FILE         keep the runs (one JSON object a line)
#   PEER=real       or sink, for the pickle workloads: a server of loadgen that throws everything away, the most that
#                   the socket allows; its figures stand in the column "real". SINK_MB=N: it reads stores into a span of
#                   so many MiB, as into a pool, and not into one buffer that stays in the caches
#   DRIVER=loadgen  or raw, real: load_real_client.py with its bare driver, with the real client's classes
#   LMCACHE_GO_PYTHON=python of an environment with lmcache 0.5.6; default: conformance/refenv.sh makes one
#   OURS=bin/lmcache-go                         our binary
set -euo pipefail
cd "$(dirname "$0")/.."

driver=${DRIVER:-loadgen} peer=${PEER:-real}
rounds=${ROUNDS:-3} each=${SECONDS_EACH:-2} pool=${POOL_GB:-2} ours=${OURS:-bin/lmcache-go}
case $peer in real | sink) ;; *) echo "peer: PEER=$peer: want real or sink" >&2; exit 2 ;; esac
python=${LMCACHE_GO_PYTHON:-}
if [ -z "$python" ]; then
  if [ "$peer" = sink ] && [ "$driver" = loadgen ]; then python=python3; else python=$(conformance/refenv.sh)/bin/python; fi
fi
work=$(mktemp -d)
out=${OUT:-$work/runs.jsonl}
: >"$out"

# name | mode | loadgen flags. Client and depth counts are those of the table of targets.
workloads='
ping-64        | shm    | --ops ping --depth 64
noop-64        | shm    | --ops noop --depth 64
lookup-1k-hit  | shm    | --ops lookup --tokens 1024 --hit --layout tiny --prefill 2
lookup-1k-miss | shm    | --ops lookup --tokens 1024 --layout tiny
lookup-8k-hit  | shm    | --ops lookup --tokens 8192 --hit --layout tiny --prefill 2
lookup-8k-miss | shm    | --ops lookup --tokens 8192 --layout tiny
lookup-8k-hit-4| shm    | --ops lookup --tokens 8192 --hit --layout tiny --prefill 2 --clients 4 --depth 2
lookup-8k-hit-16|shm    | --ops lookup --tokens 8192 --hit --layout tiny --prefill 2 --clients 16
lookup-8k-miss-4|shm    | --ops lookup --tokens 8192 --layout tiny --clients 4 --depth 2
lookup-8k-miss-16|shm   | --ops lookup --tokens 8192 --layout tiny --clients 16
lookup-32k-miss| shm    | --ops lookup --tokens 32768 --layout tiny
lookup-32k-hit | shm    | --ops lookup --tokens 32768 --hit --layout tiny --prefill 2
lookup-32k-hit-4|shm    | --ops lookup --tokens 32768 --hit --layout tiny --prefill 2 --clients 4
lookup-128k-hit| shm    | --ops lookup --tokens 131072 --hit --layout tiny --prefill 1
lookup-128k-miss|shm    | --ops lookup --tokens 131072 --layout tiny
retrieve-ctl   | shm    | --ops retrieve --layout small --no-copy
retrieve-ctl-16| shm    | --ops retrieve --layout small --no-copy --clients 16 --prefill 2
store-ctl      | shm    | --ops store --layout tiny --no-copy
retrieve-1m    | shm    | --ops retrieve --layout small --verify-every 8
retrieve-32m   | shm    | --ops retrieve --layout llama8b --prefill 3 --verify-every 8
retrieve-32m-2 | shm    | --ops retrieve --layout llama8b --prefill 2 --verify-every 8 --clients 2
store-32m      | shm    | --ops store --layout llama8b --seconds 1
store-32m-mapped|shm    | --ops store --layout llama8b --warmup 4
mixed-1m       | shm    | --ops mixed --layout small --clients 4 --verify-every 8
store-full     | shm    | --ops store --layout small --audit 100 --seconds 6
pickle-store   | pickle | --ops store --layout small
pickle-retrieve| pickle | --ops retrieve --layout small --verify-every 8
pickle-store-32m| pickle| --ops store --layout llama8b --chunks 2
pickle-retrieve-32m|pickle| --ops retrieve --layout llama8b --chunks 2 --prefill 2 --verify-every 8
'

pids=()
stop() {
  trap - EXIT INT TERM
  for p in "${pids[@]}"; do kill -TERM "$p" 2>/dev/null || true; done
  for p in "${pids[@]}"; do wait "$p" 2>/dev/null || true; done
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

go build -o "$work/loadgen" ./bench/loadgen

free_ports() { # free_ports N: that many ports that nobody listens on
  "$python" - "$1" <<'PY'
import socket, sys
s = [socket.socket() for _ in range(int(sys.argv[1]))]
for x in s:
    x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))
PY
}

# start_real MODE, start_ours MODE: set $port and $pid. Pickle mode is a server without a shared pool.
start_real() {
  local p shm=()
  read -r -a p < <(free_ports 3)
  [ "$1" = shm ] && shm=(--shm-name "peer_real_$$")
  LMCACHE_TRACK_USAGE=false LMCACHE_DISABLE_BANNER=1 LMCACHE_LOG_LEVEL=WARNING PYTHONWARNINGS=ignore \
    "$(dirname "$python")/lmcache" server --host 127.0.0.1 --port "${p[0]}" --http-port "${p[1]}" \
    --prometheus-port "${p[2]}" --supported-transfer-mode auto --eviction-policy LRU \
    --l1-size-gb "$pool" --no-l1-use-lazy "${shm[@]}" >"$work/real-$1.log" 2>&1 &
  port=${p[0]} pid=$!
}
start_sink() {
  local p
  read -r -a p < <(free_ports 1)
  "$work/loadgen" --sink --sink-mb "${SINK_MB:-0}" --url "tcp://127.0.0.1:${p[0]}" >"$work/real-$1.log" 2>&1 &
  port=${p[0]} pid=$!
}
start_ours() {
  local p shm=()
  read -r -a p < <(free_ports 2)
  [ "$1" = shm ] && shm=(--shm-name "peer_ours_$$")
  "$ours" server --host 127.0.0.1 --port "${p[0]}" --http-port "${p[1]}" --l1-size-gb "$pool" "${shm[@]}" \
    >"$work/ours-$1.log" 2>&1 &
  port=${p[0]} pid=$!
}
await() { # await NAME: until the server on $port answers
  local _
  for _ in $(seq 120); do
    if "$work/loadgen" --url "tcp://127.0.0.1:$port" --ops noop --seconds 0.01 >/dev/null 2>&1; then return; fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.5
  done
  echo "peer: the $1 server did not come up:" >&2
  tail -n 20 "$work/$1-$2.log" >&2
  exit 1
}

run() { # run LABEL URL PID FLAG...: one JSON object on stdout
  local label=$1 url=$2 pid=$3
  shift 3
  if [ "$driver" = loadgen ]; then
    "$work/loadgen" --json --label "$label" --url "$url" --server-pid "$pid" "$@"
    return
  fi
  local raw=()
  [ "$driver" = raw ] && raw=(--raw)
  "$python" bench/load_real_client.py "${raw[@]}" --url "$url" --server-pid "$pid" "$@" | sed "s|^{|{\"label\": \"$label\", |"
}

wanted() { # wanted NAME CHOSEN...
  local name=$1 w
  shift
  [ $# -eq 0 ] && return 0
  for w in "$@"; do [ "$w" = "$name" ] && return 0; done
  return 1
}

modes='shm pickle'
[ "$peer" = sink ] && modes=pickle
for mode in $modes; do
  lines=()
  while IFS='|' read -r name m flags; do
    name=${name// /} m=${m// /}
    if [ -n "$name" ] && [ "$m" = "$mode" ] && wanted "$name" "$@"; then lines+=("$name|$flags"); fi
  done <<<"$workloads"
  [ ${#lines[@]} -eq 0 ] && continue

  "start_$peer" "$mode" && real_port=$port real_pid=$pid && pids+=("$pid")
  start_ours "$mode" && our_port=$port our_pid=$pid && pids+=("$pid")
  port=$real_port pid=$real_pid await real "$mode"
  port=$our_port pid=$our_pid await ours "$mode"

  for line in "${lines[@]}"; do
    name=${line%%|*}
    read -r -a flags <<<"${line#*|}"
    for ((i = 0; i < rounds; i++)); do
      for who in real ours; do
        if [ $who = real ]; then port=$real_port pid=$real_pid; else port=$our_port pid=$our_pid; fi
        echo "peer: $name, round $((i + 1)) of $rounds, $who" >&2
        # What the sink sends is noise.
        [ "$peer" = sink ] && flags+=(--verify-every 0)
        run "$name/$who" "tcp://127.0.0.1:$port" "$pid" --mode "$mode" --clear --seconds "$each" "${flags[@]}" >>"$out" ||
          echo "peer: $name against $who reported an error, see the line of the run" >&2
      done
    done
  done
  kill -TERM "$real_pid" "$our_pid"
  wait "$real_pid" "$our_pid" 2>/dev/null || true
  pids=()
done

if [ "$peer" = real ] && [ "$driver" = loadgen ] && wanted process "$@"; then
  python3 bench/process.py --loadgen "$work/loadgen" --rounds "$rounds" \
    --ours "$ours server --host 127.0.0.1 --port {port} --http-port {http_port} --l1-size-gb {gb} --shm-name {shm}" \
    --real "$(dirname "$python")/lmcache server --host 127.0.0.1 --port {port} --http-port {http_port} --prometheus-port {prometheus_port} --supported-transfer-mode auto --eviction-policy LRU --l1-size-gb {gb} --no-l1-use-lazy --shm-name {shm}" \
    >>"$out"
fi

"$work/loadgen" --report "$out"
