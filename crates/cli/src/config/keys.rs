//! Every key of the configuration file: description, expected value and default.

/// A key of the file. The flag of the same name (`-` for `.` and `_`) and the environment variable (`SINEWS_` and the
/// name in capitals) override it.
pub(crate) struct Key {
    /// Name with its table, as `auth.leeway`.
    pub(crate) name: &'static str,
    /// Default value in TOML.
    pub(crate) default: Option<&'static str>,
    /// Example value, for keys without a default.
    pub(crate) example: &'static str,
    /// Completes "must be".
    pub(crate) expected: &'static str,
    /// Description, one comment line per element.
    pub(crate) about: &'static [&'static str],
    /// Takes effect on reload (SIGHUP).
    pub(crate) reloads: bool,
}

/// A table of the file with its description.
pub(crate) const TABLES: &[(&str, &str)] = &[
    (
        "auth",
        "Authorization. Without a key, all clients may publish and subscribe: suitable only for local use.",
    ),
    ("streams", "Durable streams, stored on disk. Changes of this table need a restart."),
    (
        "limits",
        "Limits of the server. Excess is rejected with an HTTP status, counted at /metrics and logged.",
    ),
    (
        "tls",
        "Certificates enable TLS on every TCP address: https and wss. Enabling or disabling TLS needs a restart.",
    ),
    ("http", "Limits and timeouts of plain HTTP."),
    ("websocket", "Limits and timeouts of WebSockets; max_message and deflate are top-level keys."),
    ("stop", "Graceful shutdown on SIGTERM or SIGINT. A second signal stops the server immediately."),
];

