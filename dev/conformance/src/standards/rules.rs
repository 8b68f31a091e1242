//! Rules of the standards.

use super::Held::{By, Not};
use super::{Line, line};

pub(super) const SERVER: &str = "crates/proto/tests/handshake/server.rs";
pub(super) const CLIENT: &str = "crates/proto/tests/handshake/client.rs";
pub(super) const OFFERS: &str = "crates/proto/tests/handshake/deflate.rs";
pub(super) const HEADS: &str = "crates/proto/tests/handshake/heads.rs";
const COMPRESSION_BIT: &str = "the_compression_bit_means_nothing_without_the_extension";
pub(super) const ORIGIN: &str = "crates/proto/tests/handshake/origin.rs";
pub(super) const CUTS: &str = "crates/proto/tests/handshake/properties.rs";
pub(super) const GRAMMAR: &str = "crates/proto/src/handshake/extensions.rs";
pub(super) const KEY: &str = "crates/proto/src/handshake/key.rs";
pub(super) const CODEC: &str = "crates/proto/src/deflate/tests.rs";
pub(super) const CLOSING: &str = "crates/proto/src/connection/closing.rs";
pub(super) const CODES: &str = "crates/proto/src/close.rs";
pub(super) const MASKS: &str = "crates/session/src/masks.rs";
pub(super) const UPGRADE: &str = "crates/server/tests/loopback/upgrade.rs";
pub(super) const HTTP: &str = "crates/server/tests/loopback/http.rs";
pub(super) const SOCKET: &str = "crates/server/tests/loopback/websocket.rs";
pub(super) const AUTOBAHN: &str = "dev/conformance/tests/cases/autobahn.rs";
pub(super) const PROBES: &str = "dev/conformance/tests/cases/probes.rs";
pub(super) const FAULTS: &str = "dev/conformance/tests/cases/faults.rs";
pub(super) const MEMORY: &str = "dev/conformance/tests/cases/memory.rs";
pub(super) const LIFETIME: &str = "dev/conformance/tests/cases/lifetime.rs";
pub(super) const PROPERTIES: &str = "dev/conformance/tests/cases/properties.rs";

