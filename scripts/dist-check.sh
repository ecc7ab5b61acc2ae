#!/usr/bin/env bash
# usage: scripts/dist-check.sh FOLDER
# Copies a folder that dist.sh made to another place, sees that the binary needs no library but glibc's, and runs it
# there.
set -euo pipefail
folder=${1:?the folder that dist.sh made}

elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
cp -a "$folder" "$elsewhere/moved"
cd "$elsewhere/moved"

glibc='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|linux-vdso)\.so'
resolved=$(env -u LD_LIBRARY_PATH ldd ./lmcache-go)
while read -r soname _; do
  if ! [[ ${soname##*/} =~ $glibc ]]; then
    echo "dist-check: the binary needs $soname, which not every machine has" >&2
    exit 1
  fi
done <<<"$resolved"
./lmcache-go version
