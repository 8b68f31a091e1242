//! Rules of HTTP/2 and HPACK, and attacks on them.

use super::Held::By;
use super::{Line, line};

pub(super) const FRAMES: &str = "crates/http/tests/protocols/h2/frames.rs";
pub(super) const FLOW: &str = "crates/http/tests/protocols/h2/flow.rs";
pub(super) const REQUESTS: &str = "crates/http/tests/protocols/h2/requests.rs";
pub(super) const ATTACKS: &str = "crates/http/tests/protocols/h2/attacks.rs";
const SPLITS: &str = "crates/http/tests/protocols/h2/splits.rs";
const ORACLE: &str = "crates/http/tests/protocols/h2/oracle.rs";
const HPACK: &str = "crates/http/src/h2/hpack/tests.rs";
pub(super) const SERVER: &str = "crates/server/tests/loopback/http2.rs";
const CONTENT: &str = "crates/server/tests/loopback/http2/content.rs";
pub(super) const SOCKETS: &str = "crates/server/tests/loopback/http2/sockets.rs";
pub(super) const LIMITS: &str = "crates/server/tests/loopback/http2/limits.rs";
const WORKER: &str = "crates/server/src/worker/tests/http2.rs";
pub(super) const SOCKET_ATTACKS: &str = "crates/server/tests/loopback/http2/socket_attacks.rs";
pub(super) const VERSIONS: &str = "crates/cli/tests/program/versions.rs";
const TLS: &str = "crates/server/tests/loopback/tls.rs";

