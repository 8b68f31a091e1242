# syntax=docker/dockerfile:1
#
#   docker build -t sinews .
#   docker run -p 127.0.0.1:8080:8080 --ulimit nofile=1048576:1048576 --stop-timeout 20 sinews
#
# Docker's default seccomp profile denies io_uring: the server logs one line about it and uses epoll.
# docs/book/src/operate/deploy.md describes how to permit it, and how to provide a configuration and keys.

# Alpine's C library is linked statically. `ring` needs a C compiler, which the image has.
FROM rust:1-alpine AS build
WORKDIR /build
COPY . .
# The commit in `sinews --version`: `--build-arg SINEWS_COMMIT=$(git rev-parse --short HEAD)`.
ARG SINEWS_COMMIT=unknown
# HTTP/3, and brokers that can store streams (`--store`), histories and keys (`--cluster-store`), as in the archives. `--build-arg SINEWS_FEATURES=kafka` builds
# librdkafka.
ARG SINEWS_FEATURES=http3,nats,redis
RUN case ",$SINEWS_FEATURES," in *,kafka,*) apk add --no-cache \
      bash g++ make perl pkgconf openssl-dev openssl-libs-static zlib-dev zlib-static ;; esac
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    OPENSSL_STATIC=1 cargo rustc --profile dist --locked --package sinews-cli --bin sinews --features "$SINEWS_FEATURES" \
      -- -Cstrip=debuginfo && \
    cp target/dist/sinews /sinews && mkdir /empty

# The program, certificates of public authorities, and two folders: no C library, no shell.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chmod=1777 /empty /tmp
# A new volume at this path belongs to the user of the program.
COPY --from=build --chown=65532:65532 /empty /var/lib/sinews
COPY --from=build /sinews /usr/local/bin/sinews
USER 65532:65532
ENV SINEWS_LISTEN=0.0.0.0:8080
# UDP is for HTTP/3 (SINEWS_HTTP_HTTP3 with a certificate), which is off by default.
EXPOSE 8080 8080/udp
# SIGTERM, which `docker stop` sends, stops gracefully within 15 s.
STOPSIGNAL SIGTERM
# It asks for /healthz at port 8080 without TLS; SINEWS_HEALTH_URL names another address. Orchestrators that probe from outside
# use GET /healthz for restarts, and GET /readyz for new clients.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["/usr/local/bin/sinews", "health"]
ENTRYPOINT ["/usr/local/bin/sinews"]
CMD ["serve"]
