//! Faults of other projects.

use super::Held::{By, Not};
use super::rules::{
    AUTOBAHN, CLIENT, CODEC, CUTS, FAULTS, GRAMMAR, HEADS, HTTP, LIFETIME, MASKS, MEMORY, OFFERS, ORIGIN,
    PROBES, PROPERTIES, SERVER, SOCKET, UPGRADE,
};
use super::{Line, line};

const FLOW: &str = "crates/server/tests/loopback/flow.rs";
const SERVER_LIFETIME: &str = "crates/server/tests/loopback/lifetime.rs";
const ACCEPTING: &str = "crates/engine/tests/loopback/accepting.rs";

pub(super) const PROBED: &[Line] = &[
    line(
        "server",
        "A key without Upgrade, Connection or version: 101",
        By(&[(PROBES, "a_key_alone_is_not_a_websocket_request")]),
    ),
    line("server", "Version 8: 101", By(&[(PROBES, "version_8_is_rejected_with_the_supported_version")])),
    line(
        "server",
        "A key of 24 characters that is not base64: 101",
        By(&[(PROBES, "twenty_four_characters_are_not_yet_a_key")]),
    ),
    line(
        "server",
        "An unknown deflate parameter, a window of 16 or 8: accepted, and ignored",
        By(&[(PROBES, "unsupported_offers_are_declined_and_the_next_is_accepted")]),
    ),
    line(
        "server",
        "A frame behind the handshake in the same segment: lost",
        By(&[(PROBES, "frames_behind_either_head_in_the_same_segment_are_kept")]),
    ),
    line(
        "server",
        "An unmasked frame: read as masked",
        By(&[(PROBES, "input_that_is_masked_wrongly_for_the_role_fails")]),
    ),
    line(
        "server",
        "Two bytes under a 16-bit or 64-bit length: accepted",
        By(&[(PROBES, "a_length_takes_no_more_bytes_than_it_needs")]),
    ),
    line(
        "server",
        "A text fragment, then a binary frame: merged",
        By(&[(PROBES, "a_data_frame_of_either_kind_inside_a_message_fails")]),
    ),
    line(
        "server",
        "A text fragment, a ping, a new text frame: merged",
        By(&[(PROBES, "a_data_frame_of_either_kind_inside_a_message_fails")]),
    ),
    line(
        "server",
        "RSV1 on a ping: answered, and the next frame inflated",
        By(&[(PROBES, "the_compression_bit_stands_on_first_frames_only")]),
    ),
    line(
        "server",
        "RSV1 on the continuation only: the message inflated",
        By(&[(PROBES, "the_compression_bit_stands_on_first_frames_only")]),
    ),
    line(
        "server",
        "Close 1012, 1014, 3000: treated as invalid",
        By(&[(PROBES, "close_codes_that_may_be_on_the_wire_are_echoed")]),
    ),
    line(
        "server",
        "Close of one byte, 1005, 1006, 1015, 2999, 5000, bad reason: an empty Close",
        By(&[(PROBES, "close_frames_that_may_not_be_are_answered_with_1002")]),
    ),
    line(
        "server",
        "Bad UTF-8, too much, ping of 126, top bit: dropped without a Close",
        By(&[(PROBES, "each_failure_sends_the_close_that_names_it")]),
    ),
    line(
        "server",
        "Right there too: no Host, RSV1 without extension, text inside text, a bare continuation",
        By(&[
            (PROBES, "a_key_alone_is_not_a_websocket_request"),
            (PROBES, "the_compression_bit_means_nothing_without_the_extension"),
            (PROBES, "a_continuation_without_a_message_fails"),
        ]),
    ),
    line(
        "server",
        "Broken, cut or never-ending deflate data: dropped without a Close",
        By(&[
            (PROBES, "broken_deflate_data_fails_with_1007"),
            (CODEC, "what_breaks_off_is_refused"),
            (CODEC, "garbage_is_refused"),
        ]),
    ),
    line(
        "server",
        "Two keys: the first is taken",
        By(&[(PROBES, "twenty_four_characters_are_not_yet_a_key")]),
    ),
    line(
        "library",
        "Unmasked client frames accepted",
        By(&[(PROBES, "input_that_is_masked_wrongly_for_the_role_fails")]),
    ),
    line(
        "library",
        "A fragment collector that ignores the message limit",
        By(&[(FAULTS, "fragments_and_incomplete_frames_count_toward_the_message_limit")]),
    ),
    line("library", "UTF-8 unchecked unless asked for", By(&[(AUTOBAHN, "section_6_utf8")])),
    line(
        "library",
        "A read future dropped in mid-frame loses bytes",
        Not("the asynchronous library is not built yet"),
    ),
    line(
        "library",
        "A send given up in mid-frame lets the next frame land inside the payload",
        By(&[
            (PROPERTIES, "a_send_may_stop_at_every_byte"),
            (LIFETIME, "a_session_may_end_while_a_send_is_in_flight"),
        ]),
    ),
    line(
        "library",
        "A ping that is too long is sent",
        By(&[(PROBES, "our_own_control_frames_are_never_too_long")]),
    ),
    line(
        "library",
        "A message of 100 bytes that is kept pins a block of 64 KiB",
        By(&[(MEMORY, "a_message_that_is_kept_costs_its_own_length")]),
    ),
    line(
        "library",
        "Memory never shrinks after one large message",
        By(&[
            (MEMORY, "an_idle_session_owns_no_buffers_after_any_history"),
            (MEMORY, "a_message_of_16_mib_costs_few_allocations"),
        ]),
    ),
    line(
        "library",
        "Errors of accept end the server",
        By(&[
            (ACCEPTING, "a_lack_of_descriptors_ends_by_itself"),
            (ACCEPTING, "a_lack_of_descriptors_ends_when_a_connection_closes"),
        ]),
    ),
    line(
        "library",
        "No handshake timeout",
        By(&[(HTTP, "request_has_a_head_timeout"), (HTTP, "slow_drip_of_bytes_does_not_extend_the_timeout")]),
    ),
    line(
        "library",
        "Compression options that negotiate nothing",
        By(&[
            (AUTOBAHN, "echoes_are_compressed_and_windows_taken_over"),
            (SOCKET, "compressed_messages_are_echoed_in_either_mode"),
        ]),
    ),
];

