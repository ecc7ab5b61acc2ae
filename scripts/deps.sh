#!/usr/bin/env bash
# Makes this machine able to build lmcache-go: a C compiler. With --dev also what the Go tests and the load generator
# need: pkg-config and the headers of libzmq, the peer that they test against. With --test also what `make test` needs
# beyond that: a Python that can make environments.
# Says what is missing and installs it where it can (apt-get, as root or through sudo); elsewhere it prints the
# packages to install. When nothing is missing it only says so: no network, a fraction of a second.
set -euo pipefail
cd "$(dirname "$0")/.."

want_dev='' want_test=''
case ${1:-} in
  --test) want_dev=1 want_test=1 ;;
  --dev) want_dev=1 ;;
  '') ;;
  *) echo "usage: scripts/deps.sh [--dev | --test]" >&2; exit 2 ;;
esac

say() { echo "deps: $*" >&2; }

# What each thing is called by each package manager.
apt_of() { case $1 in cc) echo gcc libc6-dev ;; pkg-config) echo pkg-config ;; libzmq) echo libzmq3-dev ;; python) echo python3 python3-venv ;; esac; }
dnf_of() { case $1 in cc) echo gcc ;; pkg-config) echo pkgconf-pkg-config ;; libzmq) echo zeromq-devel ;; python) echo python3 ;; esac; }
apk_of() { case $1 in cc) echo gcc musl-dev ;; pkg-config) echo pkgconf ;; libzmq) echo zeromq-dev ;; python) echo python3 ;; esac; }
brew_of() { case $1 in cc) echo gcc ;; pkg-config) echo pkgconf ;; libzmq) echo zeromq ;; python) echo python@3.11 ;; esac; }
pacman_of() { case $1 in cc) echo gcc ;; pkg-config) echo pkgconf ;; libzmq) echo zeromq ;; python) echo python ;; esac; }

# Go is not installed for anybody: too many ways to have it. Its version comes from go.mod.
check_go() {
  local need have
  need=$(awk '$1 == "go" {print $2; exit}' go.mod)
  if ! command -v go >/dev/null; then
    say "Go $need or newer is missing: install it from https://go.dev/dl/ or your packages, and put it into PATH"
    return 1
  fi
  # In this folder `go` itself refuses when it is too old and may not fetch a newer one.
  if ! have=$(go env GOVERSION 2>&1); then
    say "Go is too old, go.mod asks for $need: $have"
    return 1
  fi
  have=${have#go}
  if [ "$(printf '%s\n%s\n' "$need" "${have%%[!0-9.]*}" | sort -V | head -n 1)" != "$need" ]; then
    say "Go $have is too old, go.mod asks for $need or newer"
    return 1
  fi
}

has_cc() { command -v "${CC:-cc}" >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null; }
has_pkg_config() { command -v "${PKG_CONFIG:-pkg-config}" >/dev/null; }
has_libzmq() { has_pkg_config && "${PKG_CONFIG:-pkg-config}" --exists 'libzmq >= 4.2'; }
has_python() { [ -n "${LMCACHE_GO_PYTHON:-}" ] || python3 -c 'import venv, ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

missing() {
  has_cc || echo cc
  if [ -n "$want_dev" ]; then
    has_pkg_config || echo pkg-config
    has_libzmq || echo libzmq
  fi
  if [ -n "$want_test" ]; then has_python || echo python; fi
}

names() { # names MANAGER THING...: the packages of these things
  local of=$1_of; shift
  for thing in "$@"; do "$of" "$thing"; done | xargs
}

install_apt() {
  local sudo=$1; shift
  local get=(env DEBIAN_FRONTEND=noninteractive apt-get)
  [ -z "$sudo" ] || get=("$sudo" "${get[@]}")
  say "installing with apt-get: $*"
  # The first try may know the packages already; only if not, the lists are fetched.
  "${get[@]}" install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 && return
  "${get[@]}" update -qq >/dev/null
  "${get[@]}" install -y -qq --no-install-recommends "$@" >/dev/null
}

check_go
mapfile -t lacking < <(missing)
if [ ${#lacking[@]} -eq 0 ]; then
  say "nothing is missing"
  exit 0
fi
say "missing: ${lacking[*]}"

if command -v apt-get >/dev/null; then
  read -r -a packages <<<"$(names apt "${lacking[@]}")"
  if [ "$(id -u)" = 0 ]; then
    install_apt '' "${packages[@]}"
  elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
    install_apt sudo "${packages[@]}"
  else
    say "as root: apt-get install ${packages[*]}"
    exit 1
  fi
else
  for manager in dnf apk brew pacman; do
    if command -v "$manager" >/dev/null; then
      case $manager in
        apk) verb=add ;;
        pacman) verb=-S ;;
        *) verb=install ;;
      esac
      say "install them: $manager $verb $(names "$manager" "${lacking[@]}")"
      exit 1
    fi
  done
  say "no package manager that this script knows: install by hand: ${lacking[*]} (cc: a C compiler; libzmq: its headers, 4.2 or newer)"
  exit 1
fi

mapfile -t lacking < <(missing)
if [ ${#lacking[@]} -ne 0 ]; then
  say "still missing after the installation: ${lacking[*]}"
  exit 1
fi
say "done"