pub(super) const RFC_6455: &[Line] = &[
    line(
        "4.2.1",
        "The request is a GET of HTTP/1.1 or higher",
        By(&[(SERVER, "methods_other_than_get_are_405_with_allow"), (SERVER, "http_1_0_is_426")]),
    ),
    line(
        "4.2.1",
        "Host is present exactly once",
        By(&[(SERVER, "host_is_required_exactly_once"), (HEADS, "host_is_a_single_authority")]),
    ),
    line(
        "4.2.1",
        "`Upgrade` and `Connection` are lists in any case, on any number of lines",
        By(&[(SERVER, "upgrade_and_connection_are_lists_in_any_case_on_any_number_of_lines")]),
    ),
    line(
        "4.2.1",
        "The key is present once and decodes to 16 bytes; the space around it is not part of it",
        By(&[
            (SERVER, "key_is_single_and_encodes_sixteen_bytes"),
            (KEY, "a_key_is_sixteen_bytes_in_canonical_base64"),
            (PROBES, "twenty_four_characters_are_not_yet_a_key"),
        ]),
    ),
    line(
        "4.2.1",
        "The version is 13",
        By(&[
            (SERVER, "versions_other_than_13_are_426_naming_13"),
            (PROBES, "version_8_is_rejected_with_the_supported_version"),
        ]),
    ),
    line(
        "4.2.2",
        "Another version is answered 426 with the supported version",
        By(&[(SERVER, "versions_other_than_13_are_426_naming_13")]),
    ),
    line(
        "4.2.2",
        "A refused origin is answered 403",
        By(&[(ORIGIN, "foreign_origins_are_rejected_by_default")]),
    ),
    line(
        "4.2.2",
        "Another method is answered 405",
        By(&[(SERVER, "methods_other_than_get_are_405_with_allow")]),
    ),
    line(
        "4.2.2",
        "The answer has one accept value, the right one",
        By(&[
            (SERVER, "the_example_of_rfc_6455_section_1_2_is_answered_exactly"),
            (KEY, "the_example_of_rfc_6455_section_1_3"),
        ]),
    ),
    line(
        "4.2.2",
        "Extensions are a subset of the offered extensions",
        By(&[(OFFERS, "unknown_extensions_are_ignored"), (OFFERS, "deflate_is_declined_without_the_option")]),
    ),
    line(
        "4.2.2",
        "At most one of the offered subprotocols, compared exactly; none without an offer; offers on several lines; repeats are invalid",
        By(&[
            (SERVER, "the_server_chooses_among_offered_subprotocols_by_its_own_preference"),
            (SERVER, "repeated_or_malformed_subprotocol_offers_are_400"),
        ]),
    ),
    line(
        "4.1",
        "The client checks status, tokens and accept value",
        By(&[
            (CLIENT, "upgrade_connection_and_accept_are_checked"),
            (CLIENT, "other_statuses_expose_headers_and_body"),
        ]),
    ),
    line(
        "4.1",
        "The client fails on a subprotocol or an extension that it did not offer",
        By(&[
            (CLIENT, "subprotocol_must_be_offered"),
            (CLIENT, "responses_beyond_the_offer_fail_the_handshake"),
        ]),
    ),
    line(
        "4.1",
        "One connection to a host is being opened at a time",
        Not("left to the caller: `connect` opens one connection and knows no other"),
    ),
    line(
        "9.1",
        "The grammar of extensions: quoted values are tokens once unquoted, commas inside quotes, repeats",
        By(&[
            (GRAMMAR, "lists_follow_rfc_6455_section_9_1"),
            (GRAMMAR, "a_quoted_string_must_be_a_token_once_unquoted"),
            (GRAMMAR, "a_comma_inside_quotes_does_not_split_the_list"),
        ]),
    ),
    line(
        "5.1",
        "A server fails unmasked input, a client masked input",
        By(&[(PROBES, "input_that_is_masked_wrongly_for_the_role_fails")]),
    ),
    line(
        "5.2",
        "Reserved bits are zero unless negotiated",
        By(&[(AUTOBAHN, "section_3_reserved_bits"), (PROBES, COMPRESSION_BIT)]),
    ),
    line("5.2", "Opcodes 3 to 7 and 11 to 15 fail", By(&[(AUTOBAHN, "section_4_opcodes")])),
    line(
        "5.2",
        "Lengths are written as short as can be, and the top bit of the longest form is zero",
        By(&[
            (PROBES, "a_length_takes_no_more_bytes_than_it_needs"),
            (FAULTS, "absurd_lengths_fail_with_the_head"),
        ]),
    ),
    line(
        "5.3",
        "Mask keys are fresh and unpredictable",
        By(&[(PROBES, "each_frame_of_a_client_has_a_key_of_its_own"), (MASKS, "keys_differ")]),
    ),
    line(
        "5.4",
        "Control frames may stand inside a fragmented message, data frames may not",
        By(&[
            (AUTOBAHN, "section_5_fragmentation"),
            (PROBES, "a_data_frame_of_either_kind_inside_a_message_fails"),
        ]),
    ),
    line(
        "5.4",
        "Empty fragments and many fragments are legal",
        By(&[(AUTOBAHN, "section_6_utf8"), (AUTOBAHN, "section_9_many_fragments")]),
    ),
    line(
        "5.4",
        "The edges of frames carry no meaning",
        By(&[
            (PROPERTIES, "pieces_put_together_are_the_messages"),
            (PROPERTIES, "an_echo_of_pieces_is_the_message"),
        ]),
    ),
    line(
        "5.5",
        "Control frames have 125 bytes at most and are never fragmented",
        By(&[
            (AUTOBAHN, "section_2_pings_and_pongs"),
            (AUTOBAHN, "section_5_fragmentation"),
            (PROBES, "our_own_control_frames_are_never_too_long"),
        ]),
    ),
    line(
        "5.5.1",
        "A Close has no payload or two bytes and more, its reason is UTF-8",
        By(&[
            (AUTOBAHN, "section_7_closing"),
            (PROBES, "close_frames_that_may_not_be_are_answered_with_1002"),
        ]),
    ),
    line(
        "5.5.1",
        "A Close is answered once, and no data follows ours",
        By(&[
            (AUTOBAHN, "section_7_closing"),
            (FAULTS, "nothing_is_sent_behind_our_close"),
            (FAULTS, "two_closes_that_cross_answer_each_other"),
            (CLOSING, "every_cell_of_the_closing_handshake"),
        ]),
    ),
    line(
        "7.1.1",
        "The server ends the transport first",
        By(&[
            (SOCKET, "close_is_echoed_and_the_server_ends_the_transport"),
            (CLOSING, "transport_ends_only_after_both_closes"),
            (AUTOBAHN, "section_7_closing"),
        ]),
    ),
    line(
        "5.5.3",
        "A pong has the payload of its ping; only the newest ping need be answered; an unsolicited pong is fine",
        By(&[
            (AUTOBAHN, "section_2_pings_and_pongs"),
            (FAULTS, "pongs_without_room_are_reduced_to_the_newest"),
            (PROBES, "an_unsolicited_pong_is_reported_and_not_answered"),
        ]),
    ),
    line(
        "7.4",
        "1004, 1005, 1006 and 1015 are never on the wire, nor codes below 1000, 1016 to 2999, or from 5000 on",
        By(&[
            (CODES, "only_wire_close_codes_are_accepted"),
            (PROBES, "close_frames_that_may_not_be_are_answered_with_1002"),
        ]),
    ),
    line(
        "7.4",
        "1000 to 1003, 1007 to 1014 and 3000 to 4999 are valid and echoed",
        By(&[(PROBES, "close_codes_that_may_be_on_the_wire_are_echoed")]),
    ),
    line(
        "7.4",
        "Failures send 1002, 1007, 1009 or 1011",
        By(&[
            (PROBES, "each_failure_sends_the_close_that_names_it"),
            (FAULTS, "silent_peers_are_pinged_and_then_closed"),
        ]),
    ),
    line(
        "8.1",
        "UTF-8 is checked over the whole message, across fragments, after inflating, and not over binary",
        By(&[
            (AUTOBAHN, "section_6_utf8"),
            (AUTOBAHN, "section_1_messages"),
            (PROBES, "inflated_text_must_be_utf8"),
        ]),
    ),
    line(
        "8.1",
        "Text that can no longer become valid fails at once",
        By(&[(AUTOBAHN, "text_fails_at_the_first_impossible_byte_and_not_before")]),
    ),
    line(
        "10.2",
        "The origin is checked",
        By(&[
            (ORIGIN, "foreign_origins_are_rejected_by_default"),
            (ORIGIN, "the_same_origin_is_the_same_host_and_port"),
            (ORIGIN, "origin_list_compares_whole_origins"),
        ]),
    ),
    line(
        "10.4",
        "Frame and reassembled message are limited",
        By(&[
            (PROBES, "each_failure_sends_the_close_that_names_it"),
            (PROBES, "frames_and_messages_of_the_limit_pass"),
            (FAULTS, "fragments_and_incomplete_frames_count_toward_the_message_limit"),
        ]),
    ),
];

