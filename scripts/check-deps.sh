#!/usr/bin/env bash
# The dependency policy, checked against Cargo.lock and cargo's metadata:
# - one TLS crypto provider (ring): a second one arrives through default features;
# - permissive licences only;
# - everything from the registry, nothing from git;
# - rooms depend in one direction (docs/architecture.md).
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "check-deps: $*" >&2; exit 1; }

for banned in aws-lc-rs aws-lc-sys openssl openssl-sys native-tls chrono serde_yaml; do
  if grep -q "^name = \"$banned\"$" Cargo.lock; then
    fail "$banned is in Cargo.lock; find who brings it: cargo tree -i $banned"
  fi
done
if grep -q '^source = "git' Cargo.lock; then fail "a dependency comes from git; use a released version"; fi

cargo metadata --format-version 1 --locked >target/metadata.json
python3 - target/metadata.json <<'P'
import json, re, sys
meta = json.load(open(sys.argv[1]))
allowed = {"MIT", "MIT-0", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC", "BSD-2-Clause", "BSD-3-Clause",
           "0BSD", "Zlib", "Unicode-3.0", "Unlicense", "CC0-1.0", "CDLA-Permissive-2.0", "BSL-1.0", "MPL-2.0"}
bad = []
for p in meta["packages"]:
    licence = p["license"] or ""
    # An expression is fine when every AND-part has an allowed OR-choice.
    parts = [x.strip(" ()") for x in re.split(r"\bAND\b", licence.replace("/", " OR "))]
    if not licence or not all(any(c.strip(" ()") in allowed for c in part.split(" OR ")) for part in parts):
        bad.append(f'{p["name"]} {p["version"]}: {licence or "no licence"}')
if bad:
    sys.exit("check-deps: licences not allowed:\n  " + "\n  ".join(bad))
rooms = {"ovsdb": set(), "crds": set(), "secure": set(), "cni": {"crds"}, "daemon": {"cni", "ovsdb", "crds", "secure"},
         "controller": {"ovsdb", "crds", "secure"}, "cli": {"crds", "ovsdb"}, "lab": set(), "e2e": {"lab", "crds", "ovsdb"}}
ours = set(rooms)
for p in meta["packages"]:
    if p["source"] is None and p["name"] in ours:
        deps = {d["name"] for d in p["dependencies"] if d["kind"] in (None, "normal") and d["name"] in ours}
        if deps - rooms[p["name"]]:
            sys.exit(f'check-deps: {p["name"]} may not depend on {sorted(deps - rooms[p["name"]])}')
P
echo "check-deps: fine"
