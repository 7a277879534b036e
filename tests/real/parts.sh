# Builds the programs and the parts for .ci/run and the scripts of the tests, which set `here` to this folder and source this file.
# shellcheck shell=bash disable=SC2034,SC2154 # the sourcing scripts set and use these variables

# shellcheck source=deploy/image/once.sh
source "$here/../../deploy/image/once.sh"

# build PROFILE PACKAGE…: builds the programs of these packages and prints their folder.
build() {
    local profile=$1 folder=$1 package arguments=()
    shift
    if [[ $profile == dev || $profile == ci ]]; then
        # With the dependencies of examples, so that cargo reuses the libraries of `cargo test --workspace`.
        folder=${profile/dev/debug}
        arguments=(--workspace --bins --examples)
    else
        for package in "$@"; do
            arguments+=(--package "$package" --bin "$package")
        done
    fi
    (cd "$root" && cargo build --locked --profile "$profile" "${arguments[@]}" >&2)
    echo "${CARGO_TARGET_DIR:-$root/target}/$folder"
}

# login_program PROFILE: builds the program with the feature `login`, as in a release's archives, with the profile `dev` or `ci`, and prints
# its path.
login_program() {
    local folder=${CARGO_TARGET_DIR:-$root/target}/${1/dev/debug}
    (cd "$root" && cargo build --locked --profile "$1" --workspace --bins --examples --features ebbtide/login >&2)
    # The next build without the feature takes its place.
    cp "$folder/ebbtide" "$folder/ebbtide-login"
    echo "$folder/ebbtide-login"
}

# Builds the receiver of traces, which reads them with the OpenTelemetry Collector's own module.
collector() { # FOLDER
    (cd "$here/collector" && GOWORK=off CGO_ENABLED=0 with_go nice -n 10 go build -trimpath -o "$1/collector" .)
}

# Builds AWS's mock of the instance metadata service.
metadata_mock() { # FOLDER
    (cd "$here/metadata-mock" && GOWORK=off CGO_ENABLED=0 with_go nice -n 10 go build -trimpath -o "$1/ec2-metadata-mock" \
        github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock)
}

# Fetches ElasticMQ with Maven, and refuses jars other than those of jars.sha256.
#
# For a new release: change pom.xml, run Maven as below, and write the output of `sha256sum -- *.jar` to jars.sha256.
elasticmq() { # FOLDER
    with_java
    mvn --batch-mode --quiet --no-transfer-progress --file "$here/elasticmq/pom.xml" -Dmaven.repo.local="$1/repository" \
        org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$1/jars"
    rm -rf "$1/repository"
    (cd "$1/jars" && LC_ALL=C sha256sum -- *.jar) | diff "$here/elasticmq/jars.sha256" -
}

# Installs Maven, and Java with it, as root on Debian.
with_java() {
    command -v mvn >/dev/null && command -v java >/dev/null && return
    debian_packages maven ||
        { echo "tests/real: no Maven and Java: install them, or run as root on Debian, where apt installs them" >&2 && return 1; }
}

# Builds the harness's parts and exports their paths.
export_parts() {
    local digest
    digest=$(cat "$here"/collector/{main.go,go.mod,go.sum} | sha256sum | cut -c 1-12)
    once "$cache/collector-$digest" collector
    EBBTIDE_COLLECTOR=$cache/collector-$digest/collector
    digest=$(cat "$here"/metadata-mock/{go.mod,go.sum} | sha256sum | cut -c 1-12)
    once "$cache/metadata-mock-$digest" metadata_mock
    EBBTIDE_METADATA_MOCK=$cache/metadata-mock-$digest/ec2-metadata-mock
    digest=$(cat "$here"/elasticmq/{pom.xml,jars.sha256} | sha256sum | cut -c 1-12)
    once "$cache/elasticmq-$digest" elasticmq
    EBBTIDE_ELASTICMQ=$cache/elasticmq-$digest/jars
    python=$(python_with "$here/requirements.txt")/bin/python
    EBBTIDE_CONTROL_PLANE=$(with_go "$here/control-plane/build" "$cache" "${EBBTIDE_KUBERNETES:-}")
    EBBTIDE_KUBECTL=$(with_go "$here/control-plane/build-kubectl" "$cache")
    PYTHONDONTWRITEBYTECODE=1
    export EBBTIDE_COLLECTOR EBBTIDE_METADATA_MOCK EBBTIDE_ELASTICMQ EBBTIDE_CONTROL_PLANE EBBTIDE_KUBECTL PYTHONDONTWRITEBYTECODE
}