pub(super) const RFC_7692: &[Line] = &[
    line(
        "5, 7.1",
        "Windows of 8 to 15 without leading zeros; an offer with a repeated or unknown parameter is declined, the next is tried, the connection goes on",
        By(&[
            (OFFERS, "invalid_offers_are_declined_without_failing_the_handshake"),
            (OFFERS, "first_acceptable_offer_is_chosen"),
            (PROBES, "unsupported_offers_are_declined_and_the_next_is_accepted"),
        ]),
    ),
    line(
        "7.1",
        "A client fails on a bad answer",
        By(&[
            (CLIENT, "responses_beyond_the_offer_fail_the_handshake"),
            (CLIENT, "response_must_contain_required_parameters"),
        ]),
    ),
    line(
        "7.1.2.2",
        "`client_max_window_bits` may lack a value only in an offer, and is answered only if offered",
        By(&[
            (OFFERS, "offers_are_answered_within_their_limits"),
            (CLIENT, "responses_beyond_the_offer_fail_the_handshake"),
        ]),
    ),
    line(
        "7.1.2.1",
        "The answered `server_max_window_bits` is at most the offered",
        By(&[(OFFERS, "local_limits_only_lower_offered_windows")]),
    ),
    line(
        "7.1.1",
        "`no_context_takeover` is kept once agreed; the server may add it",
        By(&[
            (AUTOBAHN, "section_13_parameters"),
            (OFFERS, "shared_mode_always_gives_up_takeover_on_both_sides"),
            (FAULTS, "windows_stay_in_step_with_plain_and_published_messages_between"),
        ]),
    ),
    line(
        "6",
        "RSV1 stands on a message's first frame only, never on control frames",
        By(&[(PROBES, "the_compression_bit_stands_on_first_frames_only")]),
    ),
    line(
        "6",
        "Uncompressed messages stay legal, and do not enter the window",
        By(&[
            (PROBES, "uncompressed_messages_stay_legal_beside_compressed_ones"),
            (FAULTS, "windows_stay_in_step_with_plain_and_published_messages_between"),
        ]),
    ),
    line(
        "7.2",
        "The tail 00 00 FF FF is removed and added; the empty message is one octet",
        By(&[
            (CODEC, "the_empty_message_is_one_octet"),
            (PROBES, "every_form_of_compressed_message_is_read"),
        ]),
    ),
    line(
        "7.2.3",
        "Final blocks, stored blocks, several blocks, one message over many frames",
        By(&[
            (CODEC, "examples_of_the_rfc"),
            (CODEC, "stream_may_continue_after_final_block"),
            (PROBES, "every_form_of_compressed_message_is_read"),
            (AUTOBAHN, "section_12_content"),
        ]),
    ),
    line(
        "7.1.2.1",
        "A window of 8, which zlib cannot produce, is declined as an offer and never asked for",
        By(&[
            (PROBES, "unsupported_offers_are_declined_and_the_next_is_accepted"),
            (CLIENT, "the_client_never_offers_a_window_of_8"),
        ]),
    ),
];

