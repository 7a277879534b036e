# What tests/real/run and tests/real/storm need and build once. Sourced by them; `here` is this folder.
# shellcheck shell=bash disable=SC2034,SC2154 # what is set here is used there, and the other way round

# A failed build in a command substitution must not leave an older program to be used.
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$here/../.." && pwd)
cache=${EBBTIDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ebbtide}

# Prints the folder of a virtual environment with requirements.txt in it; two runs at once make it once.
virtual_environment() {
    local digest target
    digest=$({ python3 --version && cat "$here/requirements.txt"; } | sha256sum | cut -c 1-12)
    target=$cache/python-$digest
    mkdir -p "$cache"
    (
        flock 9
        if [[ ! -e $target/complete ]]; then
            echo "tests/real: installing the Python packages" >&2
            rm -rf "$target"
            python3 -m venv "$target"
            "$target/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt" >&2
            touch "$target/complete"
        fi
    ) 9>"$target.lock"
    echo "$target"
}

# build PROFILE PACKAGE…: builds the programs of these packages, and prints the folder that they are in.
build() {
    local profile=$1 package arguments=()
    shift
    for package in "$@"; do
        arguments+=(--package "$package" --bin "$package")
    done
    (cd "$root" && cargo build --locked --profile "$profile" "${arguments[@]}" >&2)
    echo "${CARGO_TARGET_DIR:-$root/target}/$profile"
}

# Builds what the harness stands on, and tells it where that is.
export_parts() {
    python=$(virtual_environment)/bin/python
    EBBTIDE_CONTROL_PLANE=$("$here/control-plane/build" "$cache")
    EBBTIDE_KUBECTL=$("$here/control-plane/build-kubectl" "$cache")
    PYTHONDONTWRITEBYTECODE=1
    export EBBTIDE_CONTROL_PLANE EBBTIDE_KUBECTL PYTHONDONTWRITEBYTECODE
}
