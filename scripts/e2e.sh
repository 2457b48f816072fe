#!/usr/bin/env bash
# Brings up a lab of its own, runs the end-to-end tests on it, and ends it.
# usage: e2e.sh LAB-PROGRAM LAB-NAME [FAMILY [TEST-FILE...]]
#
# FAMILY is ipv4, ipv6 or dual (the default), a TEST-FILE one of tests/e2e/tests
# without its ending; by default all are run.
#
# On failure the logs of everything are collected below target/e2e-logs. With
# KEEP=1 the cluster stays for a look around.
set -euo pipefail
cd "$(dirname "$0")/.."
lab=$1 name=$2 family=${3:-dual}
files=()
for file in "${@:4}"; do files+=(--test "$file"); done

finish() {
  status=$?
  if [ $status != 0 ]; then
    "$lab" --name "$name" collect target/e2e-logs || true
    echo "e2e: failed; logs are in target/e2e-logs" >&2
  fi
  if [ "${KEEP:-0}" = 0 ]; then "$lab" --name "$name" down; fi
  exit $status
}
trap finish EXIT

"$lab" --name "$name" demo --nodes 2 --family "$family"
cargo build -q -p e2e --bins
WEIR_E2E_LAB=$name cargo test -p e2e "${files[@]}" -- --test-threads=1 --nocapture
