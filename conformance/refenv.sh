#!/usr/bin/env bash
# Makes, once, the Python environment with the real peers that this project is checked against (lmcache 0.5.6 with
# its server and clients, the NIXL binding, vllm-router), and prints its folder. All versions are pinned in
# refenv-constraints.txt; a change there makes a new environment.
#   usage: "$(conformance/refenv.sh)/bin/python" script.py
# About 7 GB and four minutes the first time. It is kept in ~/.cache/lmcache-go/refenv.
# REFENV=folder uses that one: made when it does not exist, taken as it is when lmcache imports there.
set -euo pipefail
constraints=$(cd "$(dirname "$0")" && pwd)/refenv-constraints.txt
packages=(lmcache nixl nixl-cu12 vllm-router)

dir=${REFENV:-${XDG_CACHE_HOME:-$HOME/.cache}/lmcache-go/refenv}
digest() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }
stamp=$dir/.complete-$(digest <"$constraints" | cut -c1-12)

usable() { "$dir/bin/python" -c 'import importlib.metadata as m, sys; sys.exit(m.version("lmcache") != "0.5.6")' 2>/dev/null; }

if [ -e "$stamp" ]; then
  echo "$dir"
  exit 0
fi
if [ -n "${REFENV:-}" ] && [ -e "$dir" ]; then
  if usable; then
    echo "$dir"
    exit 0
  fi
  echo "refenv: $dir exists and has no lmcache 0.5.6: remove it, or point REFENV at another folder" >&2
  exit 1
fi

mkdir -p "$(dirname "$dir")"
# Two runs at once: the second waits and finds the work done.
if command -v flock >/dev/null; then
  exec 9>"$dir.lock"
  flock 9
  if [ -e "$stamp" ]; then
    echo "$dir"
    exit 0
  fi
fi
echo "refenv: making $dir (about 7 GB, some minutes)" >&2
rm -rf "$dir"
python3 -m venv "$dir" >&2
"$dir/bin/pip" install -q --disable-pip-version-check -c "$constraints" "${packages[@]}" >&2
usable || { echo "refenv: the installed lmcache is not 0.5.6" >&2; exit 1; }
touch "$stamp"
echo "$dir"
