# What builds the program for the image, with its versions. Sourced by the scripts of this folder; `here` is this folder.
# shellcheck shell=bash disable=SC2034,SC2154 # what is set here is used there, and the other way round

# A failed build in a command substitution must not leave an older program to be used.
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$here/../.." && pwd)
cache=${EBBTIDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ebbtide}

# Another compiler makes other bytes: it is named here, and a build with any other says so.
rust_version=1.95.0
auditable_version=0.7.7
audit_info_version=0.5.4
cyclonedx_version=0.5.9

# targets: what a release is made for, and what images call it.
declare -A platforms=(
    [x86_64-unknown-linux-musl]=linux/amd64
    [aarch64-unknown-linux-musl]=linux/arm64
)

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# Prints the folder of a virtual environment with zig and cargo-zigbuild in it; two runs at once make it once.
zig() {
    local digest target
    digest=$({ python3 --version && cat "$here/requirements.txt"; } | sha256sum | cut -c 1-12)
    target=$cache/image-$digest
    mkdir -p "$cache"
    (
        flock 9
        if [[ ! -e $target/complete ]]; then
            echo "deploy/image: installing zig" >&2
            rm -rf "$target"
            python3 -m venv "$target"
            "$target/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes \
                -r "$here/requirements.txt" >&2
            touch "$target/complete"
        fi
    ) 9>"$target.lock"
    echo "$target"
}

# cargo_tool CRATE VERSION: prints the program's path; builds it once. Unoptimised: it is built in a minute and runs for a second.
cargo_tool() {
    local crate=$1 version=$2 home=$cache/$1-$2
    mkdir -p "$cache"
    (
        flock 9
        if [[ ! -x $home/bin/$crate ]]; then
            echo "deploy/image: building $crate $version" >&2
            env -u CARGO_TARGET_DIR -u RUSTFLAGS cargo install "$crate" --version "$version" --locked --quiet --root "$home" \
                --target-dir "$home/target" --profile dev --config profile.dev.debug=false >&2
            rm -rf "$home/target"
        fi
    ) 9>"$home.lock"
    echo "$home/bin/$crate"
}
