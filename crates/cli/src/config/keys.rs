//! Every key of the configuration file: what it means, what it takes, and what holds without it.

/// A key of the file. The flag of the same name, with `-` for `.` and `_`, and the environment's `SINEWS_` and the
/// name in capitals go before it.
pub(crate) struct Key {
    /// With its table, as `auth.leeway`.
    pub(crate) name: &'static str,
    /// What holds without it, as it would be written.
    pub(crate) default: Option<&'static str>,
    /// What it may look like, where there is no default.
    pub(crate) example: &'static str,
    /// Completes "must be".
    pub(crate) expected: &'static str,
    /// Sentences for whoever reads the file; one for each line.
    pub(crate) about: &'static [&'static str],
    /// Takes effect when the file is read again (SIGHUP).
    pub(crate) reloads: bool,
}

/// A table of the file and what it is about.
pub(crate) const TABLES: &[(&str, &str)] = &[
    (
        "auth",
        "Who may publish and subscribe. Without a key below, everybody may, which is meant for this machine alone.",
    ),
    (
        "streams",
        "Durable streams: what is published to them is kept on disk. All of this takes effect at the next start.",
    ),
    (
        "limits",
        "How much the server takes on. What is beyond is refused in HTTP's words, counted at /metrics and logged.",
    ),
    (
        "tls",
        "With certificates, every TCP address speaks TLS: https and wss. To switch it on or off takes a restart.",
    ),
    ("http", "Limits and waits of plain HTTP."),
    ("websocket", "Limits and waits of WebSockets; max_message and deflate stand above."),
    ("stop", "How the server stops when SIGTERM or SIGINT asks it to. A second signal stops it at once."),
];

