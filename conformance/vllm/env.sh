#!/usr/bin/env bash
# Makes, once, a Python environment with vLLM 0.33.0 on top of the one of refenv.sh (lmcache, nixl, torch), and prints
# its folder. Without vLLM's own dependencies: what its scheduler and KV connectors import on a CPU is listed, pinned,
# in requirements.txt; a change there makes a new environment.
#   usage: "$(conformance/vllm/env.sh)/bin/python" script.py
# 336 MB to download, 1.2 GB on disk, about a minute. It is kept in ~/.cache/lmcache-go/vllmenv; VLLMENV=folder uses
# that one, which is made when it does not exist.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
requirements=$here/requirements.txt

ref=$("$here/../refenv.sh")
dir=${VLLMENV:-${XDG_CACHE_HOME:-$HOME/.cache}/lmcache-go/vllmenv}
digest() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }
# The environment below is part of what this one is.
stamp=$dir/.complete-$( (cat "$requirements" "$here/../refenv-constraints.txt"; echo "$ref") | digest | cut -c1-12)

done_already() {
  [ -e "$stamp" ] || return 1
  echo "$dir"
}

done_already && exit 0
mkdir -p "$(dirname "$dir")"
# Two runs at once: the second waits and finds the work done.
if command -v flock >/dev/null; then
  exec 9>"$dir.lock"
  flock 9
  done_already && exit 0
fi
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
echo "vllm/env: making $dir (1.2 GB, about a minute)" >&2
rm -rf "$dir"
"$ref/bin/python" -m venv "$dir" >&2
packages "$ref/bin/python" >"$(packages "$dir/bin/python")/refenv.pth"
"$dir/bin/pip" install -q --disable-pip-version-check --no-deps -r "$requirements" >&2
VLLM_TARGET_DEVICE=cpu VLLM_LOGGING_LEVEL=ERROR LMCACHE_TRACK_USAGE=false LMCACHE_DISABLE_BANNER=1 \
  "$dir/bin/python" -W ignore -c 'import vllm.v1.core.sched.scheduler, lmcache.integration.vllm.lmcache_mp_connector' >&2 ||
  { echo 'vllm/env: the scheduler of vLLM does not import there' >&2; exit 1; }
touch "$stamp"
echo "$dir"
