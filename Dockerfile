# The image: the static program, certificate authorities, the licence. Below 25 MiB, for amd64 and arm64.
#
#   docker buildx build --platform linux/amd64,linux/arm64 .                                 compiles for both, without emulation
#   docker buildx build --target files --output dist --platform linux/arm64 .                compiles only, into dist
#   docker buildx build --build-context files=dist --platform linux/amd64,linux/arm64 .      only the last stage, from such files
#
# The compiler runs on the build machine's architecture. Another mirror:
# --build-context docker.io/library/rust:1.99.1-slim-trixie=docker-image://MIRROR/rust:1.99.1-slim-trixie
# The image's name stands here itself, because Dependabot reads no ARG.
FROM --platform=$BUILDPLATFORM docker.io/library/rust:1.99.1-slim-trixie AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# Debian provides Python, which installs zig, and the certificates; neither becomes part of the program.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /ebbtide
ENV EBBTIDE_CACHE=/cache CARGO_TARGET_DIR=/target
# The tools have their own layer, because they change less often than the sources.
COPY deploy/image/ deploy/image/
RUN deploy/image/build-binary --tools-only
COPY build.rs Cargo.toml Cargo.lock ./
COPY benches benches
COPY examples examples
COPY src src
COPY tests tests
ARG TARGETARCH
# The commit, which `ebbtide --version` shows.
ARG REVISION=""
# `login` for the programs of a release's archives.
ARG FEATURES=""
RUN EBBTIDE_COMMIT="${REVISION}" EBBTIDE_FEATURES="${FEATURES}" deploy/image/build-binary "${TARGETARCH}" /out \
    && cp /etc/ssl/certs/ca-certificates.crt /out/

# The input of the last stage, as `--output` writes it and `--build-context files=FOLDER` reads it:
# linux/amd64/ebbtide or linux/arm64/ebbtide, and ca-certificates.crt.
FROM scratch AS files
COPY --from=build /out/ /

FROM scratch
ARG TARGETARCH
ARG VERSION=0.0.0-dev
ARG REVISION=unknown
ARG SOURCE=https://ebbtide.invalid/ebbtide
LABEL org.opencontainers.image.title="Ebbtide" \
      org.opencontainers.image.description="Drains Kubernetes nodes before AWS takes them away" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.documentation="${SOURCE}/blob/${REVISION}/README.md" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --chmod=0644 LICENSE /LICENSE
# The TLS library's default path.
COPY --from=files --chmod=0644 /ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=files --chmod=0755 /linux/${TARGETARCH}/ebbtide /ebbtide
# A number, because Kubernetes' runAsNonRoot needs one and the image has no /etc/passwd.
USER 65532:65532
ENTRYPOINT ["/ebbtide"]
