#!/usr/bin/env bash
# Makes dist/lmcache-go-<version>-<os>-<arch>/: the binary, which needs nothing but the C library, so the folder can be
# copied anywhere, onto any machine with the same or a newer glibc. Then checks that, and runs it.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(scripts/version.sh)
name=lmcache-go-$version-$(go env GOOS)-$(go env GOARCH)
out=dist/$name
rm -rf "$out"
mkdir -p "$out"

# Go stamps the commit by asking git, and gives up when git refuses.
vcs=()
git rev-parse HEAD >/dev/null 2>&1 || vcs=(-buildvcs=false)
go build "${vcs[@]}" -trimpath -o "$out/lmcache-go" -ldflags "-s -w -X main.version=$version" ./cmd/lmcache-go

cp LICENSE NOTICE README.md CHANGELOG.md "$out/"

scripts/dist-check.sh "$out"
tar -C dist -czf "dist/$name.tar.gz" "$name"
echo "dist: $out and dist/$name.tar.gz ($(du -sh "$out" | cut -f 1))"
