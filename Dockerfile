# syntax=docker/dockerfile:1
#
#   docker build -t sinews .
#   docker run -p 8080:8080 --ulimit nofile=1048576:1048576 --stop-timeout 20 sinews
#
# Docker's default seccomp profile denies io_uring: the server logs one line about it and uses epoll.
# docs/book/src/operate/deploy.md describes how to permit it, and how to provide a configuration and keys.

# The same Debian release as below, for the same C library. `ring` needs a C compiler, which the image has.
FROM rust:1-slim-bookworm AS build
WORKDIR /build
COPY . .
# The commit in `sinews --version`: `--build-arg SINEWS_COMMIT=$(git rev-parse --short HEAD)`.
ARG SINEWS_COMMIT=unknown
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --release --locked --package sinews-cli && cp target/release/sinews /sinews

# The C library and nothing else: no shell, no package manager. Its user `nonroot` is 65532.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /sinews /usr/local/bin/sinews
ENV SINEWS_LISTEN=0.0.0.0:8080
EXPOSE 8080
# SIGTERM, which `docker stop` sends, stops gracefully within 15 s.
STOPSIGNAL SIGTERM
# There is no HEALTHCHECK: it would need an HTTP client within the image. The orchestrator probes from outside:
# GET /healthz decides on a restart, GET /readyz on new clients.
ENTRYPOINT ["/usr/local/bin/sinews"]
CMD ["serve"]
