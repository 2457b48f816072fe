#!/bin/bash
# The OVSDB client beside ovn-nbctl and the Python binding of OVS: docs/ovsdb.md.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}
# A Python with the binding, once per machine.
if [ -z "${WEIR_BENCH_PYTHON:-}" ]; then
  [ -x "$cache/bench-python/bin/python" ] || python3 -m venv "$cache/bench-python"
  "$cache/bench-python/bin/python" -c 'import ovs.db.idl' 2>/dev/null ||
    "$cache/bench-python/bin/pip" install -q 'ovs==3.5.1' sortedcontainers
  export WEIR_BENCH_PYTHON=$cache/bench-python/bin/python
fi
export WEIR_OVS_ROOT=${WEIR_OVS_ROOT:-$(target/debug/lab ovs-root)}
cargo bench -q -p ovsdb --bench compare
cargo run -q --release -p ovsdb --example memory -- 100000
