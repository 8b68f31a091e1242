//! Rules of HTTP/1.1 beside the upgrade.

use super::Held::{By, Not};
use super::rules::{HEADS, HTTP};
use super::{Line, line};

const ATTACKS: &str = "crates/server/tests/loopback/attacks.rs";
const ROUTES: &str = "crates/server/tests/loopback/routes.rs";
const LATER: &str = "crates/server/tests/loopback/later.rs";
const FILES: &str = "crates/server/tests/loopback/files.rs";
const HOOKS: &str = "crates/server/tests/loopback/hooks.rs";
const CHUNKED: &str = "crates/http/src/h1/chunked.rs";
const CONDITIONS: &str = "crates/http/src/conditions.rs";
const PATHS: &str = "crates/server/src/files/path.rs";
const COMPRESS: &str = "crates/http/src/encoding.rs";
const CASES: &str = "dev/conformance/tests/cases/http.rs";
const CONFIG: &str = "crates/server/src/http.rs";

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
            (ATTACKS, "request_with_ambiguous_framing_ends_the_connection"),
            (HEADS, "line_feeds_need_carriage_returns"),
        ]),
    ),
    line(
        "9112 3.2",
        "`Host` exactly once; a target in absolute form names the host",
        By(&[(ATTACKS, "request_has_exactly_one_host")]),
    ),
    line(
        "9112 6.1, 6.3",
        "Two lengths, a length and a coding, a coding twice: refused, and nothing behind is read",
        By(&[
            (ATTACKS, "request_with_ambiguous_framing_ends_the_connection"),
            (ATTACKS, "ambiguous_framing_ends_the_connection_however_it_is_split"),
        ]),
    ),
    line(
        "9112 7.1",
        "Chunks: sizes that overflow, extensions and trailers bounded and without meaning",
        By(&[
            (CHUNKED, "ambiguous_framing_is_rejected"),
            (CHUNKED, "extensions_and_trailers_are_bounded_over_the_whole_body"),
            (ATTACKS, "chunk_extensions_and_trailers_are_ignored"),
        ]),
    ),
    line(
        "9112 6.3, 9931",
        "A handshake with a body is refused, and hides no request",
        By(&[(ATTACKS, "no_request_is_smuggled_after_a_rejected_handshake")]),
    ),
    line(
        "9112 11.2, 9113 10.3",
        "No request is smuggled: ambiguous framing is rejected at the server, and behind nginx, HAProxy, Apache, Caddy and \
         nghttpx, which speak HTTP/2 with clients, 193 cases hide none (`cargo xtask interop --only http-proxies`)",
        By(&[
            (CHUNKED, "ambiguous_framing_is_rejected"),
            (ATTACKS, "no_request_is_smuggled_after_a_rejected_handshake"),
        ]),
    ),
    line(
        "9112 9.3.2",
        "Pipelined requests are answered in order, also where an answer is awaited",
        By(&[
            (HTTP, "pipelined_requests_are_answered_in_order"),
            (LATER, "requests_after_a_pending_answer_are_answered_in_order"),
        ]),
    ),
    line(
        "9110 9.3.2, 9.3.7, 15.5.6",
        "HEAD as GET without a body; OPTIONS, also of `*`; 405 with `Allow`",
        By(&[
            (HTTP, "head_is_get_without_its_body"),
            (ROUTES, "options_lists_allowed_methods"),
            (ROUTES, "each_method_has_its_own_answer"),
        ]),
    ),
    line(
        "9110 10.1.1",
        "`Expect: 100-continue`: leave only for a body that is wanted",
        By(&[
            (HTTP, "client_may_wait_for_100_continue"),
            (HTTP, "request_is_rejected_by_its_head_at_once"),
            (HOOKS, "guard_runs_once_and_before_the_body"),
        ]),
    ),
    line(
        "9110 12.5.3",
        "`Accept-Encoding` with its weights, and `Vary`",
        By(&[
            (COMPRESS, "codings_are_chosen_by_weight"),
            (FILES, "text_is_compressed_for_clients_that_accept_it"),
            (HOOKS, "text_is_compressed_for_clients_that_accept_it"),
        ]),
    ),
    line(
        "9110 13.2.2",
        "Conditions, in their order",
        By(&[(CONDITIONS, "conditions_are_evaluated_in_rfc_order"), (FILES, "conditions_spare_the_body")]),
    ),
    line(
        "9110 14",
        "One range, `If-Range`, 206 and 416",
        By(&[
            (CONDITIONS, "one_range_is_served"),
            (CONDITIONS, "range_applies_only_to_the_version_the_client_has"),
            (FILES, "ranges_are_served"),
        ]),
    ),
    line("9110 14.6", "Several ranges as multipart", Not("the whole file instead, as section 14.2 permits")),
    line(
        "9110 15.5.9",
        "408 for heads and bodies that do not come, or drip",
        By(&[
            (HTTP, "request_has_a_head_timeout"),
            (HTTP, "slow_drip_of_bytes_does_not_extend_the_timeout"),
            (CONFIG, "body_deadline_grows_with_received_bytes"),
            (ATTACKS, "connections_with_partial_heads_time_out"),
        ]),
    ),
    line(
        "floods",
        "Header lines and pipelined requests without end",
        By(&[
            (ATTACKS, "flood_of_header_lines_is_cut_off"),
            (ATTACKS, "flood_of_requests_is_read_only_as_fast_as_answers_are"),
        ]),
    ),
    line(
        "traversal",
        "No path and no link leads out of a directory that is served",
        By(&[
            (PATHS, "paths_out_of_the_root_are_rejected"),
            (FILES, "files_outside_and_hidden_files_are_not_found"),
        ]),
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
