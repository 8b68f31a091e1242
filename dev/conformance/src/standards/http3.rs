//! Rules of HTTP/3, QPACK and WebTransport, and attacks on them.

use super::Held::{By, Not};
use super::http2::REQUESTS;
use super::{Line, line};

const STREAMS: &str = "crates/http/tests/protocols/h3/streams.rs";
const FRAMES: &str = "crates/http/tests/protocols/h3/frames.rs";
pub(super) const MESSAGES: &str = "crates/http/tests/protocols/h3/messages.rs";
const SESSIONS: &str = "crates/http/tests/protocols/h3/sessions.rs";
pub(super) const ATTACKS: &str = "crates/http/tests/protocols/h3/attacks.rs";
const SPLITS: &str = "crates/http/tests/protocols/h3/splits.rs";
const PAIR: &str = "crates/http/tests/protocols/h3/pair.rs";
const PEERS: &str = "crates/http/tests/protocols/h3/peers.rs";
const ALLOCATIONS: &str = "crates/http/tests/protocols/h3/allocations.rs";
const QPACK: &str = "crates/http/src/h3/qpack/tests.rs";
const VARINT: &str = "crates/http/src/h3/varint.rs";
const ERROR: &str = "crates/http/src/h3/error.rs";
const SERVER: &str = "crates/server/tests/loopback/http3.rs";
const SERVER_CONTENT: &str = "crates/server/tests/loopback/http3/content.rs";
pub(super) const SERVER_SOCKETS: &str = "crates/server/tests/loopback/http3/sockets.rs";
pub(super) const SERVER_SESSIONS: &str = "crates/server/tests/loopback/http3/sessions.rs";
pub(super) const LIMITS: &str = "crates/server/tests/loopback/http3/limits.rs";
pub(super) const SERVER_ATTACKS: &str = "crates/server/tests/loopback/http3/attacks.rs";
pub(super) const SERVER_FILES: &str = "crates/server/tests/loopback/http3/files.rs";
pub(super) const SERVER_RULES: &str = "crates/server/tests/loopback/http3/rules.rs";
const SERVER_MEMORY: &str = "crates/server/tests/measures/http3_memory.rs";
const SETTINGS: &str = "crates/server/src/http3.rs";
const QUIC_SESSIONS: &str = "crates/quic/tests/endpoints/exchange/sessions.rs";
const SERVER_HANDOVER: &str = "crates/server/tests/loopback/http3/handover.rs";
pub(super) const HALF_OPEN: &str = "crates/quic/tests/endpoints/exchange/half_open.rs";
pub(super) const EXCHANGE: &str = "crates/quic/tests/endpoints/exchange.rs";
const IDS: &str = "crates/quic/src/ids.rs";
const DATAGRAM: &str = "crates/engine/src/datagram.rs";
const FUZZ: &str = "fuzz/tests/brief.rs";

