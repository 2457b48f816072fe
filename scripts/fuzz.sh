#!/bin/bash
# Runs the fuzzers of the OVSDB client side by side, each for FUZZ_SECONDS.
# What they find is left below ovsdb/fuzz/artifacts; the corpus in the tree is only read.
set -euo pipefail
cd "$(dirname "$0")/../ovsdb/fuzz"
seconds=${FUZZ_SECONDS:-3600}
sanitizer=${FUZZ_SANITIZER:-address}
command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
cargo +nightly fuzz build --fuzz-dir . --sanitizer "$sanitizer"
declare -A running
for target in framer notation delta; do
  mkdir -p "findings/$target" "artifacts/$target"
  cargo +nightly fuzz run --fuzz-dir . --sanitizer "$sanitizer" "$target" "findings/$target" "corpus/$target" -- \
    -max_total_time="$seconds" -print_final_stats=1 >"findings/$target.log" 2>&1 &
  running[$target]=$!
done
failed=0
for target in "${!running[@]}"; do
  if wait "${running[$target]}"; then verdict=clean; else verdict=FAILED; failed=1; fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "findings/$target.log")
  coverage=$(grep -o 'cov: [0-9]* ft: [0-9]*' "findings/$target.log" | tail -n 1)
  echo "$target: $verdict after ${runs:-?} runs, ${coverage:-no coverage} (ovsdb/fuzz/findings/$target.log)"
done
exit $failed
