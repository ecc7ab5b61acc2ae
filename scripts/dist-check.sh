#!/usr/bin/env bash
# usage: scripts/dist-check.sh FOLDER
# Copies a folder that dist.sh made to another place, sees that every library but glibc's resolves inside it, and
# runs the binary there.
set -euo pipefail
folder=${1:?the folder that dist.sh made}

elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
cp -a "$folder" "$elsewhere/moved"
cd "$elsewhere/moved"

resolved=$(env -u LD_LIBRARY_PATH ldd ./lmcache-go)
if missing=$(grep 'not found' <<<"$resolved"); then
  echo "dist-check: not resolved: $missing" >&2
  exit 1
fi
for library in lib/*; do
  soname=${library#lib/}
  # ldd prints the path it would load, which goes through our rpath.
  from=$(awk -v so="$soname" '$1 == so {print $3}' <<<"$resolved")
  if [ -z "$from" ] || [ "$(readlink -f "$from")" != "$(readlink -f "$library")" ]; then
    echo "dist-check: $soname is loaded from ${from:-nowhere}, not from lib/" >&2
    exit 1
  fi
done
if [ ! -e lib/libzmq.so.5 ]; then
  echo 'dist-check: libzmq.so.5 is not in lib/' >&2
  exit 1
fi
./lmcache-go version