pub(crate) const KEYS: &[Key] = &[
    Key {
        name: "listen",
        default: Some("[\"127.0.0.1:8080\"]"),
        example: "",
        expected: "an address such as \"127.0.0.1:8080\" or \"unix:/run/sinews.sock\", or a list of them",
        about: &[
            "Addresses to listen on: \"HOST:PORT\", \"PORT\" alone for 127.0.0.1, \":PORT\" for every interface, or \"unix:PATH\"",
            "for a Unix socket. Port 0 takes a free one.",
        ],
        reloads: false,
    },
    Key {
        name: "unix_mode",
        default: Some("\"0660\""),
        example: "",
        expected: "a string of octal digits such as \"0660\"",
        about: &["Permissions of Unix sockets. \"0660\" lets the user and the group of the process connect."],
        reloads: false,
    },
    Key {
        name: "proxy_protocol",
        default: Some("false"),
        example: "",
        expected: "true or false",
        about: &[
            "Every connection begins with a PROXY header, version 1 or 2, that names the client, as HAProxy, nginx and the",
            "load balancers of clouds send it. Whoever can connect can name any client: only the proxy may be able to.",
        ],
        reloads: false,
    },
    Key {
        name: "trusted_proxies",
        default: Some("[]"),
        example: "",
        expected: "a network such as \"10.0.0.0/8\", an address, \"unix\", or a list of them",
        about: &[
            "Proxies that are believed when they name their client in a header, and whose connections do not count as one",
            "client's for limits.max_connections_per_address. \"unix\" means all that comes through Unix sockets.",
        ],
        reloads: false,
    },
    Key {
        name: "trusted_header",
        default: Some("\"x-forwarded-for\""),
        example: "",
        expected: "\"x-forwarded-for\" or \"forwarded\"",
        about: &[
            "The header in which they do; the other one is not looked at, since a client may have written it. Who they",
            "name stands in the log of answers (access_log).",
        ],
        reloads: false,
    },
    Key {
        name: "threads",
        default: None,
        example: "4",
        expected: "a whole number of at least 1",
        about: &[
            "Threads, each with its own event loop. Without it: one for each processor. At most 64, or 4 for each processor if",
            "that is more.",
        ],
        reloads: false,
    },
    Key {
        name: "backend",
        default: Some("\"auto\""),
        example: "",
        expected: "\"auto\", \"poll\" or \"uring\"",
        about: &[
            "What drives the sockets: \"uring\" is Linux's io_uring, \"poll\" is epoll or kqueue; \"auto\" takes",
            "io_uring where the system permits it.",
        ],
        reloads: false,
    },
    Key {
        name: "max_message",
        default: Some("\"16m\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &["Largest message or request body, in bytes; k, m and g mean KiB, MiB and GiB."],
        reloads: false,
    },
    Key {
        name: "deflate",
        default: Some("\"shared\""),
        example: "",
        expected: "\"off\", \"shared\" or \"dedicated\"",
        about: &[
            "Compression where the client offers it: \"shared\" keeps no memory for a connection between messages,",
            "\"dedicated\" remembers earlier messages and compresses better.",
        ],
        reloads: false,
    },
    Key {
        name: "origin",
        default: Some("\"same\""),
        example: "",
        expected: "\"same\", \"any\", or a list of origins such as [\"https://example.com\"]",
        about: &[
            "From which pages browsers may connect and publish: \"same\" (pages of this server), \"any\", or a list of",
            "origins such as [\"https://example.com\", \"http://localhost:3000\"].",
        ],
        reloads: true,
    },
    Key {
        name: "hosts",
        default: None,
        example: "[\"ws.example.com\", \"*.example.net\"]",
        expected: "\"any\", or a list of names such as [\"ws.example.com\", \"*.example.net\"]",
        about: &[
            "Names by which this server is called (Host). Requests with another one are rejected with 421, so that no page",
            "can use a name of its own for this server (DNS rebinding). Addresses, localhost and the hosts of `origin` are",
            "accepted, too. Without it any name is, but where `listen` names no wildcard address, requests from this machine",
            "may use names of this machine only: behind a proxy there, name the public host. \"any\" checks nothing.",
        ],
        reloads: true,
    },
    Key {
        name: "history",
        default: Some("[]"),
        example: "",
        expected: "a pattern of topics and a number of messages such as \"chat.>=100\", or a list of them",
        about: &[
            "Topics whose last messages are kept, for clients of /ws that come back or come later: a pattern and how many,",
            "as \"chat.>=100\"; the first that matches holds. At most 1 MiB is kept of each topic, and of all together",
            "limits.max_history_memory.",
        ],
        reloads: false,
    },
    Key {
        name: "log",
        default: Some("\"info\""),
        example: "",
        expected: "a level (\"error\", \"warn\", \"info\", \"debug\", \"trace\") or a filter such as \"sinews_engine=debug\"",
        about: &[
            "Least severe level to log (error, warn, info, debug, trace, off), or a filter such as sinews_engine=debug: targets",
            "that it does not name are logged from info on.",
        ],
        reloads: true,
    },
    Key {
        name: "log_format",
        default: Some("\"text\""),
        example: "",
        expected: "\"text\" or \"json\"",
        about: &["Format of the log: \"text\" is a line for a person, \"json\" is a JSON object in a line."],
        reloads: false,
    },
    Key {
        name: "access_log",
        default: Some("false"),
        example: "",
        expected: "true or false",
        about: &["Whether each answer is logged, at level info: who asked for what, and what came of it."],
        reloads: false,
    },
    Key {
        name: "auth.secret",
        default: None,
        example: "\"at least 32 bytes, which nobody can guess\"",
        expected: "a string of at least 32 bytes",
        about: &[
            "The key of HMAC tokens (HS256, HS384, HS512), as it stands; 32 bytes are good for HS256, 48 for HS384, 64",
            "for HS512. At most one of the four keys here may be set. Better in a file of its own:",
        ],
        reloads: true,
    },
    Key {
        name: "auth.secret_file",
        default: None,
        example: "\"/etc/sinews/secret\"",
        expected: "the path of a file",
        about: &[
            "A file that holds the secret. `openssl rand -hex 32` makes one. A line break at its end is not part of the",
            "secret; tokens signed with it are accepted, too, since other programs sign with all bytes of the file.",
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
            "A set of keys in JSON (RFC 7517), as identity providers publish it; tokens name theirs by `kid`.",
        ],
        reloads: true,
    },
    Key {
        name: "auth.audience",
        default: None,
        example: "[\"sinews\"]",
        expected: "a string or a list of strings",
        about: &[
            "Tokens must be meant for one of these (`aud`). Without it, tokens with an audience are refused.",
        ],
        reloads: true,
    },
    Key {
        name: "auth.issuer",
        default: None,
        example: "[\"https://login.example.com\"]",
        expected: "a string or a list of strings",
        about: &["Tokens must come from one of these (`iss`)."],
        reloads: true,
    },
    Key {
        name: "auth.leeway",
        default: Some("\"30s\""),
        example: "",
        expected: "a string with a number and a unit, such as \"30s\" or \"1m\"",
        about: &["How far the clocks of issuer and server may be apart."],
        reloads: true,
    },
    Key {
        name: "auth.public_subscribe",
        default: Some("[]"),
        example: "",
        expected: "a pattern of topics such as \"news.>\", or a list of them",
        about: &["Patterns of topics that anybody may subscribe to, with a token or without."],
        reloads: true,
    },
    Key {
        name: "auth.public_publish",
        default: Some("[]"),
        example: "",
        expected: "a pattern of topics such as \"feedback.*\", or a list of them",
        about: &["Patterns of topics that anybody may publish to, with a token or without."],
        reloads: true,
    },
    Key {
        name: "streams.directory",
        default: None,
        example: "\"/var/lib/sinews\"",
        expected: "the path of a directory",
        about: &[
            "Directory in which streams are kept; it is made if it is not there. Without it there are none, and nothing is",
            "written to disk.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.listen",
        default: Some("[]"),
        example: "",
        expected: "an address such as \"127.0.0.1:8090\" or \"unix:/run/sinews.sock\", or a list of them",
        about: &["Addresses at which streams are spoken to in binary messages over plain TCP, without HTTP."],
        reloads: false,
    },
    Key {
        name: "streams.topics",
        default: Some("[]"),
        example: "",
        expected: "a pattern of topics such as \"chat.>\", or a list of them",
        about: &[
            "Topics that are kept in streams of their names: what is published to them is heard when it is on disk, and",
            "who comes back, or later, gets it from there, after a restart too. They need no `history`. With a broker they are",
            "heard on all nodes.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.partitions",
        default: Some("1"),
        example: "",
        expected: "a whole number of at least 1",
        about: &["Partitions of a stream that comes into being by being published to."],
        reloads: false,
    },
    Key {
        name: "streams.fsync",
        default: None,
        example: "\"batch\"",
        expected: "\"batch\", \"never\" or a string with a number and a unit, longer than zero, such as \"100ms\"",
        about: &[
            "When what is published is synced to the disk: \"batch\", before it is acknowledged and read, so that it survives",
            "a loss of power; a time, so long after at the latest; \"never\", when the system does. It survives the end of",
            "the process in any case. Without it, \"batch\"; \"never\" where a broker keeps the streams.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.retain_bytes",
        default: None,
        example: "\"10g\"",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &[
            "Bytes of each partition that are kept at least before the oldest go. Without it, all are kept, and 1g where a",
            "broker keeps the streams.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.retain_age",
        default: Some("\"off\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"7d\" or \"off\"",
        about: &["How long what is published is kept; \"off\" keeps it for ever."],
        reloads: false,
    },
    Key {
        name: "streams.segment_bytes",
        default: Some("\"256m\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &["Bytes of a file of a partition, from 64k to 1g: what is removed at once."],
        reloads: false,
    },
    Key {
        name: "streams.max_streams",
        default: Some("10000"),
        example: "",
        expected: "a whole number of at least 1",
        about: &[
            "Streams that there may be, 100000 at most: one more is rejected with 429. One that is not in use takes half a",
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
            "Streams that one client may create by using them, less those that were deleted, since the server was started:",
            "so no client takes all of max_streams. A client is the subject (`sub`) of a token, or an address. One more is",
            "rejected with 429.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.max_created_per_minute",
        default: Some("256"),
        example: "",
        expected: "a whole number of at least 1",
        about: &["Streams that one client may create within a minute. One more is rejected with 429."],
        reloads: false,
    },
    Key {
        name: "streams.expire_unused",
        default: Some("\"off\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"7d\" or \"off\"",
        about: &[
            "Time after which a stream that its first use has created is deleted, with its records, if no client appends to",
            "it or reads it meanwhile; \"off\" keeps it, since what was acknowledged is to stay unless you say otherwise.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.store",
        default: None,
        example: "\"kafka://one:9092,two:9092\"",
        expected: "a string such as \"kafka://host:9092\", \"redis://host\" or \"nats://host\"",
        about: &[
            "Broker that keeps the streams, so that many nodes can serve them; with TLS kafka+tls://, rediss:// and",
            "nats+tls://. streams.directory then has this node's copy, at most streams.retain_bytes (1g) of each partition,",
            "and without one the copy is made anew at each start. Each engine is a feature of the program.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.store_settings",
        default: None,
        example: "[\"linger.ms=5\", \"compression.type=lz4\"]",
        expected: "a string such as \"linger.ms=5\", or a list of them",
        about: &["Settings of the broker's client. They can also stand behind the `?` of the URL."],
        reloads: false,
    },
    Key {
        name: "streams.store_password",
        default: None,
        example: "\"...\"",
        expected: "a string",
        about: &[
            "Password at the broker, of the user that the URL names. A file, or SINEWS_STREAMS_STORE_PASSWORD, is better.",
        ],
        reloads: false,
    },
    Key {
        name: "streams.store_password_file",
        default: None,
        example: "\"/etc/sinews/broker\"",
        expected: "the path of a file",
        about: &["A file that holds that password; one line break at its end is left out."],
        reloads: false,
    },
    Key {
        name: "limits.max_connections",
        default: None,
        example: "100000",
        expected: "a whole number of at least 1",
        about: &[
            "Connections at a time; further ones are answered with 503. Without it: as many as there are descriptors;",
            "further ones wait in the kernel.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.max_connections_per_address",
        default: None,
        example: "100",
        expected: "a whole number of at least 1",
        about: &[
            "Connections at a time of one address, or of one network of 64 bits in IPv6; further ones are answered with",
            "429. Without it: no limit, since a whole company may share an address, and behind a proxy everybody does.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.handshakes_per_second",
        default: None,
        example: "5000",
        expected: "a whole number of at least 1",
        about: &[
            "WebSockets opened in a second, and after a quiet second that many at once; further ones are answered with",
            "503. Without it: no limit.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.messages_per_second",
        default: None,
        example: "100",
        expected: "a whole number of at least 1",
        about: &[
            "Messages that each WebSocket may send in a second, and after a quiet second that many at once; one that is",
            "faster is closed with 1008. Without it: no limit.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.max_memory",
        default: Some("\"50%\""),
        example: "",
        expected: "a number of bytes such as 1073741824, \"512m\" or \"4g\", a share of memory such as \"50%\", or \"off\"",
        about: &[
            "Memory for outbound queues and incomplete messages and requests of all connections: bytes, or a share of the",
            "memory of the machine or of its control group (v1 or v2), whichever is less. \"off\": only the limits of each",
            "connection hold.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.when_full",
        default: Some("\"close\""),
        example: "",
        expected: "\"refuse\" or \"close\"",
        about: &[
            "Action when connections hold more than max_memory: \"refuse\" answers new connections and handshakes with 503;",
            "\"close\" does so too, and closes the connection that holds most, until they hold less.",
        ],
        reloads: false,
    },
    Key {
        name: "limits.max_history_memory",
        default: Some("\"64m\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 67108864 or \"64m\"",
        about: &[
            "Memory for the histories of all topics (history), a message with 256 bytes beside its own and a topic with 512.",
            "Beyond it whole histories are evicted: those of topics without subscribers first, and of those the one that was",
            "published to least recently. A warning in the log and sinews_histories_evicted count them.",
        ],
        reloads: false,
    },
    Key {
        name: "tls.certificate",
        default: None,
        example: "[\"/etc/sinews/example.com.pem\", \"/etc/sinews/example.org.pem\"]",
        expected: "the path of a file or a list of them",
        about: &[
            "Files with a certificate and its chain in PEM, its own first. For which names each one is, it says itself; a",
            "client is shown the first one for the name it asks for, or the first of all.",
        ],
        reloads: true,
    },
    Key {
        name: "tls.key",
        default: None,
        example: "[\"/etc/sinews/example.com.key\", \"/etc/sinews/example.org.key\"]",
        expected: "the path of a file or a list of them",
        about: &["Files with their private keys in PEM, in the same order."],
        reloads: true,
    },
    Key {
        name: "stop.delay",
        default: Some("\"0s\""),
        example: "",
        expected: "a string with a number and a unit, such as \"10s\" or \"1m\"",
        about: &[
            "How long /readyz says so before no more connections are accepted, so that whatever sends clients here can",
            "notice: two of its intervals.",
        ],
        reloads: false,
    },
    Key {
        name: "stop.drain_window",
        default: Some("\"5s\""),
        example: "",
        expected: "a string with a number and a unit, such as \"10s\" or \"1m\"",
        about: &[
            "Over how long the Close of every WebSocket is spread, so that clients do not come back elsewhere all at once.",
            "A thread tells 64 clients every 20 ms at least, so few of them take less.",
        ],
        reloads: false,
    },
    Key {
        name: "stop.grace",
        default: Some("\"10s\""),
        example: "",
        expected: "a string with a number and a unit, such as \"10s\" or \"1m\"",
        about: &["How long clients may take to answer their Close. Then those who are left are closed."],
        reloads: false,
    },
    Key {
        name: "http.max_body",
        default: None,
        example: "\"1m\"",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &["Largest body of a request, in bytes. Without it: max_message."],
        reloads: false,
    },
    Key {
        name: "http.head_timeout",
        default: Some("\"10s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\"",
        about: &[
            "How long the head of a request may take, a WebSocket's opening handshake and that of TLS included.",
        ],
        reloads: false,
    },
    Key {
        name: "http.keep_alive_timeout",
        default: Some("\"75s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\"",
        about: &[
            "How long a connection may stay without a request after the last answer: longer than a proxy in front.",
        ],
        reloads: false,
    },
    Key {
        name: "http.min_upload_rate",
        default: Some("500"),
        example: "",
        expected: "a whole number of bytes",
        about: &[
            "Bytes a second that a request's body has to come at, on average, after its first 20 seconds; 0 for any.",
        ],
        reloads: false,
    },
    Key {
        name: "websocket.ping_interval",
        default: Some("\"25s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\" or \"off\"",
        about: &["A ping leaves after so long without a byte from the client; \"off\" sends none."],
        reloads: false,
    },
    Key {
        name: "websocket.pong_timeout",
        default: Some("\"20s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\"",
        about: &["How long a ping may stay without a byte in answer. Then the connection closes with 1011."],
        reloads: false,
    },
    Key {
        name: "websocket.idle_timeout",
        default: Some("\"120s\""),
        example: "",
        expected: "a string with a number and a unit, longer than zero, such as \"30s\" or \"off\"",
        about: &[
            "How long neither side may send anything but pings; \"off\" waits for ever. Then the connection closes with 1001.",
        ],
        reloads: false,
    },
    Key {
        name: "websocket.high_water",
        default: Some("\"64k\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &["Bytes waiting to be sent to a client above which nothing is received from it."],
        reloads: false,
    },
    Key {
        name: "websocket.max_outbound",
        default: Some("\"1m\""),
        example: "",
        expected: "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
        about: &["Bytes waiting to be sent to a client at which further messages meet `overflow`."],
        reloads: false,
    },
    Key {
        name: "websocket.overflow",
        default: Some("\"close\""),
        example: "",
        expected: "\"close\", \"drop-newest\" or \"drop-oldest\"",
        about: &[
            "What happens then: \"close\" ends the slow client's connection with 1008, so that nothing is missed unnoticed;",
            "the others drop the newest or the oldest of what is published to it.",
        ],
        reloads: false,
    },
    Key {
        name: "websocket.reject_browsers",
        default: Some("\"close\""),
        example: "",
        expected: "\"close\" or \"status\"",
        about: &[
            "How a browser learns that its origin, its token or the path is rejected: \"close\" accepts the WebSocket and closes",
            "it with 4400, 4401, 4403 or 4404 and the reason; \"status\" answers the handshake with 400, 401, 403 or 404, which",
            "scripts of a page cannot read. Clients that send no Origin always get the status.",
        ],
        reloads: true,
    },
];

/// The key of this name, with its table.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// What may be meant by a key that does not exist.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let last = |name: &'static str| name.rsplit('.').next().unwrap_or(name);
    // One that stands in the wrong table is written right.
    let written = name.rsplit('.').next().unwrap_or(name);
    if let Some(key) = KEYS.iter().find(|key| last(key.name) == written) {
        return Some(key.name);
    }
    let whole = |key: &Key| strsim::jaro(name, key.name);
    let alike = |key: &Key| whole(key).max(strsim::jaro(written, last(key.name)));
    // Several tables may have a key of one name.
    let order = |a: &&Key, b: &&Key| alike(a).total_cmp(&alike(b)).then(whole(a).total_cmp(&whole(b)));
    let best = KEYS.iter().max_by(order)?;
    (alike(best) > 0.7).then_some(best.name)
}

/// The whole file with its defaults, for a person to begin with.
pub(crate) fn default_file() -> String {
    let mut text = String::from(
        "# Configuration of `sinews serve --config FILE`. Every key stands here with what holds without it.\n\
         # The command line and the environment (SINEWS_ and the key in capitals, as SINEWS_AUTH_SECRET_FILE) go before\n\
         # this file. SIGHUP reads it again; keys marked (restart) take effect at the next start, or by SIGUSR2, which has a\n\
         # new process take over.\n",
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
