# What tests/real/run and tests/real/storm need and build once. Sourced by them; `here` is this folder.
# shellcheck shell=bash disable=SC2034,SC2154 # what is set here is used there, and the other way round

# shellcheck source=deploy/image/once.sh
source "$here/../../deploy/image/once.sh"

# build PROFILE PACKAGE…: builds the programs of these packages, and prints the folder that they are in.
build() {
    local profile=$1 folder=$1 package arguments=()
    shift
    if [[ $profile == dev ]]; then
        # With what examples may depend on, so the libraries are those that `cargo test --workspace` has built.
        folder=debug
        arguments=(--workspace --bins --examples)
    else
        for package in "$@"; do
            arguments+=(--package "$package" --bin "$package")
        done
    fi
    (cd "$root" && cargo build --locked --profile "$profile" "${arguments[@]}" >&2)
    echo "${CARGO_TARGET_DIR:-$root/target}/$folder"
}

# Builds what the harness stands on, and tells it where that is.
export_parts() {
    python=$(python_with "$here/requirements.txt")/bin/python
    EBBTIDE_CONTROL_PLANE=$(with_go "$here/control-plane/build" "$cache")
    EBBTIDE_KUBECTL=$(with_go "$here/control-plane/build-kubectl" "$cache")
    PYTHONDONTWRITEBYTECODE=1
    export EBBTIDE_CONTROL_PLANE EBBTIDE_KUBECTL PYTHONDONTWRITEBYTECODE
}
