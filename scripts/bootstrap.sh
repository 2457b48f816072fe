#!/usr/bin/env bash
# Makes sure that the few things cargo itself needs are on a fresh Debian 12
# machine: a C compiler for linking, git and make. Rust and Go are expected.
# Everything else is installed by the `lab` program when it needs it.
set -euo pipefail

missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v git >/dev/null || missing+=(git)
command -v python3 >/dev/null || missing+=(python3-minimal)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
if [ ${#missing[@]} -gt 0 ]; then
  echo "bootstrap: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

for tool in cargo go; do
  if ! command -v "$tool" >/dev/null; then
    echo "bootstrap: $tool is not on the PATH; install it first (Rust by rustup, Go from your distribution or its archive)" >&2
    exit 1
  fi
done
if [ "$(id -u)" != 0 ]; then
  echo "bootstrap: Weir's lab makes network namespaces and mounts: run as root" >&2
  exit 1
fi
for component in fmt clippy; do
  cargo "$component" --version >/dev/null 2>&1 || rustup component add "${component/fmt/rustfmt}"
done
