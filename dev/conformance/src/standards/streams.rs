//! Rules of WebSockets on streams of HTTP/2 and HTTP/3.

use super::Held::By;
use super::http2::{FLOW, REQUESTS, SOCKETS};
use super::http3::{MESSAGES, SERVER_SOCKETS as HTTP3_SOCKETS};
use super::rules::{CLIENT, ORIGIN, SERVER};
use super::{Line, line};

const HTTP2_CLIENT: &str = "crates/sinews/tests/over_http/http2_client.rs";

pub(super) const RFC_8441: &[Line] = &[
    line(
        "8441 3, 4",
        "Setting 8 is 1 and never goes back to 0; `:protocol` needs it, CONNECT and all other pseudo-header fields",
        By(&[
            (REQUESTS, "extended_connect_needs_the_setting_and_all_pseudo_header_fields"),
            (REQUESTS, "extended_connect_is_never_disabled_again"),
        ]),
    ),
    line(
        "8441 5",
        "CONNECT with `:protocol` websocket, answered 2xx, without Upgrade, Connection, key or accept",
        By(&[
            (SERVER, "extended_connect_needs_no_key_and_is_answered_200"),
            (SERVER, "key_of_extended_connect_is_answered_if_there_is_one"),
            (SERVER, "protocol_pseudo_header_is_ignored_over_http_1"),
        ]),
    ),
    line(
        "8441 3, 5",
        "The client waits for the setting, sends neither key nor connection headers, and checks the response; RST_STREAM is a reset of the transport",
        By(&[
            (HTTP2_CLIENT, "server_without_the_setting_is_an_error"),
            (CLIENT, "extended_connect_has_neither_key_nor_connection_headers"),
            (CLIENT, "responses_to_extended_connect_are_checked"),
            (HTTP2_CLIENT, "response_with_content_is_no_websocket"),
            (HTTP2_CLIENT, "reset_of_one_stream_is_an_error_of_its_websocket_only"),
            (HTTP2_CLIENT, "end_of_a_stream_without_a_close_is_abnormal"),
            (HTTP2_CLIENT, "unread_websocket_does_not_stop_the_others"),
        ]),
    ),
    line(
        "9220 3",
        "The setting and the pseudo-header fields over HTTP/3; FIN is the end, a reset of the stream a reset of the transport; the client waits for SETTINGS",
        By(&[
            (MESSAGES, "extended_connect_needs_the_setting_and_all_pseudo_header_fields"),
            (MESSAGES, "tunnels_carry_bytes_in_both_directions"),
            (MESSAGES, "client_waits_for_the_setting_of_extended_connect"),
        ]),
    ),
    line(
        "9220 3",
        "An unknown `:protocol` is answered 501",
        By(&[
            (SERVER, "extended_connect_for_other_protocols_is_rejected"),
            (SOCKETS, "handshake_is_decided_as_over_http1"),
        ]),
    ),
    line(
        "8441 4",
        "Nothing but a WebSocket answers extended CONNECT with success: 403, 404, 405 in place of 2xx",
        By(&[(SOCKETS, "handshake_is_decided_as_over_http1")]),
    ),
    line(
        "9113 8.5",
        "HEADERS on a stream of CONNECT is a stream error; a Content-Length is rejected",
        By(&[
            (REQUESTS, "headers_on_a_tunnel_reset_it"),
            (SOCKETS, "streams_end_as_transports_do"),
            (SERVER, "extended_connect_for_other_protocols_is_rejected"),
        ]),
    ),
    line(
        "8441 5",
        "Origin, Sec-WebSocket-Version, -Protocol and -Extensions as over HTTP/1.1; one compression context for each stream",
        By(&[
            (SOCKETS, "handshake_is_decided_as_over_http1"),
            (SOCKETS, "messages_are_compressed_by_agreement"),
        ]),
    ),
    line(
        "8441 5",
        "The authority is that of `:authority`",
        By(&[(ORIGIN, "http_2_authority_is_compared_with_origin")]),
    ),
    line(
        "8441 5",
        "END_STREAM is FIN, RST_STREAM a reset; DATA edges mean nothing; flow control by stream and connection",
        By(&[
            (REQUESTS, "tunnels_carry_bytes_in_both_directions"),
            (FLOW, "stream_that_is_not_read_holds_only_its_own_window"),
            (SOCKETS, "streams_end_as_transports_do"),
            (SOCKETS, "sockets_and_exchanges_share_a_connection"),
            (SOCKETS, "slow_socket_does_not_stop_its_neighbors"),
        ]),
    ),
    line(
        "9220",
        "The same over HTTP/3; wsproto over aioquic by `cargo xtask interop --only http3`",
        By(&[
            (HTTP3_SOCKETS, "sockets_and_requests_share_a_connection"),
            (HTTP3_SOCKETS, "handshake_is_decided_as_over_other_versions"),
            (HTTP3_SOCKETS, "streams_end_as_transports_do"),
            (HTTP3_SOCKETS, "sockets_beside_the_first_count_as_connections"),
            (HTTP3_SOCKETS, "slow_socket_delays_no_other_and_is_closed_at_its_limit"),
            (HTTP3_SOCKETS, "graceful_stop_closes_sockets_in_order"),
        ]),
    ),
    line(
        "9113 6.8",
        "GOAWAY on shutdown; sockets are drained by Close frames, then END_STREAM",
        By(&[(SOCKETS, "graceful_stop_closes_sockets_and_then_the_connection")]),
    ),
];
