#!/usr/bin/env bash
# Makes dist/lmcache-go-<version>-<os>-<arch>/: the binary, and in lib/ the shared libraries that it needs beyond
# those of the C library. The binary looks for them beside itself, so the folder can be copied anywhere, onto any
# machine with the same or a newer glibc. Then checks that no library is taken from elsewhere, and runs it.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(scripts/version.sh)
name=lmcache-go-$version-$(go env GOOS)-$(go env GOARCH)
out=dist/$name
rm -rf "$out"
mkdir -p "$out/lib" "$out/licenses"

# DT_RPATH (not RUNPATH): it also serves the libraries that libzmq itself needs.
# Go stamps the commit by asking git, and gives up when git refuses.
vcs=()
git rev-parse HEAD >/dev/null 2>&1 || vcs=(-buildvcs=false)
# shellcheck disable=SC2016 # $ORIGIN is for the dynamic loader
go build "${vcs[@]}" -trimpath -o "$out/lmcache-go" \
  -ldflags "-s -w -X main.version=$version -extldflags '-Wl,--disable-new-dtags,-rpath,\$ORIGIN/lib'" ./cmd/lmcache-go

# What belongs to glibc comes with every machine and must not be mixed.
glibc='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libnsl|libanl|linux-vdso)\.so'

while read -r soname path; do
  [[ $soname =~ $glibc ]] && continue
  cp -L "$path" "$out/lib/$soname"
  chmod 644 "$out/lib/$soname"
  # Debian knows whose it is and under which license.
  if command -v dpkg-query >/dev/null; then
    owner=$(dpkg-query -S "$(readlink -f "$path")" 2>/dev/null || dpkg-query -S "$path" 2>/dev/null || true)
    owner=${owner%%:*}
    if [ -n "$owner" ] && [ -r "/usr/share/doc/$owner/copyright" ]; then
      cp -L "/usr/share/doc/$owner/copyright" "$out/licenses/$owner.txt"
    fi
  fi
done < <(ldd "$out/lmcache-go" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}')

cp LICENSE NOTICE README.md CHANGELOG.md "$out/"

scripts/dist-check.sh "$out"
tar -C dist -czf "dist/$name.tar.gz" "$name"
echo "dist: $out and dist/$name.tar.gz ($(du -sh "$out" | cut -f 1))"
