# What builds the program for the image, with its versions. Sourced by the scripts of this folder and by tests/deploy/image, which
# set `here` to deploy/image.
# shellcheck shell=bash disable=SC2034,SC2154 # what is set here is used there, and the other way round

# A failed build in a command substitution must not leave an older program to be used.
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$here/../.." && pwd)
cache=${EBBTIDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ebbtide}

# Another compiler makes other bytes. The Dockerfile names it, too, and tests/deploy/image compares the two.
rust_version=1.95.0
auditable_version=0.7.7
audit_info_version=0.5.4
cyclonedx_version=0.5.9

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# need PROGRAM REMEDY
need() {
    command -v "$1" >/dev/null || fail "$1 is missing: $2"
}

# What Rust calls the target that images call so.
target_of() {
    case $1 in
        amd64) echo x86_64-unknown-linux-musl ;;
        arm64) echo aarch64-unknown-linux-musl ;;
        *) fail "say for which processor: amd64 or arm64" ;;
    esac
}

# environment FILE: prints the folder of a virtual environment with the packages of FILE in it; two runs at
# once make it once.
environment() {
    local file=$1 digest target
    digest=$({ python3 --version && cat "$file"; } | sha256sum | cut -c 1-12)
    target=$cache/image-$digest
    mkdir -p "$cache"
    (
        flock 9
        if [[ ! -e $target/complete ]]; then
            echo "${0##*/}: installing what ${file##*/} of ${file%/*} lists" >&2
            rm -rf "$target"
            python3 -m venv "$target"
            "$target/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$file" >&2
            touch "$target/complete"
        fi
    ) 9>"$target.lock"
    echo "$target"
}

zig() {
    environment "$here/requirements.txt"
}

# cargo_tool CRATE VERSION: prints the program's path; builds it once. Unoptimised: it is built in a minute and runs for a second.
cargo_tool() {
    local crate=$1 version=$2 home=$cache/$1-$2
    mkdir -p "$cache"
    (
        flock 9
        if [[ ! -x $home/bin/$crate ]]; then
            echo "${0##*/}: building $crate $version" >&2
            env -u CARGO_TARGET_DIR -u RUSTFLAGS cargo install "$crate" --version "$version" --locked --quiet --root "$home" \
                --target-dir "$home/target" --profile dev --config profile.dev.debug=false >&2
            rm -rf "$home/target"
        fi
    ) 9>"$home.lock"
    echo "$home/bin/$crate"
}
