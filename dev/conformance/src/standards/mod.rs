//! The list of rules and known faults, each with the tests that verify it.
//!
//! `STANDARDS.md` beside this crate is [`render`]ed from it. A test checks that the page matches the list,
//! that every listed test exists, and that every line has tests or a reason.

mod classes;
mod faults;
mod h3spec;
mod http;
mod http2;
mod http3;
mod rules;
mod streams;

use std::fmt::Write as _;

/// A rule, or a fault of another project.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Its source: an RFC and its section, a class and a number.
    pub id: &'static str,
    /// Its text.
    pub text: &'static str,
    /// Its verification.
    pub held: Held,
}

/// Verification of a line.
#[derive(Clone, Copy, Debug)]
pub enum Held {
    /// Tests, each a file and the name of a function in it.
    By(&'static [(&'static str, &'static str)]),
    /// Not verified, with the reason.
    Not(&'static str),
}

/// The sections with their titles, in order.
pub const SECTIONS: [(&str, &[Line]); 14] = [
    ("RFC 6455, the WebSocket protocol", rules::RFC_6455),
    ("RFC 7692, permessage-deflate", rules::RFC_7692),
    ("RFC 8441 and RFC 9220, over HTTP/2 and HTTP/3", streams::RFC_8441),
    ("HTTP upgrade (RFC 9110 section 7.8, RFC 9112, RFC 9931)", rules::HTTP_UPGRADE),
    ("HTTP/1.1 (RFC 9110, RFC 9112)", http::HTTP_1),
    ("HTTP/2 (RFC 9113) and HPACK (RFC 7541)", http2::HTTP_2),
    ("HTTP/3 (RFC 9114), QPACK (RFC 9204) and WebTransport", http3::HTTP_3),
    ("Attacks and promises, over HTTP/2 and HTTP/3", classes::EACH_VERSION),
    (
        "h3spec, case by case (`cargo xtask interop --only h3spec` runs 0.1.7, which Netty publishes for Maven: 44 of 45 cases pass, \
         one is skipped)",
        h3spec::H3SPEC,
    ),
    ("Other standards", rules::OTHERS),
    ("Frequent faults of servers", rules::OFTEN_WRONG),
    ("Wrong answers of running servers and libraries", faults::PROBED),
    ("Defaults", faults::DEFAULTS),
    ("Real faults, by class", faults::CLASSES),
];

pub(crate) const fn line(id: &'static str, text: &'static str, held: Held) -> Line {
    Line { id, text, held }
}

/// The list as Markdown.
#[must_use]
pub fn render() -> String {
    let mut out = String::from(
        "# Standards, and the tests that verify them\n\n\
         Generated from `src/standards`; `UPDATE_STANDARDS=1 cargo test -p sinews-conformance --test cases standards`\n\
         writes it anew.\n",
    );
    for (title, lines) in SECTIONS {
        // Writing to a String cannot fail.
        let _ = write!(out, "\n## {title}\n\n| | Rule | Verified by |\n|---|---|---|\n");
        for line in lines {
            let held = match line.held {
                Held::By(tests) => {
                    let tests: Vec<String> =
                        tests.iter().map(|(file, name)| format!("[`{name}`](../../{file})")).collect();
                    tests.join(", ")
                }
                Held::Not(reason) => format!("*{reason}*"),
            };
            let _ = writeln!(out, "| {} | {} | {held} |", line.id, line.text);
        }
    }
    out
}
