# Builds tools once and keeps them outside the checkout. Scripts of this folder and of the tests source this file. It is here because
# the Dockerfile copies this folder only.
# shellcheck shell=bash disable=SC2034 # the sourcing scripts use these variables

# A failed build in a command substitution must end the script, which would otherwise use an older program.
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${EBBTIDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ebbtide}

# once FOLDER COMMAND…: creates a folder with `COMMAND… FOLDER`, once even in concurrent runs, and never partially.
# Don't call it in a condition: bash then continues after errors, and marks a failed folder as complete.
once() {
    local folder=$1
    shift
    mkdir -p "$(dirname "$folder")"
    (
        flock 9
        if [[ ! -e $folder/complete ]]; then
            echo "${0##*/}: building $folder, once" >&2
            rm -rf "$folder"
            mkdir "$folder"
            "$@" "$folder" >&2
            touch "$folder/complete"
        fi
    ) 9>"$folder.lock"
}

# with_go COMMAND…: retries a program that downloads Go modules. Go requests each module only once, so one failed download fails
# the build; a retry keeps what was downloaded and built. Don't pass functions: after an error they would continue here.
with_go() {
    local attempt
    for attempt in 1 2; do
        "$@" && return
        command -v go >/dev/null || return 1
        echo "${0##*/}: failed, perhaps during a download: retrying in $((attempt * 10)) s" >&2
        sleep $((attempt * 10))
    done
    "$@"
}

# go_source MODULE@VERSION: prints the folder in which Go keeps its source.
go_source() {
    # Runs outside folders with a go.mod, which would affect the command.
    (cd / && GOWORK=off GOFLAGS=-mod=mod with_go go mod download -json "$1") | awk -F '"' '$2 == "Dir" { print $4 }'
}

# python_with FILE: prints the folder of a virtual environment with the packages that FILE lists, each with the hashes of its files.
python_with() {
    local digest
    digest=$({ python3 --version && cat "$1"; } | sha256sum | cut -c 1-12)
    once "$cache/python-$digest" virtual_environment "$1"
    echo "$cache/python-$digest"
}

virtual_environment() { # FILE FOLDER
    python3 -m venv "$2"
    "$2/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$1"
}

# debian_packages PACKAGE…: installs packages as root on Debian, one call at a time: apt does not wait for its own lock.
debian_packages() {
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return
    mkdir -p "$cache"
    (
        flock 9
        apt-get install --yes --quiet --no-install-recommends "$@" >&2 ||
            { apt-get update --quiet >&2 && apt-get install --yes --quiet --no-install-recommends "$@" >&2; }
    ) 9>"$cache/apt.lock"
}

# compiler VERSION: installs a version of Rust by rustup, unless it is there. The default toolchain stays the same.
compiler() {
    mkdir -p "$cache"
    (
        flock 9
        rustup toolchain list | grep "^$1-" >/dev/null ||
            rustup toolchain install "$1" --profile minimal --no-self-update >&2 ||
            { echo "${0##*/}: Rust $1 is missing, and rustup could not install it; see above" >&2 && exit 1; }
    ) 9>"$cache/rustup.lock"
}

# cargo_tool CRATE VERSION [FEATURES]: builds a tool, with its default features or only these, and prints its path. Unoptimised: the build
# takes a minute, a run one second.
cargo_tool() {
    once "$cache/$1-$2" install_crate "$@"
    echo "$cache/$1-$2/bin/$1"
}

install_crate() { # CRATE VERSION [FEATURES] FOLDER
    local folder=${!#} features=()
    (($# < 4)) || features=(--no-default-features --features "$3")
    env -u CARGO_TARGET_DIR -u RUSTFLAGS cargo install "$1" --version "$2" "${features[@]}" --locked --quiet --root "$folder" \
        --target-dir "$folder/target" --profile dev --config profile.dev.debug=false
    rm -rf "$folder/target"
}
