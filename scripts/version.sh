#!/usr/bin/env bash
# Prints the version that a build carries. A tag when there is one (v1.2.0, or v1.2.0-3-gabc1234 after it),
# else 0.0.0 with the commit; a tree without git is 0.0.0-unknown. "-dirty" when files differ from the commit.
set -euo pipefail
cd "$(dirname "$0")/.."

if tag=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null); then
  echo "$tag"
elif commit=$(git describe --always --exclude '*' --dirty 2>/dev/null); then
  echo "0.0.0-$commit"
else
  echo "0.0.0-unknown"
fi