pub(super) const DEFAULTS: &[Line] = &[
    line(
        "limits",
        "Every limit and timeout has a default within the range of established servers",
        By(&[(PROBES, "defaults_are_within_the_range_of_established_servers")]),
    ),
    line(
        "limits",
        "Heads over the limit are refused",
        By(&[
            (HEADS, "the_size_of_a_head_is_limited_to_the_byte"),
            (HEADS, "the_number_of_header_lines_is_limited_to_the_line"),
            (HTTP, "oversized_requests_are_rejected"),
        ]),
    ),
    line(
        "limits",
        "Messages over the limit end with 1009",
        By(&[(SOCKET, "message_over_the_limit_is_closed_with_1009")]),
    ),
    line(
        "liveness",
        "Silent peers are asked, then closed; writers that stall are dropped",
        By(&[
            (FAULTS, "silent_peers_are_pinged_and_then_closed"),
            (SERVER_LIFETIME, "peer_that_does_not_read_is_dropped"),
        ]),
    ),
    line(
        "origin",
        "Pages of the same origin only, unless the server says otherwise",
        By(&[(ORIGIN, "foreign_pages_are_refused_unless_the_server_says_otherwise")]),
    ),
];

pub(super) const CLASSES: &[Line] = &[
    line(
        "A",
        "2^63, 2^64-1, 2^63-1 as a length: overflow, endless loop, crash",
        By(&[
            (FAULTS, "absurd_lengths_fail_with_the_head"),
            (FAULTS, "lengths_near_the_end_of_64_bits_do_not_overflow"),
        ]),
    ),
    line(
        "A",
        "Memory reserved for a declared length, before the bytes arrive or before the opcode is checked",
        By(&[
            (MEMORY, "a_declared_length_reserves_nothing"),
            (MEMORY, "assembly_follows_the_bytes_received"),
            (FAULTS, "header_errors_are_reported_before_the_length_arrives"),
        ]),
    ),
    line(
        "A",
        "Control frames with long lengths",
        By(&[
            (FAULTS, "header_errors_are_reported_before_the_length_arrives"),
            (AUTOBAHN, "section_2_pings_and_pongs"),
        ]),
    ),
    line(
        "A",
        "No limit set: reads past the end",
        By(&[(FAULTS, "lengths_near_the_end_of_64_bits_do_not_overflow")]),
    ),
    line(
        "B",
        "A million empty continuations, tiny fragments",
        By(&[
            (FAULTS, "empty_continuations_are_counted"),
            (FAULTS, "fragments_are_counted_and_the_suite_stays_below_the_limit"),
            (MEMORY, "many_small_parts_cost_no_memory"),
        ]),
    ),
    line(
        "B",
        "Segments of one byte",
        By(&[
            (MEMORY, "segments_of_one_byte_cost_no_memory"),
            (PROPERTIES, "any_chunking_gives_the_same_events_and_the_same_bytes"),
        ]),
    ),
    line(
        "B",
        "An incomplete frame that escapes the limit",
        By(&[(FAULTS, "fragments_and_incomplete_frames_count_toward_the_message_limit")]),
    ),
    line(
        "B",
        "A flood of pings to a peer that never reads",
        By(&[
            (FAULTS, "a_flood_of_pings_to_a_peer_that_never_reads_is_bounded"),
            (FAULTS, "pings_faster_than_the_rate_fail"),
            (FAULTS, "no_pong_or_ping_is_queued_above_the_high_water_mark"),
            (FLOW, "pings_to_a_peer_that_does_not_read_are_not_queued"),
        ]),
    ),
    line(
        "B",
        "Output without bound",
        By(&[
            (FAULTS, "output_over_the_cap_closes"),
            (FAULTS, "output_over_the_cap_drops_the_newest"),
            (FAULTS, "output_over_the_cap_drops_the_oldest"),
            (FAULTS, "own_messages_are_not_dropped_by_the_overflow_policy"),
            (FAULTS, "own_pings_count_toward_the_cap"),
            (FAULTS, "reading_pauses_while_the_peer_does_not_read_and_loses_nothing"),
        ]),
    ),
    line(
        "B",
        "Connections kept after their close",
        By(&[(FAULTS, "a_peer_that_does_not_finish_the_closing_handshake_is_dropped")]),
    ),
    line(
        "C",
        "A thousand to one, in one frame and in many",
        By(&[
            (FAULTS, "a_bomb_fails_in_one_frame_and_in_many"),
            (SOCKET, "compression_bomb_is_closed_with_1009_while_inflating"),
        ]),
    ),
    line(
        "C",
        "The limit hits while inflating, not after",
        By(&[
            (MEMORY, "a_bomb_costs_no_more_than_the_limit"),
            (FAULTS, "a_bomb_in_pieces_stops_at_the_limit"),
            (CODEC, "a_bomb_stops_at_the_room"),
        ]),
    ),
    line(
        "C",
        "An early stop leaves shared contexts in a dirty state",
        By(&[
            (FAULTS, "a_failed_connection_leaves_nothing_in_the_shared_contexts"),
            (CODEC, "borrowed_inflaters_know_nothing_of_their_past"),
            (CODEC, "borrowed_deflaters_know_nothing_of_their_past"),
        ]),
    ),
    line(
        "C",
        "Window bits out of range",
        By(&[
            (OFFERS, "bad_offers_are_declined_and_nothing_else_happens"),
            (CLIENT, "answers_beyond_the_offer_fail_the_handshake"),
        ]),
    ),
    line(
        "C",
        "Bad blocks behind the limit, final blocks without end",
        By(&[(CODEC, "final_blocks_are_counted"), (CODEC, "any_bytes_at_all_are_survived")]),
    ),
    line(
        "D",
        "Parsing from the start with each segment: quadratic",
        By(&[
            (HEADS, "a_head_in_one_byte_segments_is_looked_at_once"),
            (CUTS, "a_request_is_answered_the_same_however_it_is_cut"),
            (HTTP, "requests_parse_alike_however_they_are_split"),
        ]),
    ),
    line(
        "D",
        "Header count and size at the limit and one over",
        By(&[
            (HEADS, "the_size_of_a_head_is_limited_to_the_byte"),
            (HEADS, "the_number_of_header_lines_is_limited_to_the_line"),
            (CLIENT, "the_size_of_an_answer_is_limited"),
        ]),
    ),
    line(
        "D",
        "Regular expressions that run for ever over header values",
        By(&[
            (GRAMMAR, "lists_follow_rfc_6455_section_9_1"),
            (SERVER, "the_number_of_subprotocols_is_limited"),
            (CUTS, "random_header_values_never_panic"),
        ]),
    ),
    line(
        "D",
        "Bytes beyond ASCII in a header",
        By(&[(HEADS, "bytes_beyond_ascii_in_a_value_are_bytes"), (CUTS, "random_bytes_never_panic")]),
    ),
    line(
        "D",
        "Resets at every point",
        By(&[
            (FAULTS, "the_peer_may_vanish_at_every_byte"),
            (FAULTS, "an_end_inside_a_message_never_delivers_it"),
            (HTTP, "reset_at_any_point_does_not_affect_other_clients"),
        ]),
    ),
    line("E", "Upgrade with a body", By(&[(SERVER, "a_request_with_a_body_is_400")])),
    line(
        "E",
        "A refusal that leaves bytes to be read as a request",
        By(&[
            (SERVER, "refusals_end_the_connection_and_delimit_their_body"),
            (UPGRADE, "failed_upgrade_does_not_continue_in_http"),
        ]),
    ),
    line(
        "E",
        "Bytes before the switch reach the application early",
        By(&[
            (UPGRADE, "frames_after_the_handshake_arrive_however_they_are_split"),
            (CLIENT, "bytes_behind_the_answer_are_left"),
        ]),
    ),
    line(
        "E",
        "200 taken for an upgrade",
        By(&[(CLIENT, "other_statuses_are_shown_with_their_headers_and_body")]),
    ),
    line(
        "E",
        "Line ends in header values of an application",
        By(&[
            (CLIENT, "nothing_we_are_given_can_start_a_line_of_its_own"),
            (SERVER, "what_we_are_given_to_write_cannot_start_a_header_of_its_own"),
        ]),
    ),
    line(
        "E",
        "Framing that two parsers read differently",
        By(&[
            (HEADS, "content_length_is_one_plain_number"),
            (HEADS, "transfer_encoding_is_chunked_alone"),
            (HEADS, "line_feeds_need_carriage_returns"),
        ]),
    ),
    line(
        "F",
        "Uninitialized memory in a Close",
        By(&[(PROBES, "our_own_control_frames_are_never_too_long"), (AUTOBAHN, "section_7_closing")]),
    ),
    line(
        "F",
        "The same mask again, or one that can be guessed",
        By(&[(PROBES, "each_frame_of_a_client_has_a_key_of_its_own"), (MASKS, "keys_differ")]),
    ),
    line(
        "F",
        "Secrets compared in a time that tells",
        Not("no secret is compared here: authentication is the application's"),
    ),
    line("F", "TLS left out on the way to wss", Not("TLS is not built yet")),
    line(
        "G",
        "No origin check",
        By(&[
            (ORIGIN, "foreign_pages_are_refused_unless_the_server_says_otherwise"),
            (ORIGIN, "a_repeated_origin_is_of_no_origin"),
            (UPGRADE, "route_selects_origins_and_subprotocols"),
        ]),
    ),
    line("G", "Unverified claims that choose where keys come from", Not("no claims are read here")),
    line(
        "H",
        "Close from inside every callback",
        By(&[
            (LIFETIME, "closing_inside_any_callback_answers_earlier_frames_only"),
            (LIFETIME, "sending_behind_a_close_inside_a_callback_is_rejected"),
            (SERVER_LIFETIME, "callbacks_may_close_subscribe_unsubscribe_and_publish"),
        ]),
    ),
    line(
        "H",
        "Publish and send from inside every callback",
        By(&[
            (LIFETIME, "sending_and_publishing_inside_any_callback_keep_their_order"),
            (LIFETIME, "a_callback_may_fill_the_output"),
            (SERVER_LIFETIME, "callbacks_may_close_subscribe_unsubscribe_and_publish"),
        ]),
    ),
    line(
        "H",
        "Unsubscribe from inside every callback",
        By(&[(SERVER_LIFETIME, "callbacks_may_close_subscribe_unsubscribe_and_publish")]),
    ),
    line(
        "H",
        "Messages behind our Close, sessions that end beside open sessions",
        By(&[
            (LIFETIME, "messages_behind_our_close_are_delivered_until_the_peer_closes"),
            (LIFETIME, "sessions_of_one_thread_end_independently"),
            (SERVER_LIFETIME, "every_kind_of_end_is_reported_once"),
        ]),
    ),
];
