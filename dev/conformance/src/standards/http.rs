//! Rules of HTTP/1.1 beside the upgrade.

use super::Held::{By, Not};
use super::rules::{HEADS, HTTP};
use super::{Line, line};

const ATTACKS: &str = "crates/server/tests/loopback/attacks.rs";
const ROUTES: &str = "crates/server/tests/loopback/routes.rs";
const LATER: &str = "crates/server/tests/loopback/later.rs";
const FILES: &str = "crates/server/tests/loopback/files.rs";
const HOOKS: &str = "crates/server/tests/loopback/hooks.rs";
const CHUNKED: &str = "crates/server/src/chunked.rs";
const CONDITIONS: &str = "crates/server/src/files/conditions.rs";
const PATHS: &str = "crates/server/src/files/path.rs";
const COMPRESS: &str = "crates/server/src/compress.rs";
const CASES: &str = "dev/conformance/tests/http.rs";
const CONFIG: &str = "crates/server/src/http/config.rs";

pub(super) const HTTP_1: &[Line] = &[
    line(
        "9110, 9112",
        "Requests of h1spec, the HTTP Garden, llhttp and nginx's tests, cut in every place (`cargo xtask conformance \
         --target http` asks the server)",
        By(&[(CASES, "the_table_is_complete"), (CASES, "echoed_bodies_match_the_requests")]),
    ),
    line(
        "9112 2.2, 5.1, 5.2",
        "Bare line feeds, folded lines and space before a colon are refused",
        By(&[
            (ATTACKS, "a_request_whose_end_is_in_doubt_ends_the_connection"),
            (HEADS, "line_feeds_need_carriage_returns"),
        ]),
    ),
    line(
        "9112 3.2",
        "`Host` exactly once; a target in absolute form names the host",
        By(&[(ATTACKS, "whom_a_request_is_for_is_said_once")]),
    ),
    line(
        "9112 6.1, 6.3",
        "Two lengths, a length and a coding, a coding twice: refused, and nothing behind is read",
        By(&[
            (ATTACKS, "a_request_whose_end_is_in_doubt_ends_the_connection"),
            (ATTACKS, "it_does_so_however_it_is_cut"),
        ]),
    ),
    line(
        "9112 7.1",
        "Chunks: sizes that overflow, extensions and trailers bounded and without meaning",
        By(&[
            (CHUNKED, "what_parsers_disagree_about_is_refused"),
            (CHUNKED, "what_is_passed_over_is_bounded_over_the_whole_body"),
            (ATTACKS, "chunks_may_have_extensions_and_trailers_that_mean_nothing"),
        ]),
    ),
    line(
        "9112 6.3, 9931",
        "A handshake with a body is refused, and hides no request",
        By(&[(ATTACKS, "nothing_is_smuggled_behind_a_handshake_that_is_refused")]),
    ),
    line(
        "9112 9.3.2",
        "Pipelined requests are answered in order, also where an answer is awaited",
        By(&[
            (HTTP, "pipelined_requests_are_answered_in_order"),
            (LATER, "requests_behind_one_that_waits_are_answered_in_order"),
        ]),
    ),
    line(
        "9110 9.3.2, 9.3.7, 15.5.6",
        "HEAD as GET without a body; OPTIONS, also of `*`; 405 with `Allow`",
        By(&[
            (HTTP, "head_is_get_without_its_body"),
            (ROUTES, "options_tell_what_is_allowed"),
            (ROUTES, "each_method_has_an_answer_of_its_own"),
        ]),
    ),
    line(
        "9110 10.1.1",
        "`Expect: 100-continue`: leave only for a body that is wanted",
        By(&[
            (HTTP, "a_client_may_ask_before_it_sends_a_body"),
            (HTTP, "what_the_head_says_to_refuse_is_refused_at_once"),
            (HOOKS, "a_guard_is_asked_once_and_before_the_body"),
        ]),
    ),
    line(
        "9110 12.5.3",
        "`Accept-Encoding` with its weights, and `Vary`",
        By(&[
            (COMPRESS, "what_is_taken_follows_the_weights"),
            (FILES, "text_is_compressed_for_who_takes_it"),
            (HOOKS, "text_is_compressed_for_who_takes_it"),
        ]),
    ),
    line(
        "9110 13.2.2",
        "Conditions, in their order",
        By(&[(CONDITIONS, "conditions_are_asked_in_their_order"), (FILES, "conditions_spare_the_body")]),
    ),
    line(
        "9110 14",
        "One range, `If-Range`, 206 and 416",
        By(&[
            (CONDITIONS, "one_range_is_served"),
            (CONDITIONS, "a_range_is_of_what_the_client_has"),
            (FILES, "parts_are_served"),
        ]),
    ),
    line("9110 14.6", "Several ranges as multipart", Not("the whole file instead, as section 14.2 permits")),
    line(
        "9110 15.5.9",
        "408 for heads and bodies that do not come, or drip",
        By(&[
            (HTTP, "a_request_has_a_time_to_arrive"),
            (HTTP, "a_drip_of_bytes_gains_no_time"),
            (CONFIG, "a_body_earns_its_time"),
            (ATTACKS, "those_who_never_finish_a_head_are_ended"),
        ]),
    ),
    line(
        "floods",
        "Header lines and pipelined requests without end",
        By(&[
            (ATTACKS, "a_flood_of_header_lines_is_cut_off"),
            (ATTACKS, "a_flood_of_requests_is_read_as_far_as_the_answers_are"),
        ]),
    ),
    line(
        "traversal",
        "No path and no link leads out of a directory that is served",
        By(&[(PATHS, "nothing_leads_elsewhere"), (FILES, "nothing_outside_is_found_nor_what_is_hidden")]),
    ),
    line(
        "Fetch 3.2",
        "Preflights; no credentials for every origin; `Vary: Origin`",
        By(&[
            (HOOKS, "preflights_are_answered_before_routes_and_guards"),
            (HOOKS, "pages_of_listed_origins_may_read_answers"),
        ]),
    ),
];