pub(super) const HTTP_UPGRADE: &[Line] = &[
    line(
        "9110 7.8",
        "Upgrade is hop by hop and named in Connection",
        By(&[
            (SERVER, "request_without_upgrade_is_426_naming_websocket"),
            (SERVER, "refusals_end_the_connection_and_delimit_their_body"),
        ]),
    ),
    line("9110 7.8", "Upgrade is ignored in HTTP/1.0", By(&[(SERVER, "http_1_0_is_426")])),
    line(
        "9110 15.5.22",
        "426 has Upgrade",
        By(&[(SERVER, "request_without_upgrade_is_426_naming_websocket")]),
    ),
    line(
        "9110 7.8",
        "A body comes before the switch: a request with one is refused",
        By(&[(SERVER, "a_request_with_a_body_is_400"), (SERVER, "a_foreign_request_with_a_body_is_400")]),
    ),
    line(
        "9110 7.8",
        "101 has no body, and nothing pipelined before it is reordered",
        By(&[
            (UPGRADE, "requests_before_the_handshake_are_answered_before_it"),
            (UPGRADE, "sends_of_open_come_after_the_answer_and_before_the_echo"),
        ]),
    ),
    line(
        "9931",
        "Bytes behind a refused upgrade are not read as a request",
        By(&[
            (UPGRADE, "failed_upgrade_does_not_continue_in_http"),
            (UPGRADE, "invalid_handshake_is_rejected_and_closes"),
            (SERVER, "refusals_end_the_connection_and_delimit_their_body"),
        ]),
    ),
];