pub(super) const HTTP_3: &[Line] = &[
    line(
        "9114, 9204",
        "Streams of aioquic and field sections of pylsqpack, both ways (`cargo xtask interop --only http3`); both sides \
         with each other; any split of the input; a reader of whole streams",
        By(&[
            (PEERS, "streams_of_aioquic_are_read"),
            (PEERS, "field_sections_of_pylsqpack_are_read"),
            (PEERS, "streams_for_aioquic_are_complete"),
            (PAIR, "random_exchanges_of_both_sides_are_complete"),
            (SPLITS, "any_split_of_the_input_gives_the_same_events"),
            (FUZZ, "http3"),
        ]),
    ),
    line(
        "9000, 9001",
        "QUIC: quinn-proto without sockets, driven by the server. aioquic with wsproto, and WebTransport of Chromium, by \
         `cargo xtask interop --only http3`; a page and WebTransport of Firefox, by `--only firefox`",
        By(&[
            (SERVER, "requests_are_answered_over_http3"),
            (SERVER, "idle_connections_and_incomplete_handshakes_end"),
            (SERVER, "connections_beyond_a_limit_are_closed"),
            (EXCHANGE, "requests_are_answered_and_content_exceeds_the_windows"),
            (QUIC_SESSIONS, "datagrams_of_a_session_are_echoed"),
            (EXCHANGE, "idle_connections_end"),
            (EXCHANGE, "clients_without_h3_are_refused"),
            (EXCHANGE, "connections_beyond_the_limit_are_refused"),
            (EXCHANGE, "random_datagrams_cause_no_panic"),
            (EXCHANGE, "idle_connection_takes_at_most_26_kib_which_count"),
        ]),
    ),
    line(
        "9000 5.2",
        "Datagrams reach the process of their connection during a hot restart; new connections reach the successor",
        By(&[
            (
                SERVER_HANDOVER,
                "open_requests_are_finished_by_the_predecessor_while_the_successor_serves_new_clients",
            ),
            (SERVER_HANDOVER, "client_reconnects_to_the_successor_from_the_address_of_its_open_request"),
            (SERVER_HANDOVER, "open_requests_outlive_two_handovers"),
        ]),
    ),
    line(
        "9000 4 to 19",
        "Frames that h3spec tests, and more: each violation closes the connection with its code",
        By(&[(SERVER_RULES, "violations_of_frames_close_the_connection_with_their_code")]),
    ),
    line(
        "9000 7.3, 7.4, 18.2",
        "Transport parameters that h3spec tests, and more: missing, forbidden, out of range, twice",
        By(&[(SERVER_RULES, "invalid_transport_parameters_close_the_connection")]),
    ),
    line(
        "9000 17.2, 9001 6, 8",
        "Reserved bits, frames and TLS messages of the handshake that h3spec tests",
        By(&[(SERVER_RULES, "violations_of_the_handshake_close_the_connection_with_their_code")]),
    ),
    line(
        "9114, 9204",
        "Errors that h3spec tests, and more, at the server: frames, streams, settings and QPACK",
        By(&[
            (SERVER_RULES, "violations_of_http3_close_the_connection_with_their_code"),
            (SERVER_RULES, "violations_of_qpack_and_settings_close_the_connection_with_their_code"),
            (SERVER_RULES, "critical_streams_are_unique_and_never_end"),
            (SERVER_RULES, "malformed_requests_are_reset_and_reach_no_route"),
        ]),
    ),
    line(
        "9000 6, 21.12",
        "Version negotiation offers version 1 only, and answers no version negotiation",
        By(&[(SERVER_ATTACKS, "version_negotiation_offers_version_1_only")]),
    ),
    line(
        "limits",
        "Streams, windows, timeouts and handshakes are settings",
        By(&[
            (SETTINGS, "limits_reach_the_endpoint"),
            (SETTINGS, "invalid_limits_are_rejected"),
            (SERVER, "streams_and_handshakes_are_limited_as_configured"),
            (SERVER, "absent_clients_are_lost_after_the_idle_timeout"),
        ]),
    ),
    line(
        "9000 5.1, 9",
        "Connection identifiers lead to a worker, and reveal none; a client may change its address",
        By(&[
            (IDS, "identifiers_lead_to_their_worker_and_reveal_nothing"),
            (SERVER, "datagrams_of_a_client_that_moved_reach_the_worker_of_its_connection"),
        ]),
    ),
    line(
        "9000 8.1, 14.1",
        "At most three times the received bytes before the address is validated; short first datagrams; Retry when busy",
        By(&[
            (EXCHANGE, "answers_before_validation_are_limited"),
            (EXCHANGE, "busy_endpoint_validates_addresses_by_retry"),
            (HALF_OPEN, "half_open_handshakes_take_bounded_memory_and_exclude_no_client"),
            (SERVER_ATTACKS, "half_open_handshakes_exclude_no_client"),
            (SERVER_ATTACKS, "answers_to_unproved_addresses_are_limited"),
        ]),
    ),
    line(
        "9000 10.3, 21.11",
        "Stateless resets shrink, and reveal no token of a connection",
        By(&[
            (EXCHANGE, "stateless_resets_do_not_loop"),
            (SERVER_ATTACKS, "stateless_resets_reveal_no_token_of_a_connection"),
        ]),
    ),
    line("9001 9.2, 8470", "0-RTT", Not("not accepted: rustls has early data off unless configured")),
    line(
        "queues",
        "Unread streams close their own window; content for closed windows is limited",
        By(&[
            (EXCHANGE, "paused_streams_close_their_window_and_no_other"),
            (EXCHANGE, "paused_streams_leave_the_window_to_others"),
            (EXCHANGE, "content_beyond_the_limit_of_the_queue_ends_the_connection"),
            (SERVER_ATTACKS, "closed_windows_hold_a_piece_of_each_answer"),
            (SERVER_ATTACKS, "windows_that_stay_closed_end_their_answer"),
            (SERVER_SOCKETS, "slow_socket_delays_no_other_and_is_closed_at_its_limit"),
        ]),
    ),
    line(
        "3168, 9000 13.4",
        "UDP with segmentation offload and congestion bits; errors of peers",
        By(&[
            (DATAGRAM, "batches_arrive_as_datagrams"),
            (DATAGRAM, "errors_of_peers_are_no_errors_of_the_socket"),
            (DATAGRAM, "workers_share_an_address"),
        ]),
    ),
    line(
        "9000 16",
        "Integers of variable length",
        By(&[(VARINT, "integers_of_the_rfc_are_read_and_written")]),
    ),
    line(
        "9114 4.1",
        "Head, content, trailers; interim responses; requests without an end",
        By(&[
            (FRAMES, "frames_are_on_their_stream_and_in_order"),
            (FRAMES, "messages_are_sent_in_order"),
            (FRAMES, "long_heads_have_long_lengths"),
            (MESSAGES, "incomplete_requests_are_rejected"),
        ]),
    ),
    line("9114 4.1.1", "Resets and STOP_SENDING end a message", By(&[(FRAMES, "resets_end_a_message")])),
    line(
        "9114 4.1.2, 4.2, 4.3",
        "Malformed messages: names, values, pseudo-header fields, Content-Length; the code is that of HTTP/2",
        By(&[
            (MESSAGES, "malformed_requests_are_rejected"),
            (MESSAGES, "malformed_responses_are_rejected"),
            (MESSAGES, "content_length_equals_the_length_of_data"),
            (MESSAGES, "responses_without_content_may_declare_a_length"),
            (MESSAGES, "trailers_have_no_pseudo_header_fields"),
            (REQUESTS, "pseudo_header_fields_come_first_once_and_are_known"),
        ]),
    ),
    line(
        "9114 4.2.2",
        "A field section beyond the limit is answered 431",
        By(&[
            (MESSAGES, "field_section_beyond_the_limit_is_answered_431_and_the_connection_continues"),
            (SERVER_CONTENT, "large_heads_and_other_schemes_are_rejected"),
        ]),
    ),
    line(
        "9114 4.4",
        "A tunnel carries DATA only",
        By(&[(FRAMES, "frames_are_on_their_stream_and_in_order")]),
    ),
    line("9114 4.6, 6.2.2", "No side pushes", By(&[(STREAMS, "push_is_rejected")])),
    line(
        "9114 5.2, 7.2.6",
        "GOAWAY names a request and never grows; graceful shutdown in two steps",
        By(&[
            (STREAMS, "goaway_names_a_request_and_never_grows"),
            (STREAMS, "graceful_shutdown_announces_then_rejects_new_requests"),
            (EXCHANGE, "shutdown_finishes_requests_and_accepts_no_more"),
            (EXCHANGE, "requests_that_cross_the_announced_end_are_served"),
            (LIMITS, "requests_that_cross_the_end_of_the_server_are_served"),
            (SERVER, "graceful_stop_finishes_answers_and_accepts_no_more"),
            (SERVER_SOCKETS, "graceful_stop_closes_sockets_in_order"),
        ]),
    ),
    line(
        "9114 6.1",
        "A server opens no bidirectional stream; streams beyond the limit are rejected",
        By(&[
            (STREAMS, "server_opens_no_bidirectional_stream"),
            (STREAMS, "streams_beyond_the_limit_are_rejected"),
        ]),
    ),
    line(
        "9114 8",
        "Errors close the connection with their code",
        By(&[(EXCHANGE, "violations_close_the_connection_with_their_code")]),
    ),
    line(
        "9114 6.2, 9",
        "Unknown streams, frames and settings are ignored",
        By(&[
            (STREAMS, "unknown_streams_are_stopped_and_may_end_before_their_type"),
            (FRAMES, "unknown_frames_are_ignored_everywhere"),
            (STREAMS, "settings_have_valid_values_once"),
        ]),
    ),
    line(
        "9114 6.2.1",
        "One control stream each way, SETTINGS first, never closed",
        By(&[
            (STREAMS, "control_stream_begins_with_settings_and_never_ends"),
            (STREAMS, "own_control_stream_begins_with_settings"),
        ]),
    ),
    line(
        "9114 7.1",
        "Frames are complete, and as long as their fields",
        By(&[(FRAMES, "frames_are_complete_and_have_the_length_of_their_fields")]),
    ),
    line(
        "9114 7.2.4",
        "Settings: each once, valid values, none of HTTP/2",
        By(&[(STREAMS, "settings_have_valid_values_once")]),
    ),
    line(
        "9114 7.2.7",
        "MAX_PUSH_ID of the client, never less",
        By(&[(STREAMS, "max_push_id_is_of_the_client_and_never_shrinks")]),
    ),
    line("9114 7.2.8", "Frames of HTTP/2", By(&[(FRAMES, "frames_of_http2_are_rejected")])),
    line(
        "9204 2.2, 3",
        "Field sections without dynamic entries; the static table",
        By(&[
            (MESSAGES, "invalid_field_sections_end_the_connection"),
            (QPACK, "sections_of_the_rfc_with_dynamic_entries_are_rejected"),
            (QPACK, "each_static_entry_returns_by_its_index"),
            (QPACK, "base_is_ignored_without_dynamic_entries"),
            (QPACK, "literal_with_a_name_reference_of_the_rfc_is_decoded"),
            (QPACK, "random_fields_return"),
        ]),
    ),
    line(
        "9204 4.2 to 4.4",
        "Encoder and decoder streams: once, never closed, no instruction for a table of capacity 0",
        By(&[
            (STREAMS, "encoder_stream_has_no_instruction_for_a_table"),
            (STREAMS, "decoder_stream_has_only_cancellations"),
        ]),
    ),
    line("9204 7.1.3", "Secrets are never indexed", By(&[(QPACK, "secrets_are_never_indexed")])),
    line(
        "9297 2.1",
        "Datagrams name an open request; the setting is 0 or 1",
        By(&[(SESSIONS, "datagrams_name_an_open_session"), (STREAMS, "settings_have_valid_values_once")]),
    ),
    line(
        "9297 3.2",
        "Capsules: lengths, unknown types",
        By(&[(SESSIONS, "capsules_end_and_drain_a_session")]),
    ),
    line(
        "webtrans-http3 3.1",
        "No session before SETTINGS",
        By(&[(SESSIONS, "requests_for_a_session_wait_for_settings")]),
    ),
    line(
        "webtrans-http3 4",
        "Streams of a session: signals 0x54 and 0x41 first, a valid session, bytes without frames",
        By(&[
            (SESSIONS, "streams_of_a_session_carry_bytes_without_frames"),
            (SESSIONS, "own_streams_of_a_session_begin_with_its_identifier"),
            (SESSIONS, "streams_name_a_request_and_signals_come_first"),
        ]),
    ),
    line(
        "webtrans-http3 4.4",
        "Codes of applications are mapped around reserved codes",
        By(&[(ERROR, "codes_of_sessions_are_mapped_around_reserved_codes")]),
    ),
    line(
        "webtrans-http3 4.6",
        "Streams and datagrams before their session wait within limits",
        By(&[
            (SESSIONS, "streams_wait_for_their_session"),
            (SESSIONS, "streams_that_end_before_their_session_end_on_both_sides"),
            (SESSIONS, "datagrams_wait_for_their_session_within_limits"),
            (ATTACKS, "held_streams_are_limited"),
            (QUIC_SESSIONS, "stream_before_its_session_continues_once_it_is_open"),
            (QUIC_SESSIONS, "datagram_before_its_session_is_delivered_once_it_is_open"),
        ]),
    ),
    line(
        "webtrans-http3 3.1, 5.1",
        "Sessions of clients with datagrams; drafts with flow control of sessions are told one; origins are checked",
        By(&[
            (SESSIONS, "sessions_of_clients_without_datagrams_are_malformed"),
            (SESSIONS, "requests_for_a_session_wait_for_settings"),
            (SERVER_SESSIONS, "requests_for_sessions_are_decided_as_handshakes"),
        ]),
    ),
    line(
        "9221 5.3",
        "Datagrams are subject to congestion control; the newest value of each topic waits",
        By(&[
            (QUIC_SESSIONS, "datagrams_beyond_the_congestion_window_stay_with_the_application"),
            (SERVER_SESSIONS, "newest_publication_of_each_topic_leaves_when_the_network_is_free_again"),
        ]),
    ),
    line(
        "webtrans-http3 4.3",
        "Streams of messages that the client opens: each a socket, within a limit; others are reset with a code of the application",
        By(&[
            (SERVER_SESSIONS, "streams_that_the_client_opens_carry_messages"),
            (SERVER_SESSIONS, "stream_of_the_server_remains_if_the_client_has_used_it"),
            (SERVER_SESSIONS, "streams_of_a_session_end_with_it"),
            (SERVER_SESSIONS, "streams_beyond_the_limits_are_reset_with_their_code"),
            (SERVER_SESSIONS, "unidirectional_streams_of_the_client_are_rejected"),
        ]),
    ),
    line(
        "webtrans-http3 5, 6",
        "Number of sessions; CLOSE and DRAIN; the end of a session stops its streams",
        By(&[
            (SESSIONS, "sessions_beyond_the_limit_are_rejected"),
            (SERVER_SESSIONS, "sessions_beyond_max_sessions_are_rejected"),
            (SERVER_SESSIONS, "sessions_of_a_connection_are_independent"),
            (SESSIONS, "capsules_end_and_drain_a_session"),
            (SESSIONS, "own_capsules_are_received_by_the_other_side"),
        ]),
    ),
    line(
        "CVE-2023-44487, CVE-2025-8671",
        "Rapid resets, and resets that the client provokes",
        By(&[
            (ATTACKS, "rapid_resets_end_the_connection"),
            (ATTACKS, "rapid_resets_of_session_streams_end_the_connection"),
            (ATTACKS, "provoked_resets_end_the_connection"),
            (SERVER_SESSIONS, "rapid_resets_of_streams_end_the_connection"),
            (SERVER_ATTACKS, "rapid_resets_end_the_connection"),
            (SERVER_ATTACKS, "provoked_resets_end_the_connection"),
        ]),
    ),
    line(
        "CVE-2026-40898, CVE-2024-27316",
        "Field sections that decode to much, are large, or never end",
        By(&[
            (ATTACKS, "field_section_bombs_end_the_connection_while_they_are_decoded"),
            (ATTACKS, "large_field_sections_end_the_connection"),
            (SERVER_ATTACKS, "field_section_bombs_are_rejected_or_end_the_connection"),
        ]),
    ),
    line(
        "CVE-2019-9512 and its kind",
        "Floods of frames, streams, capsules and instructions without content; long SETTINGS",
        By(&[
            (ATTACKS, "floods_of_frames_without_content_end_the_connection"),
            (ATTACKS, "long_settings_end_the_connection"),
            (SERVER_ATTACKS, "floods_of_frames_without_content_end_the_connection"),
            (SERVER_ATTACKS, "floods_of_pings_stop_no_other_client"),
        ]),
    ),
    line(
        "head timeout",
        "Each stream has the head timeout for its head, and is reset alone",
        By(&[
            (ATTACKS, "heads_that_do_not_arrive_expire_and_no_others"),
            (LIMITS, "requests_without_heads_are_reset_alone"),
            (LIMITS, "busy_clients_outlive_the_head_timeout"),
        ]),
    ),
    line(
        "CVE-2019-9517",
        "Closed windows: answers count as memory, and streams take turns in the window of the connection",
        By(&[
            (LIMITS, "answers_to_closed_windows_count_as_memory"),
            (SERVER_ATTACKS, "closed_windows_hold_a_piece_of_each_answer"),
            (EXCHANGE, "streams_take_turns_in_the_window_of_the_connection"),
            (EXCHANGE, "resets_of_paused_streams_are_reported"),
        ]),
    ),
    line(
        "memory",
        "A connection in steady state allocates nothing",
        By(&[(ALLOCATIONS, "requests_tunnels_and_sessions_allocate_nothing_in_steady_state")]),
    ),
    line(
        "memory",
        "Permitted unidirectional streams grow as a session opens them",
        By(&[(QUIC_SESSIONS, "permitted_streams_of_a_session_grow_as_they_are_opened")]),
    ),
    line(
        "memory",
        "Memory of an idle connection, an idle WebSocket and an idle session; memory of QUIC counts toward the limit",
        By(&[
            (SERVER_MEMORY, "idle_connections_websockets_and_sessions_take_bounded_memory"),
            (EXCHANGE, "content_that_quic_holds_counts_as_memory"),
            (SERVER_ATTACKS, "idle_connections_count_toward_the_limit_of_memory"),
        ]),
    ),
];