pub(super) const HTTP_2: &[Line] = &[
    line(
        "9113, 7541",
        "Random requests, content, trailers and tunnels with the client of the crate `h2`; any split of the input",
        By(&[
            (ORACLE, "random_exchanges_with_another_client_are_echoed"),
            (SPLITS, "any_split_of_the_input_gives_the_same_events"),
        ]),
    ),
    line(
        "9113 3.2, 9.2",
        "ALPN `h2` where HTTP/2 is enabled; rustls has neither weak ciphers, nor compression, nor renegotiation",
        By(&[(TLS, "alpn_chooses_http2_where_it_is_enabled")]),
    ),
    line(
        "9113 3.3",
        "Clear text by prior knowledge, beside HTTP/1.1, where HTTP/2 is enabled",
        By(&[
            (SERVER, "many_streams_are_answered_and_bodies_exceed_the_windows"),
            (SERVER, "without_the_option_the_preface_is_rejected"),
        ]),
    ),
    line(
        "9113 3.4",
        "The preface, then SETTINGS, on both sides",
        By(&[(FRAMES, "connection_begins_with_preface_and_settings")]),
    ),
    line(
        "9113 4.1, 5.5",
        "Unknown frames, flags, settings and the reserved bit are ignored",
        By(&[(FRAMES, "unknown_frames_flags_settings_and_the_reserved_bit_are_ignored")]),
    ),
    line(
        "9113 4.2",
        "Frames within SETTINGS_MAX_FRAME_SIZE",
        By(&[(FRAMES, "frame_beyond_max_frame_size_is_rejected_by_its_header")]),
    ),
    line(
        "9113 4.3, 6.10",
        "Header blocks are not interrupted, and all are decoded; long ones continue in further frames",
        By(&[
            (FRAMES, "nothing_interrupts_a_header_block"),
            (FRAMES, "header_blocks_of_refused_streams_are_decoded"),
            (FRAMES, "long_responses_heads_continue_in_further_frames"),
        ]),
    ),
    line(
        "9113 5.1",
        "Frames on idle, half-closed and closed streams; those that cross a reset are counted for flow control",
        By(&[
            (FRAMES, "frames_on_idle_streams_are_errors"),
            (FRAMES, "frames_after_the_end_of_a_stream_are_errors"),
            (FRAMES, "frames_that_cross_our_reset_are_ignored_and_counted_for_flow_control"),
            (FRAMES, "frames_that_cross_our_reset_are_ignored_however_many_streams_close_after_it"),
            (LIMITS, "late_bodies_of_answered_requests_are_ignored_however_many_streams_end"),
            (LIMITS, "late_messages_of_a_socket_that_was_reset_are_ignored"),
        ]),
    ),
    line(
        "9113 5.1.1",
        "Identifiers are odd and grow",
        By(&[(FRAMES, "identifiers_of_new_streams_are_odd_and_grow")]),
    ),
    line(
        "9113 5.1.2",
        "Streams beyond SETTINGS_MAX_CONCURRENT_STREAMS are refused",
        By(&[(FRAMES, "streams_beyond_the_limit_are_refused")]),
    ),
    line(
        "9113 5.2, 6.9",
        "Flow control: increments, maximum, excess, padding; one stream never stops another",
        By(&[
            (FLOW, "window_update_has_four_octets_and_an_increment"),
            (FLOW, "window_beyond_its_maximum_is_an_error"),
            (FLOW, "content_beyond_a_window_is_an_error"),
            (FLOW, "padding_counts_for_flow_control_and_is_returned"),
            (FLOW, "stream_that_is_not_read_holds_only_its_own_window"),
            (FLOW, "content_is_sent_within_both_windows_and_continues_when_they_open"),
            (FLOW, "end_of_a_response_needs_no_window"),
        ]),
    ),
    line(
        "9113 6.9.2",
        "SETTINGS_INITIAL_WINDOW_SIZE moves the windows of all streams, also below zero",
        By(&[(FLOW, "initial_window_moves_the_windows_of_all_streams")]),
    ),
    line(
        "9113 5.3.2, 6.3",
        "PRIORITY is ignored; its length is checked",
        By(&[(FRAMES, "priority_is_ignored_and_has_five_octets")]),
    ),
    line(
        "9113 6.1, 6.2",
        "DATA and HEADERS: stream and padding",
        By(&[(FRAMES, "data_and_headers_need_a_stream_and_valid_padding")]),
    ),
    line(
        "9113 6.4",
        "RST_STREAM: length and stream",
        By(&[(FRAMES, "rst_stream_has_four_octets_and_a_stream")]),
    ),
    line(
        "9113 6.5",
        "SETTINGS: length, values, acknowledgement in order; ours bind from the acknowledgement on",
        By(&[
            (CONTENT, "acknowledgement_of_settings_precedes_the_data_that_they_permit"),
            (SERVER, "silent_clients_and_closed_windows_time_out"),
            (FRAMES, "settings_have_a_valid_length_and_no_stream"),
            (FRAMES, "settings_have_valid_values"),
            (FRAMES, "settings_are_acknowledged_in_order_and_ours_bind_from_the_acknowledgement_on"),
        ]),
    ),
    line("9113 6.6, 8.4", "Clients do not push", By(&[(FRAMES, "clients_do_not_push")])),
    line(
        "9113 6.7",
        "PING: length, and answers before other frames",
        By(&[(FRAMES, "pings_are_answered_first_and_have_eight_octets")]),
    ),
    line(
        "9113 6.8",
        "GOAWAY: the last stream never grows; graceful shutdown takes a round trip",
        By(&[
            (FRAMES, "goaway_of_the_client_is_reported_and_its_last_stream_never_grows"),
            (FRAMES, "graceful_shutdown_takes_a_round_trip"),
            (SERVER, "graceful_stop_finishes_streams"),
            (CONTENT, "goaway_of_the_client_lets_open_streams_finish"),
        ]),
    ),
    line(
        "9113 8.1",
        "Head, content, trailers; interim responses; trailers end the stream",
        By(&[
            (FRAMES, "heads_content_and_trailers_are_sent_in_order"),
            (REQUESTS, "trailers_end_the_stream_and_have_no_pseudo_header_fields"),
        ]),
    ),
    line(
        "9113 8.1.1",
        "Content-Length equals the length of DATA",
        By(&[(REQUESTS, "content_length_equals_the_length_of_data")]),
    ),
    line(
        "9113 8.2",
        "Names in lower case; no control characters; no connection-specific fields; pieces of cookies",
        By(&[
            (REQUESTS, "field_names_are_tokens_in_lower_case"),
            (REQUESTS, "field_values_have_no_control_characters_and_no_surrounding_spaces"),
            (REQUESTS, "connection_specific_fields_are_rejected"),
            (REQUESTS, "pieces_of_cookies_are_joined"),
        ]),
    ),
    line(
        "9113 8.3",
        "Pseudo-header fields: first, once, known, complete; `Host` agrees with `:authority`",
        By(&[
            (REQUESTS, "pseudo_header_fields_come_first_once_and_are_known"),
            (REQUESTS, "requests_have_method_scheme_and_path"),
            (REQUESTS, "host_and_authority_agree"),
        ]),
    ),
    line(
        "9113 8.3.1",
        "A scheme that the connection does not carry is answered 421",
        By(&[(CONTENT, "scheme_fits_the_connection"), (TLS, "alpn_chooses_http2_where_it_is_enabled")]),
    ),
    line("9113 8.5", "CONNECT names a host and a port", By(&[(REQUESTS, "connect_names_a_host_and_a_port")])),
    line(
        "9113 10.5.1",
        "A header list beyond the limit is answered 431",
        By(&[(REQUESTS, "header_list_beyond_the_limit_is_answered_431_and_the_connection_continues")]),
    ),
    line(
        "7541 2.3.3, 6.1",
        "Indexes within the tables; fields within the block",
        By(&[(HPACK, "indexes_beyond_the_tables_and_cut_fields_are_invalid")]),
    ),
    line(
        "7541 4",
        "The dynamic table: eviction, size updates, large fields",
        By(&[
            (HPACK, "responses_of_the_rfc_evict_entries"),
            (HPACK, "table_size_updates_come_first_and_within_the_settings"),
            (HPACK, "large_fields_empty_the_table"),
            (HPACK, "encoder_follows_the_size_of_the_peers_table"),
        ]),
    ),
    line(
        "7541 5, C",
        "Integers and Huffman-encoded strings",
        By(&[
            (HPACK, "integers_have_a_prefix"),
            (HPACK, "integers_are_limited"),
            (HPACK, "huffman_strings_of_all_bytes_return"),
            (HPACK, "huffman_padding_is_short_and_all_ones"),
            (HPACK, "requests_of_the_rfc_are_decoded"),
        ]),
    ),
    line("7541 7.1.3", "Secrets are never indexed", By(&[(HPACK, "secrets_are_never_indexed")])),
    line(
        "CVE-2023-44487, CVE-2025-8671",
        "Rapid resets, and resets that the client provokes",
        By(&[
            (ATTACKS, "rapid_resets_end_the_connection"),
            (ATTACKS, "provoked_resets_end_the_connection"),
            (SOCKET_ATTACKS, "rapid_resets_of_sockets_end_the_connection"),
            (SERVER, "floods_and_faults_end_only_their_connection"),
        ]),
    ),
    line(
        "resets",
        "All users of a proxy may leave at once: the permitted burst grows with the maximum of streams",
        By(&[
            (ATTACKS, "bursts_of_resets_grow_with_the_maximum_of_streams"),
            (LIMITS, "sockets_of_a_proxy_that_end_at_once_leave_the_others_open"),
        ]),
    ),
    line(
        "head timeout",
        "Each header block has the head timeout, and reads that are paused extend it",
        By(&[
            (FRAMES, "partial_blocks_are_told_apart"),
            (WORKER, "head_timeout_begins_with_each_header_block"),
            (LIMITS, "busy_clients_outlive_the_head_timeout"),
            (SERVER, "silent_clients_and_closed_windows_time_out"),
        ]),
    ),
    line(
        "CVE-2024-27316",
        "Header blocks without an end",
        By(&[(ATTACKS, "continuation_floods_end_the_connection")]),
    ),
    line(
        "CVE-2016-6581",
        "Header blocks that decode to much",
        By(&[(ATTACKS, "header_bombs_end_the_connection_while_they_are_decoded")]),
    ),
    line(
        "CVE-2019-9511 to 9518",
        "Floods of PING, SETTINGS, PRIORITY, WINDOW_UPDATE and empty DATA; closed windows; unread answers and content",
        By(&[
            (ATTACKS, "floods_of_frames_without_content_end_the_connection"),
            (ATTACKS, "answers_to_a_peer_that_does_not_read_are_limited"),
            (ATTACKS, "closed_windows_hold_no_memory_of_the_machine"),
            (ATTACKS, "content_that_is_not_read_is_limited"),
            (SERVER, "floods_and_faults_end_only_their_connection"),
            (SERVER, "silent_clients_and_closed_windows_time_out"),
            (SOCKET_ATTACKS, "frames_without_content_end_the_connection_of_a_socket"),
            (SOCKET_ATTACKS, "closed_windows_hold_a_bounded_queue"),
            (SOCKET_ATTACKS, "closed_window_ends_its_stream_at_the_write_timeout"),
            (LIMITS, "answers_to_closed_windows_count_as_memory"),
            (WORKER, "bodies_behind_their_own_window_time_out_alone"),
            (WORKER, "bodies_behind_a_full_queue_time_out_with_the_connection"),
            (WORKER, "failure_outside_of_input_ends_the_connection_and_its_sockets"),
        ]),
    ),
    line(
        "one server",
        "Access log, tokens, readiness, the dashboard, and limits of messages and memory over each version",
        By(&[
            (VERSIONS, "access_log_tokens_readiness_and_dashboard_hold_over_each_version"),
            (VERSIONS, "rates_of_messages_and_memory_are_limited_over_each_version"),
        ]),
    ),
];