pub(super) const OTHERS: &[Line] = &[
    line(
        "7936, 8307",
        "Registries and well-known URIs",
        Not("names for other parties to look up: nothing to run"),
    ),
    line(
        "WHATWG",
        "Browsers offer deflate with `client_max_window_bits`",
        By(&[(OFFERS, "offers_are_answered_within_their_limits"), (AUTOBAHN, "section_12_content")]),
    ),
    line(
        "WHATWG",
        "A browser fails if it asked for a subprotocol and got none",
        Not("a rule for browsers; here `Established::subprotocol` leaves it to the application"),
    ),
    line(
        "WHATWG",
        "Pages close with 1000 or 3000 to 4999",
        By(&[(PROBES, "close_codes_that_may_be_on_the_wire_are_echoed")]),
    ),
    line("WHATWG", "Redirects are not followed", By(&[(CLIENT, "other_statuses_expose_headers_and_body")])),
    line(
        "WHATWG",
        "Cookies travel across sites, hence origin checks",
        By(&[(ORIGIN, "foreign_origins_are_rejected_by_default")]),
    ),
    line(
        "WHATWG",
        "Each line of the data of an event is a field of its own, so no payload ends an event",
        By(&[
            (EVENT_STREAM, "every_short_payload_of_line_ends_stays_one_event"),
            (EVENTS, "payloads_of_a_topic_are_events"),
        ]),
    ),
    line(
        "WHATWG",
        "An event stream resumes after `Last-Event-ID`",
        By(&[(EVENTS, "last_event_id_resumes_without_a_gap_or_tells_it")]),
    ),
];

const EVENT_STREAM: &str = "crates/http/src/event_stream.rs";
const EVENTS: &str = "crates/hub/tests/loopback/events.rs";

pub(super) const OFTEN_WRONG: &[Line] = &[
    line(
        "1",
        "Connection or Upgrade matched as whole strings",
        By(&[(SERVER, "upgrade_and_connection_are_lists_in_any_case_on_any_number_of_lines")]),
    ),
    line(
        "2",
        "The first subprotocol echoed blindly, or one that was not offered",
        By(&[
            (SERVER, "the_server_chooses_among_offered_subprotocols_by_its_own_preference"),
            (UPGRADE, "route_selects_origins_and_subprotocols"),
        ]),
    ),
    line(
        "3",
        "A bad deflate offer ends the handshake, or is accepted with its limits ignored",
        By(&[
            (OFFERS, "invalid_offers_are_declined_without_failing_the_handshake"),
            (AUTOBAHN, "section_13_parameters"),
        ]),
    ),
    line(
        "4",
        "A version refused without the version header",
        By(&[(SERVER, "versions_other_than_13_are_426_naming_13")]),
    ),
    line("5", "The key checked by length only", By(&[(PROBES, "twenty_four_characters_are_not_yet_a_key")])),
    line(
        "6",
        "Bytes behind the handshake lost or run early",
        By(&[
            (PROBES, "frames_behind_either_head_in_the_same_segment_are_kept"),
            (UPGRADE, "frames_after_the_handshake_arrive_however_they_are_split"),
        ]),
    ),
    line(
        "7",
        "RSV1 on control frames or continuations",
        By(&[(PROBES, "the_compression_bit_stands_on_first_frames_only")]),
    ),
    line(
        "8",
        "1012 to 1014 and 3000 to 3999 refused",
        By(&[(PROBES, "close_codes_that_may_be_on_the_wire_are_echoed")]),
    ),
    line(
        "9",
        "No Close frame on failure",
        By(&[
            (PROBES, "each_failure_sends_the_close_that_names_it"),
            (SOCKET, "protocol_error_is_answered_with_a_close"),
        ]),
    ),
    line(
        "10",
        "A pong dropped, or pongs without bound",
        By(&[
            (FAULTS, "a_flood_of_pings_to_a_peer_that_never_reads_is_bounded"),
            (FAULTS, "pongs_without_room_are_reduced_to_the_newest"),
        ]),
    ),
    line(
        "11",
        "A size limit before inflating only",
        By(&[
            (FAULTS, "a_bomb_fails_in_one_frame_and_in_many"),
            (PROBES, "frames_and_messages_of_the_limit_pass"),
        ]),
    ),
    line(
        "12",
        "UTF-8 checked frame by frame",
        By(&[(AUTOBAHN, "section_6_utf8"), (PROPERTIES, "two_segments_cut_at_every_byte_equal_the_whole")]),
    ),
    line("13", "Upgrade on a request with a body", By(&[(SERVER, "a_request_with_a_body_is_400")])),
];
