#!/bin/sh
# Builds the CNI executable for aarch64 on an amd64 Debian 12 machine, statically linked, and runs it once under emulation.
#
# Cargo's own toolchain has no aarch64 standard library where only package registries can be reached, but Debian carries
# a recent compiler (rustc-web) with the standard library of every architecture. It conflicts with other Rust packages,
# so it is unpacked beside the build, not installed. From the system: the cross linker, and qemu for the check.
#
# Usage: cni/build-arm64.sh [OUTPUT]     (default: target/arm64/kube-ovn)
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
work=$root/target/arm64
output=${1:-$work/kube-ovn}
# The unpacked compiler is shared by all clones, as everything is that is slow to make.
cross=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}/arm64-cross

if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v qemu-aarch64-static >/dev/null; then
    echo "== cross linker and emulator (apt)" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static >/dev/null
fi

if [ ! -e "$cross/done" ]; then
    echo "== compiler and standard libraries (apt, unpacked into $cross)" >&2
    rm -rf "$cross"
    mkdir -p "$cross/lists/partial" "$cross/cache/archives/partial" "$cross/debs" "$cross/root"
    # Lists of its own, so that the system does not become a two-architecture one.
    cat > "$cross/apt.conf" <<CONF
APT::Architectures { "amd64"; "arm64"; };
APT::Sandbox::User "root";
Dir::State::lists "$cross/lists";
Dir::Cache "$cross/cache";
CONF
    APT_CONFIG=$cross/apt.conf
    export APT_CONFIG
    # A further source of this machine may have no arm64 packages; Debian's own has.
    apt-get update -qq || true
    version=$(apt-cache policy rustc-web | sed -n 's/.*Candidate: //p')
    short=$(echo "$version" | cut -d. -f1,2)
    llvm=$(apt-cache show "libstd-rust-web-$short:amd64=$version" | sed -n 's/^Depends:.*\(libllvm[0-9]*\).*/\1/p')
    (
        cd "$cross/debs"
        apt-get download -qq "rustc-web=$version" "libstd-rust-web-$short:amd64=$version" "$llvm:amd64" \
            "libstd-rust-web-dev:amd64=$version" "libstd-rust-web-dev:arm64=$version"
        for package in *.deb; do dpkg -x "$package" "$cross/root"; done
    )
    unset APT_CONFIG
    cat > "$cross/rustc" <<RUSTC
#!/bin/sh
LD_LIBRARY_PATH=\$(echo "$cross"/root/usr/lib/x86_64-linux-gnu:"$cross"/root/usr/lib/llvm-*/lib)
export LD_LIBRARY_PATH
exec "$cross/root/usr/bin/rustc" "\$@"
RUSTC
    chmod 0755 "$cross/rustc"
    rm -rf "$cross/debs" "$cross/cache" "$cross/lists"
    "$cross/rustc" --version >&2
    : > "$cross/done"
fi

echo "== building" >&2
RUSTC=$cross/rustc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    cargo rustc --locked -q --manifest-path "$root/Cargo.toml" --target-dir "$work/target" \
    -p cni --bin kube-ovn --profile dist --target aarch64-unknown-linux-gnu -- -C target-feature=+crt-static
install -D -m 0755 "$work/target/aarch64-unknown-linux-gnu/dist/kube-ovn" "$output"

echo "== a first call under emulation" >&2
answer=$(echo '{"cniVersion":"1.1.0"}' | CNI_COMMAND=VERSION qemu-aarch64-static "$output")
case $answer in
    *'"supportedVersions"'*) echo "$output: $(wc -c < "$output") bytes, static, answers" >&2 ;;
    *) echo "$output answers: $answer" >&2; exit 1 ;;
esac
