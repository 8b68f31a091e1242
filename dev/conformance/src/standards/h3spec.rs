//! The cases of h3spec, each with the test that verifies the same rule. `cargo xtask interop --only h3spec` runs h3spec itself.

use super::Held::{self, By, Not};
use super::http3::SERVER_RULES;
use super::{Line, line};

const FRAMES: Held = By(&[(SERVER_RULES, "violations_of_frames_close_the_connection_with_their_code")]);
const HANDSHAKE: Held =
    By(&[(SERVER_RULES, "violations_of_the_handshake_close_the_connection_with_their_code")]);
const PARAMETERS: Held = By(&[(SERVER_RULES, "invalid_transport_parameters_close_the_connection")]);
const HTTP: Held = By(&[(SERVER_RULES, "violations_of_http3_close_the_connection_with_their_code")]);
const COMPRESSION: Held =
    By(&[(SERVER_RULES, "violations_of_qpack_and_settings_close_the_connection_with_their_code")]);
const CRITICAL: Held = By(&[(SERVER_RULES, "critical_streams_are_unique_and_never_end")]);
const MALFORMED: Held = By(&[(SERVER_RULES, "malformed_requests_are_reset_and_reach_no_route")]);

pub(super) const H3SPEC: &[Line] = &[
    line("9000 4.1", "STREAM with a large offset: FLOW_CONTROL_ERROR", FRAMES),
    line("9000 4.6", "A stream beyond the limit: STREAM_LIMIT_ERROR (later versions of h3spec)", FRAMES),
    line("9000 7.3", "No initial_source_connection_id: TRANSPORT_PARAMETER_ERROR", PARAMETERS),
    line(
        "9000 18.2",
        "original_destination_connection_id of a client: TRANSPORT_PARAMETER_ERROR",
        PARAMETERS,
    ),
    line("9000 18.2", "preferred_address of a client: TRANSPORT_PARAMETER_ERROR", PARAMETERS),
    line("9000 18.2", "retry_source_connection_id of a client: TRANSPORT_PARAMETER_ERROR", PARAMETERS),
    line("9000 18.2", "stateless_reset_token of a client: TRANSPORT_PARAMETER_ERROR", PARAMETERS),
    line("9000 7.4, 18.2", "max_udp_payload_size below 1,200: TRANSPORT_PARAMETER_ERROR", PARAMETERS),
    line("9000 7.4, 18.2", "ack_delay_exponent above 20: TRANSPORT_PARAMETER_ERROR", PARAMETERS),
    line("9000 7.4, 18.2", "max_ack_delay of 2^14 and more: TRANSPORT_PARAMETER_ERROR", PARAMETERS),
    line("9000 12.4", "A frame of an unknown type: FRAME_ENCODING_ERROR", FRAMES),
    line(
        "9000 12.4",
        "A packet without frames: PROTOCOL_VIOLATION",
        Not(
            "h3spec itself verifies it: the client of the tests cannot shorten a packet that is already measured",
        ),
    ),
    line("9000 17.2", "Reserved bits of a Handshake packet: PROTOCOL_VIOLATION", HANDSHAKE),
    line("9000 17.2.4", "PATH_CHALLENGE in a Handshake packet: PROTOCOL_VIOLATION", HANDSHAKE),
    line("9000 17.3", "Reserved bits of a short packet: PROTOCOL_VIOLATION", HANDSHAKE),
    line("9000 19.4", "RESET_STREAM of a send-only stream: STREAM_STATE_ERROR", FRAMES),
    line("9000 19.5", "STOP_SENDING of a stream that does not exist: STREAM_STATE_ERROR", FRAMES),
    line("9000 19.7", "NEW_TOKEN of a client: PROTOCOL_VIOLATION", FRAMES),
    line(
        "9000 19.8",
        "STREAM of the server's streams that does not exist: STREAM_STATE_ERROR (later versions of h3spec)",
        FRAMES,
    ),
    line("9000 19.8", "STREAM of a send-only stream: STREAM_STATE_ERROR (later versions of h3spec)", FRAMES),
    line("9000 19.10", "MAX_STREAM_DATA of a stream that does not exist: STREAM_STATE_ERROR", FRAMES),
    line("9000 19.10", "MAX_STREAM_DATA of a receive-only stream: STREAM_STATE_ERROR", FRAMES),
    line("9000 19.11", "MAX_STREAMS beyond 2^60: FRAME_ENCODING_ERROR", FRAMES),
    line("9000 19.14", "STREAMS_BLOCKED beyond 2^60: STREAM_LIMIT_ERROR or FRAME_ENCODING_ERROR", FRAMES),
    line("9000 19.15", "NEW_CONNECTION_ID that retires later ones: FRAME_ENCODING_ERROR", FRAMES),
    line("9000 19.15", "NEW_CONNECTION_ID without bytes: FRAME_ENCODING_ERROR", FRAMES),
    line("9000 19.20", "HANDSHAKE_DONE of a client: PROTOCOL_VIOLATION", FRAMES),
    line("9001 6", "KeyUpdate of TLS in the handshake: unexpected_message", HANDSHAKE),
    line("9001 6", "KeyUpdate of TLS behind the handshake: unexpected_message", FRAMES),
    line("9001 8.1", "No protocol in common: no_application_protocol", HANDSHAKE),
    line("9001 8.2", "No transport parameters: missing_extension", HANDSHAKE),
    line(
        "9001 8.2",
        "The code point of drafts for transport parameters (0xffa5): missing_extension (later versions of h3spec)",
        Not(
            "rustls reads this code point as the parameters; a client that sends it gets no connection, since its transcript differs",
        ),
    ),
    line("9001 8.3", "EndOfEarlyData: unexpected_message", HANDSHAKE),
    line(
        "9001 8.3",
        "CRYPTO in 0-RTT: PROTOCOL_VIOLATION",
        Not("0-RTT is not accepted, so that the packet is not read; h3spec skips the case"),
    ),
    line("9114 4.1", "DATA before HEADERS: H3_FRAME_UNEXPECTED", HTTP),
    line("9114 4.3", "A pseudo-header field twice: H3_MESSAGE_ERROR", MALFORMED),
    line("9114 4.3", "No mandatory pseudo-header field: H3_MESSAGE_ERROR", MALFORMED),
    line("9114 4.3", "A prohibited pseudo-header field: H3_MESSAGE_ERROR", MALFORMED),
    line("9114 4.3", "A pseudo-header field behind others: H3_MESSAGE_ERROR", MALFORMED),
    line("9114 6.2.1", "The control stream does not begin with SETTINGS: H3_MISSING_SETTINGS", HTTP),
    line("9114 7.2.1", "DATA on the control stream: H3_FRAME_UNEXPECTED", HTTP),
    line("9114 7.2.2", "HEADERS on the control stream: H3_FRAME_UNEXPECTED", HTTP),
    line("9114 7.2.4", "SETTINGS twice: H3_FRAME_UNEXPECTED", HTTP),
    line("9114 7.2.4", "The same setting twice: H3_SETTINGS_ERROR (later versions of h3spec)", HTTP),
    line("9114 7.2.4.1", "A setting of HTTP/2: H3_SETTINGS_ERROR", HTTP),
    line("9114 7.2.3", "CANCEL_PUSH on a request: H3_FRAME_UNEXPECTED", HTTP),
    line("9204 3.1", "An index beyond the static table: QPACK_DECOMPRESSION_FAILED", COMPRESSION),
    line(
        "9204 4.1.3",
        "A capacity of the dynamic table beyond the setting: QPACK_ENCODER_STREAM_ERROR",
        COMPRESSION,
    ),
    line("9204 4.2", "A control stream that ends: H3_CLOSED_CRITICAL_STREAM", CRITICAL),
    line("9204 4.4.3", "An increment of 0: QPACK_DECODER_STREAM_ERROR", COMPRESSION),
];
