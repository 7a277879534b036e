# Builds the parts for tests/real/run and tests/real/storm, which source this file and set `here` to this folder.
# shellcheck shell=bash disable=SC2034,SC2154 # the sourcing scripts set and use these variables

# shellcheck source=deploy/image/once.sh
source "$here/../../deploy/image/once.sh"

# build PROFILE PACKAGE…: builds the programs of these packages and prints their folder.
build() {
    local profile=$1 folder=$1 package arguments=()
    shift
    if [[ $profile == dev ]]; then
        # With the dependencies of examples, so that cargo reuses the libraries of `cargo test --workspace`.
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

# Builds the receiver of traces, which reads them with the OpenTelemetry Collector's own module.
collector() { # FOLDER
    (cd "$here/collector" && GOWORK=off CGO_ENABLED=0 with_go nice -n 10 go build -trimpath -o "$1/collector" .)
}

# Builds the harness's parts and exports their paths.
export_parts() {
    local digest
    digest=$(cat "$here"/collector/{main.go,go.mod,go.sum} | sha256sum | cut -c 1-12)
    once "$cache/collector-$digest" collector
    EBBTIDE_COLLECTOR=$cache/collector-$digest/collector
    python=$(python_with "$here/requirements.txt")/bin/python
    EBBTIDE_CONTROL_PLANE=$(with_go "$here/control-plane/build" "$cache")
    EBBTIDE_KUBECTL=$(with_go "$here/control-plane/build-kubectl" "$cache")
    PYTHONDONTWRITEBYTECODE=1
    export EBBTIDE_COLLECTOR EBBTIDE_CONTROL_PLANE EBBTIDE_KUBECTL PYTHONDONTWRITEBYTECODE
}
