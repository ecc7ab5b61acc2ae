#!/usr/bin/env bash
# usage: scripts/gpu-build.sh [FOLDER]
# Builds what a machine with a GPU and torch needs to run gputest, small and without this checkout: copy FOLDER
# (bin/gpu) there and run in it
#   ./gputest -server ./lmcache-go -json report.json
# It needs no Go, no libzmq, no vLLM and no network there, only a glibc that is not older than this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-bin/gpu}
mkdir -p "$out"
vcs=()
git rev-parse HEAD >/dev/null 2>&1 || vcs=(-buildvcs=false)
go build "${vcs[@]}" -trimpath -ldflags "-s -w -X main.version=$(scripts/version.sh)" -o "$out/lmcache-go" ./cmd/lmcache-go
go build "${vcs[@]}" -trimpath -ldflags '-s -w' -o "$out/gputest" ./gputest
du -sh "$out"
