//! Attacks through HTTP/2 and HTTP/3 by class, and promises of the server that hold over each version.

use super::Held::By;
use super::http2::{
    ATTACKS as H2, FRAMES, LIMITS as H2_LIMITS, REQUESTS, SERVER as H2_SERVER, SOCKET_ATTACKS, SOCKETS,
    VERSIONS,
};
use super::http3::{
    ATTACKS as H3, EXCHANGE, HALF_OPEN, LIMITS as H3_LIMITS, MESSAGES, SERVER_ATTACKS, SERVER_FILES,
    SERVER_RULES, SERVER_SESSIONS, SERVER_SOCKETS,
};
use super::{Line, line};

const SMUGGLING: &str = "crates/server/tests/loopback/attacks.rs";
const CHUNKED: &str = "crates/http/src/h1/chunked.rs";
const HTTP2_CONTENT: &str = "crates/server/tests/loopback/http2/content.rs";

pub(super) const EACH_VERSION: &[Line] = &[
    line(
        "rapid reset",
        "Requests and WebSockets that the client resets at once",
        By(&[
            (H2, "rapid_resets_end_the_connection"),
            (SOCKET_ATTACKS, "rapid_resets_of_sockets_end_the_connection"),
            (H3, "rapid_resets_end_the_connection"),
            (H3, "rapid_resets_of_session_streams_end_the_connection"),
            (SERVER_SESSIONS, "rapid_resets_of_streams_end_the_connection"),
            (SERVER_ATTACKS, "rapid_resets_end_the_connection"),
        ]),
    ),
    line(
        "made-you-reset",
        "Resets that the client provokes",
        By(&[
            (H2, "provoked_resets_end_the_connection"),
            (H3, "provoked_resets_end_the_connection"),
            (SERVER_ATTACKS, "provoked_resets_end_the_connection"),
        ]),
    ),
    line(
        "CONTINUATION flood",
        "Field sections without an end",
        By(&[
            (H2, "continuation_floods_end_the_connection"),
            (H3, "large_field_sections_end_the_connection"),
            (H3, "heads_that_do_not_arrive_expire_and_no_others"),
        ]),
    ),
    line(
        "HPACK and QPACK bombs",
        "Field sections that decode to much",
        By(&[
            (H2, "header_bombs_end_the_connection_while_they_are_decoded"),
            (H3, "field_section_bombs_end_the_connection_while_they_are_decoded"),
            (SERVER_ATTACKS, "field_section_bombs_are_rejected_or_end_the_connection"),
        ]),
    ),
    line(
        "closed windows",
        "Window exhaustion, and windows of zero that are held",
        By(&[
            (H2, "closed_windows_hold_no_memory_of_the_machine"),
            (H2, "content_that_is_not_read_is_limited"),
            (SOCKET_ATTACKS, "closed_windows_hold_a_bounded_queue"),
            (SOCKET_ATTACKS, "closed_window_ends_its_stream_at_the_write_timeout"),
            (H2_LIMITS, "answers_to_closed_windows_count_as_memory"),
            (H3_LIMITS, "answers_to_closed_windows_count_as_memory"),
            (SERVER_ATTACKS, "closed_windows_hold_a_piece_of_each_answer"),
            (SERVER_ATTACKS, "windows_that_stay_closed_end_their_answer"),
        ]),
    ),
    line(
        "floods",
        "SETTINGS, PING, PRIORITY, WINDOW_UPDATE, empty DATA, unknown frames and streams",
        By(&[
            (H2, "floods_of_frames_without_content_end_the_connection"),
            (H2, "answers_to_a_peer_that_does_not_read_are_limited"),
            (H2_SERVER, "floods_and_faults_end_only_their_connection"),
            (SOCKET_ATTACKS, "frames_without_content_end_the_connection_of_a_socket"),
            (H3, "floods_of_frames_without_content_end_the_connection"),
            (H3, "long_settings_end_the_connection"),
            (SERVER_ATTACKS, "floods_of_frames_without_content_end_the_connection"),
            (SERVER_ATTACKS, "floods_of_pings_stop_no_other_client"),
        ]),
    ),
    line(
        "header smuggling",
        "Octets, pseudo-header fields and connection headers that HTTP/1.1 would read as another request",
        By(&[
            (REQUESTS, "pseudo_header_fields_come_first_once_and_are_known"),
            (MESSAGES, "malformed_requests_are_rejected"),
            (SERVER_RULES, "malformed_requests_are_reset_and_reach_no_route"),
        ]),
    ),
    line(
        "request smuggling",
        "Through proxies that speak HTTP/2 with clients and HTTP/1.1 with the server: `cargo xtask interop --only http-proxies` sends \
         193 cases through nginx, HAProxy, Apache, Caddy and nghttpx",
        By(&[
            (SMUGGLING, "no_request_is_smuggled_after_a_rejected_handshake"),
            (SMUGGLING, "request_with_ambiguous_framing_ends_the_connection"),
            (SMUGGLING, "ambiguous_framing_ends_the_connection_however_it_is_split"),
            (CHUNKED, "ambiguous_framing_is_rejected"),
        ]),
    ),
    line(
        "amplification",
        "At most three times the bytes of an address that is not proved; Retry",
        By(&[
            (EXCHANGE, "answers_before_validation_are_limited"),
            (EXCHANGE, "busy_endpoint_validates_addresses_by_retry"),
            (SERVER_ATTACKS, "answers_to_unproved_addresses_are_limited"),
        ]),
    ),
    line(
        "stateless resets",
        "No loop, and no oracle for the tokens of connections",
        By(&[
            (EXCHANGE, "stateless_resets_do_not_loop"),
            (SERVER_ATTACKS, "stateless_resets_reveal_no_token_of_a_connection"),
        ]),
    ),
    line(
        "version negotiation",
        "No downgrade: version 1 is the only one",
        By(&[(SERVER_ATTACKS, "version_negotiation_offers_version_1_only")]),
    ),
    line(
        "half-open handshakes",
        "10,000 of forged addresses take bounded memory, and exclude no client",
        By(&[
            (HALF_OPEN, "half_open_handshakes_take_bounded_memory_and_exclude_no_client"),
            (SERVER_ATTACKS, "half_open_handshakes_exclude_no_client"),
        ]),
    ),
    line(
        "limits",
        "Connections, addresses, messages and memory over each version",
        By(&[
            (VERSIONS, "rates_of_messages_and_memory_are_limited_over_each_version"),
            (SOCKET_ATTACKS, "sockets_of_a_connection_are_limited"),
            (SERVER_SOCKETS, "sockets_beside_the_first_count_as_connections"),
            (SERVER_SESSIONS, "streams_beyond_the_limits_are_reset_with_their_code"),
        ]),
    ),
    line(
        "origins",
        "One policy decides for each version",
        By(&[
            (SOCKETS, "handshake_is_decided_as_over_http1"),
            (SERVER_SOCKETS, "handshake_is_decided_as_over_other_versions"),
            (SERVER_SESSIONS, "requests_for_sessions_are_decided_as_handshakes"),
        ]),
    ),
    line(
        "tokens, access log, `/readyz`, dashboard",
        "Over each version",
        By(&[(VERSIONS, "access_log_tokens_readiness_and_dashboard_hold_over_each_version")]),
    ),
    line(
        "static files, compression",
        "Over each version: ranges, conditions, compressed files, slow readers of large files",
        By(&[
            (SERVER_FILES, "files_have_the_same_answers_over_each_version"),
            (SERVER_FILES, "large_files_wait_for_slow_readers_of_each_version"),
            (HTTP2_CONTENT, "files_and_compressed_answers_are_sent"),
        ]),
    ),
    line(
        "frames that cross a reset",
        "Are counted for flow control, so that no window leaks",
        By(&[(FRAMES, "frames_that_cross_our_reset_are_ignored_and_counted_for_flow_control")]),
    ),
];
