# The tools that build the program for the image, with their versions. The scripts of this folder and tests/deploy/image source this
# file and set `here` to deploy/image.
# shellcheck shell=bash disable=SC2034,SC2154 # the sourcing scripts set and use these variables

# shellcheck source=deploy/image/once.sh
source "$here/once.sh"

# The compiler determines the program's bytes. The Dockerfile repeats the version; tests/deploy/image compares the two.
rust_version=1.99.1
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

# Prints the Rust target of an image's architecture, or of a program for macOS.
target_of() {
    case $1 in
        amd64) echo x86_64-unknown-linux-musl ;;
        arm64) echo aarch64-unknown-linux-musl ;;
        darwin-amd64) echo x86_64-apple-darwin ;;
        darwin-arm64) echo aarch64-apple-darwin ;;
        *) fail "name a processor: amd64 or arm64, or darwin-amd64 or darwin-arm64" ;;
    esac
}

zig() {
    python_with "$here/requirements.txt"
}
