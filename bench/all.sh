#!/usr/bin/env bash
# The whole race: our server and the real one in turns with each driver, and our server beside what bounds it. About half
# an hour on two cores, otherwise idle; the settings of peer.sh hold.
set -euo pipefail
cd "$(dirname "$0")/.."

part() { # part TITLE: a heading between the tables
  echo
  echo "== $1"
}

LMCACHE_GO_PYTHON=${LMCACHE_GO_PYTHON:-$(conformance/refenv.sh)/bin/python}
export LMCACHE_GO_PYTHON
part 'beside the real server, driver in Go'
bench/peer.sh
part 'beside the real server, bare driver in Python'
DRIVER=raw bench/peer.sh lookup-8k-hit-4 lookup-32k-hit-4 retrieve-32m
part "beside the real server, the real client's classes"
DRIVER=real bench/peer.sh mixed-1m retrieve-32m
part 'pickle mode beside a server that throws everything away (column "real")'
PEER=sink bench/peer.sh
part 'the same beside one that reads into as much memory as our pool has'
PEER=sink SINK_MB=$((${POOL_GB:-2} * 1024)) bench/peer.sh pickle-store pickle-store-32m
part 'stores into a full pool beside a cleared one (column "real"), 1 MiB objects'
bench/fullpool.sh
part 'the same, over 32 MiB objects, and 32 MiB objects over those of 1 MiB'
FILL=llama8b bench/fullpool.sh
FILL=small bench/fullpool.sh --layout llama8b