pub(crate) const KEYS: &[Key] = &[
    Key {
        name: "listen",
        default: Some("[\"127.0.0.1:8080\"]"),
        example: "",
        expected: "an address such as \"127.0.0.1:8080\" or \"unix:/run/sinews.sock\", or a list of them",
        about: &[
            "Addresses to listen on: \"HOST:PORT\", \"PORT\" alone for 127.0.0.1, \":PORT\" for every interface, or \"unix:PATH\" for",
            "a Unix socket. Port 0 selects a free port.",
        ],
        reloads: false,
    },
    Key {
        name: "unix_mode",
        default: Some("\"0660\""),
        example: "",
        expected: "a string of octal digits such as \"0660\"",
        about: &[
            "Permissions of Unix sockets. \"0660\" permits the user and the group of the process to connect.",
        ],
        reloads: false,
    },
    Key {
        name: "proxy_protocol",
        default: Some("false"),
        example: "",
        expected: "true or false",
        about: &[
            "Expect a PROXY header, version 1 or 2, with the client's address at the start of every connection, as HAProxy,",
            "nginx and cloud load balancers send it. Any client that can connect can forge its address: permit only the proxy",
            "to connect.",
        ],
        reloads: false,
    },
    Key {
        name: "trusted_proxies",
        default: Some("[]"),
        example: "",
        expected: "a network such as \"10.0.0.0/8\", an address, \"unix\", or a list of them",
        about: &[
            "Networks of trusted proxies: their header with the client address is used, and their connections do not count",
            "for limits.max_connections_per_address. \"unix\" means all Unix sockets.",
        ],
        reloads: false,
    },
    Key {
        name: "trusted_header",
        default: Some("\"x-forwarded-for\""),
        example: "",
        expected: "\"x-forwarded-for\" or \"forwarded\"",
        about: &[
            "Header in which trusted proxies pass the client address. Other headers are ignored, since clients can forge",
            "them. The access log (access_log) contains this address.",
        ],
        reloads: false,
    },
    Key {
        name: "threads",
        default: None,
        example: "4",
        expected: "a whole number of at least 1",
        about: &[
            "Threads, each with its own event loop. Default: one per processor. Maximum: 64, or 4 per processor if that is",
            "more.",
        ],
        reloads: false,
    },
    Key {
        name: "backend",
        default: Some("\"auto\""),
        example: "",
        expected: "\"auto\", \"poll\" or \"uring\"",
        about: &[
            "I/O backend: \"uring\" is Linux's io_uring, \"poll\" is epoll or kqueue; \"auto\" uses io_uring if the system permits",
            "it.",
        ],
        reloads: false,
    },
    Key {
        name: "max_message",
        default: Some("\"16m\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &["Maximum size of a message or request body, in bytes; k, m and g mean KiB, MiB and GiB."],
        reloads: false,
    },
    Key {
        name: "deflate",
        default: Some("\"shared\""),
        example: "",
        expected: "\"off\", \"shared\" or \"dedicated\"",
        about: &[
            "Compression (permessage-deflate), if the client offers it: \"shared\" keeps no memory per connection between",
            "messages, \"dedicated\" keeps a context per connection and compresses better.",
        ],
        reloads: false,
    },
    Key {
        name: "origin",
        default: Some("\"same\""),
        example: "",
        expected: "\"same\", \"any\", or a list of origins such as [\"https://example.com\"]",
        about: &[
            "Origins whose pages may connect and publish: \"same\" (pages of this server), \"any\", or a list of origins such as",
            "[\"https://example.com\", \"http://localhost:3000\"].",
        ],
        reloads: true,
    },
    Key {
        name: "hosts",
        default: None,
        example: "[\"ws.example.com\", \"*.example.net\"]",
        expected: "\"any\", or a list of names such as [\"ws.example.com\", \"*.example.net\"]",
        about: &[
            "Host names of this server. Requests with another host are rejected with 421, which prevents DNS rebinding by web",
            "pages. Addresses, localhost and the hosts of `origin` are always accepted. By default, any name is accepted; but",
            "if `listen` contains no wildcard address, requests from this machine may only use names of this machine: behind",
            "a local proxy, list the public host. \"any\" disables the check.",
        ],
        reloads: true,
    },
    Key {
        name: "history",
        default: Some("[]"),
        example: "",
        expected: "a pattern of topics and a number of messages such as \"chat.>=100\", or a list of them",
        about: &[
            "Topics with a history for clients of /ws that reconnect or connect later: a pattern and a number of messages, as",
            "\"chat.>=100\"; the first matching pattern applies. At most 1 MiB is retained per topic, and",
            "limits.max_history_memory in total.",
        ],
        reloads: false,
    },
    Key {
        name: "log",
        default: Some("\"info\""),
        example: "",
        expected: "a level (\"error\", \"warn\", \"info\", \"debug\", \"trace\") or a filter such as \"sinews_engine=debug\"",
        about: &[
            "Lowest level to log (error, warn, info, debug, trace, off), or a filter such as sinews_engine=debug. Targets",
            "that the filter does not name are logged from info on.",
        ],
        reloads: true,
    },
    Key {
        name: "log_format",
        default: Some("\"text\""),
        example: "",
        expected: "\"text\" or \"json\"",
        about: &["Log format: \"text\" is human-readable, \"json\" is one JSON object per line."],
        reloads: false,
    },
    Key {
        name: "access_log",
        default: Some("false"),
        example: "",
        expected: "true or false",
        about: &["Log each response at level info: client, request and status."],
        reloads: false,
    },
    Key {
        name: "auth.secret",
        default: None,
        example: "\"at least 32 random bytes\"",
        expected: "a string of at least 32 bytes",
        about: &[
            "Secret of HMAC tokens (HS256, HS384, HS512), used literally: at least 32 bytes for HS256, 48 for HS384, 64 for",
            "HS512. At most one of the four keys may be set. Prefer `secret_file`.",
        ],
        reloads: true,
    },
    Key {
        name: "auth.secret_file",
        default: None,
        example: "\"/etc/sinews/secret\"",
        expected: "the path of a file",
        about: &[
            "File with the secret of HMAC tokens; `openssl rand -hex 32` makes a secret. A line break at the end of the file",
            "is not part of the secret; tokens signed with it are accepted, too, since other programs sign with all bytes of",
            "the file.",
        ],
        reloads: true,
    },
    Key {
        name: "auth.public_key_file",
        default: None,
        example: "\"/etc/sinews/public.pem\"",
        expected: "the path of a file",
        about: &[
            "A public key in PEM: RSA (RS256 to RS512, PS256 to PS512), EC on P-256 (ES256) or P-384 (ES384), or Ed25519",
            "(EdDSA).",
        ],
        reloads: true,
    },
    Key {
        name: "auth.jwks_file",
        default: None,
        example: "\"/etc/sinews/jwks.json\"",
        expected: "the path of a file",
        about: &[
            "File with a key set in JSON (RFC 7517), as identity providers publish it. Tokens select a key by `kid`.",
        ],
        reloads: true,
    },
    Key {
        name: "auth.audience",
        default: None,
        example: "[\"sinews\"]",
        expected: "a string or a list of strings",
        about: &[
            "Accepted audiences of tokens (`aud`). Without this key, tokens with an audience are rejected.",
        ],
        reloads: true,
    },
    Key {
        name: "auth.issuer",
        default: None,
        example: "[\"https://login.example.com\"]",
        expected: "a string or a list of strings",
        about: &["Accepted issuers of tokens (`iss`)."],
        reloads: true,
    },
    Key {
        name: "auth.leeway",
        default: Some("\"30s\""),
        example: "",
        expected: "a string with a number and a unit, such as \"30s\" or \"1m\"",
        about: &["Tolerated clock difference between issuer and server."],
        reloads: true,
    },
    Key {
        name: "auth.public_subscribe",
        default: Some("[]"),
        example: "",
        expected: "a pattern of topics such as \"news.>\", or a list of them",
        about: &["Patterns of topics that all clients may subscribe to without a token."],
        reloads: true,
    },
    Key {
        name: "auth.public_publish",
        default: Some("[]"),
        example: "",
        expected: "a pattern of topics such as \"feedback.*\", or a list of them",
        about: &["Patterns of topics that all clients may publish to without a token."],
        reloads: true,
    },
    Key {
        name: "streams.directory",
        default: None,
        example: "\"/var/lib/sinews\"",
        expected: "the path of a directory",
        about: &[
            "Directory of durable streams; created if missing. Without a directory, streams are disabled, and no data is",
            "written to disk.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.listen",
        default: Some("[]"),
        example: "",
        expected: "an address such as \"127.0.0.1:8090\" or \"unix:/run/sinews.sock\", or a list of them",
        about: &["Listen addresses for the binary stream protocol over plain TCP, without HTTP."],
        reloads: false,
    },
    Key {
        name: "streams.topics",
        default: Some("[]"),
        example: "",
        expected: "a pattern of topics such as \"chat.>\", or a list of them",
        about: &[
            "Durable topics, each stored in a stream of the same name: publications are delivered once they are on disk.",
            "Clients that reconnect or subscribe later replay messages from disk, also after a restart. Durable topics need",
            "no `history`. With a broker, messages are delivered on all nodes.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.partitions",
        default: Some("1"),
        example: "",
        expected: "a whole number of at least 1",
        about: &["Partitions of a stream that is created by its first use, at most 1024."],
        reloads: false,
    },
    Key {
        name: "streams.fsync",
        default: None,
        example: "\"batch\"",
        expected: "\"batch\", \"never\" or a string with a number and a unit, longer than zero, such as \"100ms\"",
        about: &[
            "Sync records to disk: \"batch\" before they are acknowledged and delivered, so that they survive a power failure;",
            "a time is the maximum delay; \"never\" leaves it to the operating system. Records survive a crash of the process",
            "in any case. Default: \"batch\", or \"never\" with a broker.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.retain_bytes",
        default: None,
        example: "\"10g\"",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &[
            "Minimum size of each partition to retain before the oldest records are deleted, in bytes. Default: no deletion",
            "by size, or 1g with a broker.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.retain_age",
        default: Some("\"off\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"7d\" or \"off\"",
        about: &["Retention time of records; \"off\" retains them forever."],
        reloads: false,
    },
    Key {
        name: "streams.segment_bytes",
        default: Some("\"256m\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &["Segment file size of a partition, from 64k to 1g; retention deletes whole segments."],
        reloads: false,
    },
    Key {
        name: "streams.max_streams",
        default: Some("10000"),
        example: "",
        expected: "a whole number of at least 1",
        about: &[
            "Maximum number of streams, up to 100000; further streams are rejected with 429. An unused stream takes half a",
            "kilobyte of memory and no open file.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.max_created_per_client",
        default: Some("256"),
        example: "",
        expected: "a whole number of at least 1",
        about: &[
            "Maximum number of streams that one client may create by using them since the start of the server, less deleted",
            "streams: no client can exhaust max_streams. A client is the subject (`sub`) of a token, or an address. Further",
            "streams are rejected with 429.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.max_created_per_minute",
        default: Some("256"),
        example: "",
        expected: "a whole number of at least 1",
        about: &[
            "Maximum number of streams that one client may create per minute. Further streams are rejected with 429.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.expire_unused",
        default: Some("\"off\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"7d\" or \"off\"",
        about: &[
            "Time without appends and reads after which a stream created by its first use is deleted, with its records. \"off\"",
            "keeps it: acknowledged records are never deleted unless configured.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.store",
        default: None,
        example: "\"kafka://one:9092,two:9092\"",
        expected: "a string such as \"kafka://host:9092\", \"redis://host\" or \"nats://host\"",
        about: &[
            "Broker that stores the streams, so that many nodes can serve them; with TLS kafka+tls://, rediss:// and",
            "nats+tls://. streams.directory then holds a copy on this node, at most streams.retain_bytes (1g) of each",
            "partition; without a directory, the copy is rebuilt at each start. Each engine is a build feature of the",
            "program.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.store_settings",
        default: None,
        example: "[\"linger.ms=5\", \"compression.type=lz4\"]",
        expected: "a string such as \"linger.ms=5\", or a list of them",
        about: &["Settings of the broker's client library. They may also follow the `?` of the URL."],
        reloads: false,
    },
    Key {
        name: "streams.store_password",
        default: None,
        example: "\"...\"",
        expected: "a string",
        about: &[
            "Password of the broker's user in streams.store. A file, or SINEWS_STREAMS_STORE_PASSWORD, is safer.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.store_password_file",
        default: None,
        example: "\"/etc/sinews/broker\"",
        expected: "the path of a file",
        about: &["File with the password of the broker's user; one line break at its end is ignored."],
        reloads: false,
    },
    Key {
        name: "limits.max_connections",
        default: None,
        example: "100000",
        expected: "a whole number of at least 1",
        about: &[
            "Maximum number of connections; further connections are rejected with 503. Default: no limit; without a free file",
            "descriptor, connections wait in the kernel.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.max_connections_per_address",
        default: None,
        example: "100",
        expected: "a whole number of at least 1",
        about: &[
            "Maximum number of connections per address, or per IPv6 network of 64 bits; further connections are rejected with",
            "429. Default: no limit, since many users may share an address, and all share the address of a proxy.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.handshakes_per_second",
        default: None,
        example: "5000",
        expected: "a whole number of at least 1",
        about: &[
            "Maximum number of WebSocket handshakes per second, and burst after an idle second; further handshakes are",
            "rejected with 503. Default: no limit.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.messages_per_second",
        default: None,
        example: "100",
        expected: "a whole number of at least 1",
        about: &[
            "Maximum number of messages per second of each WebSocket, and burst after an idle second; faster connections are",
            "closed with 1008. Default: no limit.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.max_memory",
        default: Some("\"50%\""),
        example: "",
        expected: "a number of bytes such as 1073741824, \"512m\" or \"4g\", a share of memory such as \"50%\", or \"off\"",
        about: &[
            "Memory for outbound queues, and incomplete messages and requests, of all connections: bytes, or a share of the",
            "memory of the machine or of its control group (v1 or v2), whichever is less. \"off\": only the limits of each",
            "connection apply.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.when_full",
        default: Some("\"close\""),
        example: "",
        expected: "\"refuse\" or \"close\"",
        about: &[
            "Action when connections hold more than max_memory: \"refuse\" rejects new connections and handshakes with 503;",
            "\"close\" also closes the connections that hold most, until the limit is met.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.max_history_memory",
        default: Some("\"64m\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 67108864 or \"64m\"",
        about: &[
            "Memory for the histories of all topics (history); each message counts 256 bytes of overhead, each topic 512.",
            "Above it, whole histories are evicted: first of topics without subscribers, least recently published first. A",
            "warning in the log and sinews_histories_evicted_total report evictions.",
        ],
        reloads: false,
    },
    Key {
        name: "tls.certificate",
        default: None,
        example: "[\"/etc/sinews/example.com.pem\", \"/etc/sinews/example.org.pem\"]",
        expected: "the path of a file or a list of them",
        about: &[
            "Files with a certificate and its chain in PEM, the certificate itself first. Each certificate contains its",
            "names; a client gets the first certificate for the requested name, or the first of all.",
        ],
        reloads: true,
    },
    Key {
        name: "tls.key",
        default: None,
        example: "[\"/etc/sinews/example.com.key\", \"/etc/sinews/example.org.key\"]",
        expected: "the path of a file or a list of them",
        about: &["Files with the private keys of the certificates in PEM, in the same order."],
        reloads: true,
    },
    Key {
        name: "stop.delay",
        default: Some("\"0s\""),
        example: "",
        expected: "a string with a number and a unit, such as \"10s\" or \"1m\"",
        about: &[
            "Time to keep accepting connections after /readyz starts to fail, so that load balancers can react: two of their",
            "check intervals.",
        ],
        reloads: false,
    },
    Key {
        name: "stop.drain_window",
        default: Some("\"5s\""),
        example: "",
        expected: "a string with a number and a unit, such as \"10s\" or \"1m\"",
        about: &[
            "Time over which the Close frames to all WebSockets are spread, so that clients do not reconnect elsewhere all at",
            "once. A thread closes at least 64 clients every 20 ms, so that few clients take less time.",
        ],
        reloads: false,
    },
    Key {
        name: "stop.grace",
        default: Some("\"10s\""),
        example: "",
        expected: "a string with a number and a unit, such as \"10s\" or \"1m\"",
        about: &[
            "Timeout of the clients' answers to Close. Remaining connections are closed without an answer.",
        ],
        reloads: false,
    },
    Key {
        name: "http.max_body",
        default: None,
        example: "\"1m\"",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &["Maximum size of a request body, in bytes. Default: max_message."],
        reloads: false,
    },
    Key {
        name: "http.head_timeout",
        default: Some("\"10s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\"",
        about: &["Timeout of a request's head, including the handshakes of WebSocket and TLS."],
        reloads: false,
    },
    Key {
        name: "http.keep_alive_timeout",
        default: Some("\"75s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\"",
        about: &["Timeout of an idle connection after a response: choose a value above the proxy's."],
        reloads: false,
    },
    Key {
        name: "http.min_upload_rate",
        default: Some("500"),
        example: "",
        expected: "a whole number of bytes",
        about: &[
            "Minimum average upload rate of a request body, in bytes per second, after its first 20 seconds; 0 for no limit.",
        ],
        reloads: false,
    },
    Key {
        name: "websocket.ping_interval",
        default: Some("\"25s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\" or \"off\"",
        about: &["Time without data from the client before a ping is sent; \"off\" sends no pings."],
        reloads: false,
    },
    Key {
        name: "websocket.pong_timeout",
        default: Some("\"20s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\"",
        about: &[
            "Timeout of the answer to a ping: any received byte counts. The connection closes with 1011.",
        ],
        reloads: false,
    },
    Key {
        name: "websocket.idle_timeout",
        default: Some("\"120s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\" or \"off\"",
        about: &[
            "Timeout without data in either direction except pings; \"off\" for no timeout. The connection closes with 1001.",
        ],
        reloads: false,
    },
    Key {
        name: "websocket.high_water",
        default: Some("\"64k\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &[
            "High-water mark of a client's outbound queue in bytes, above which reads from the client are paused.",
        ],
        reloads: false,
    },
    Key {
        name: "websocket.max_outbound",
        default: Some("\"1m\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &[
            "Maximum size of a client's outbound queue in bytes; `overflow` selects the action above it.",
        ],
        reloads: false,
    },
    Key {
        name: "websocket.overflow",
        default: Some("\"close\""),
        example: "",
        expected: "\"close\", \"drop-newest\" or \"drop-oldest\"",
        about: &[
            "Action when a client's outbound queue exceeds max_outbound: \"close\" closes the connection with 1008, so that no",
            "message is lost unnoticed; \"drop-newest\" and \"drop-oldest\" drop publications to it.",
        ],
        reloads: false,
    },
    Key {
        name: "websocket.reject_browsers",
        default: Some("\"close\""),
        example: "",
        expected: "\"close\" or \"status\"",
        about: &[
            "Rejection of a browser's WebSocket because of its origin, token or path: \"close\" accepts it and closes it with",
            "4400, 4401, 4403 or 4404 and the reason; \"status\" rejects the handshake with 400, 401, 403 or 404, which scripts",
            "of a page cannot read. Clients without an Origin header always get the status.",
        ],
        reloads: true,
    },
];

/// Finds a key by its full name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Finds the key most similar to an unknown name.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let last = |name: &'static str| name.rsplit('.').next().unwrap_or(name);
    // A key in the wrong table is spelled correctly.
    let written = name.rsplit('.').next().unwrap_or(name);
    if let Some(key) = KEYS.iter().find(|key| last(key.name) == written) {
        return Some(key.name);
    }
    let whole = |key: &Key| strsim::jaro(name, key.name);
    let alike = |key: &Key| whole(key).max(strsim::jaro(written, last(key.name)));
    // Several tables may have a key of the same name.
    let order = |a: &&Key, b: &&Key| alike(a).total_cmp(&alike(b)).then(whole(a).total_cmp(&whole(b)));
    let best = KEYS.iter().max_by(order)?;
    (alike(best) > 0.7).then_some(best.name)
}

/// Returns the default configuration file.
pub(crate) fn default_file() -> String {
    let mut text = String::from(
        "# Configuration of `sinews serve --config FILE`. It lists every key with its default.\n\
         # The command line and the environment (SINEWS_ and the key in capitals, as SINEWS_AUTH_SECRET_FILE) override\n\
         # this file. SIGHUP reloads it; keys marked (restart) take effect after a restart, or after SIGUSR2, which hands over\n\
         # to a successor process.\n",
    );
    let mut table = "";
    for key in KEYS {
        let (of, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
        if of != table {
            let about = TABLES.iter().find(|(name, _)| *name == of).map_or("", |(_, about)| about);
            text.push_str(&format!("\n# {about}\n[{of}]\n"));
            table = of;
        }
        text.push('\n');
        for line in key.about {
            text.push_str(&format!("# {line}\n"));
        }
        if !key.reloads {
            text.push_str("# (restart)\n");
        }
        match key.default {
            Some(default) => text.push_str(&format!("{name} = {default}\n")),
            None => text.push_str(&format!("#{name} = {}\n", key.example)),
        }
    }
    text
}
