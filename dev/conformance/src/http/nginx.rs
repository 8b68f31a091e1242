//! Requests of nginx's tests: the target host, parts of files, conditions.

use super::Expected::{Answers, Echoes, Refused};
use super::subject::{FILE, FILE_HEAD_9, FILE_TAIL_10};
use super::{Answer, Case, answer, case};

pub(super) const HOSTS: &[Case] = &[
    case("domain", "9112 3.2", b"GET / HTTP/1.1\r\nHost: www.abcd-ef.g02.xyz\r\n\r\n", Echoes(b"")),
    case(
        "domain with port",
        "9112 3.2",
        b"GET / HTTP/1.1\r\nHost: abcd-ef.g02.xyz:8080\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "domain with stray colon",
        "9110 4.2.3",
        b"GET / HTTP/1.1\r\nHost: abcd-ef.g02.xyz:\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "domain with ending dot",
        "9112 3.2",
        b"GET / HTTP/1.1\r\nHost: abcd-ef.g02.xyz.:88\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "mixed case domain",
        "9112 3.2",
        b"GET / HTTP/1.1\r\nHost: AbC-d93.0.34ZhGt-s.nk.Ru:88\r\n\r\n",
        Echoes(b""),
    ),
    case("IPv4", "9112 3.2", b"GET / HTTP/1.1\r\nHost: 123.49.0.78:987\r\n\r\n", Echoes(b"")),
    case("IPv6", "9112 3.2", b"GET / HTTP/1.1\r\nHost: [abcd::ef98:0:7654:321]\r\n\r\n", Echoes(b"")),
    case(
        "IPv6 with port",
        "9112 3.2",
        b"GET / HTTP/1.1\r\nHost: [::ffff:12.30.67.89]:80\r\n\r\n",
        Echoes(b""),
    ),
    case("port with a dot", "9112 3.2", b"GET / HTTP/1.1\r\nHost: example.com.:1.2\r\n\r\n", Refused(400)),
    case("two ports", "9112 3.2", b"GET / HTTP/1.1\r\nHost: 123.40.56.78:9000:80\r\n\r\n", Refused(400)),
    case("port of letters", "9112 3.2", b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", Refused(400)),
    case("IPv6 that does not end", "9112 3.2", b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", Refused(400)),
    case("IPv6 without brackets", "9112 3.2", b"GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", Refused(400)),
    case("bytes behind IPv6", "9112 3.2", b"GET / HTTP/1.1\r\nHost: [::1]a:80\r\n\r\n", Refused(400)),
    case("brackets within a domain", "9112 3.2", b"GET / HTTP/1.1\r\nHost: a[b]\r\n\r\n", Refused(400)),
    case("a path in a host", "9112 3.2", b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", Refused(400)),
    case("a user in a host", "9112 3.2", b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", Refused(400)),
    case("a space in a host", "9112 3.2", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", Refused(400)),
    case("a stray percent in a host", "9112 3.2", b"GET / HTTP/1.1\r\nHost: a%2\r\n\r\n", Refused(400)),
    case("absolute domain", "9112 3.2.2", b"GET http://l/ HTTP/1.1\r\nHost: l\r\n\r\n", Echoes(b"")),
    case(
        "absolute domain with stray colon",
        "9112 3.2.2",
        b"GET http://abcd-ef.g02.xyz:/ HTTP/1.1\r\nHost: a\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "absolute IPv6 with port",
        "9112 3.2.2",
        b"GET http://[abcd::ef98:0:7654:321]:5/ HTTP/1.1\r\nHost: a\r\n\r\n",
        Echoes(b""),
    ),
    case("absolute empty domain", "9110 4.2.1", b"GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("absolute port alone", "9110 4.2.1", b"GET http://:80/ HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case(
        "absolute with two ports",
        "9112 3.2.2",
        b"GET http://123.40.56.78:9000:80/ HTTP/1.1\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case(
        "absolute with a port of letters",
        "9112 3.2.2",
        b"GET http://example.com.:1.2/ HTTP/1.1\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case("absolute, another scheme", "9112 3.2.2", b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400))
        .because("421 would do as well"),
];

const ETAG: &str = "\"de0b6b3a7640000-3e8\"";
const WHOLE: Answer =
    answer(200).body(FILE).with(&[("ETag", ETAG), ("Last-Modified", "Sun, 09 Sep 2001 01:46:40 GMT")]);
const TAIL: Answer =
    answer(206).body(FILE_TAIL_10).with(&[("Content-Range", "bytes 990-999/1000"), ("ETag", ETAG)]);
const UNCHANGED: Answer = answer(304).with(&[("ETag", ETAG)]);
const NOTHING: Answer = answer(416).with(&[("Content-Range", "bytes */1000")]);

/// `GET /files/t1.html` with these header lines.
macro_rules! get {
    ($name:literal, $rule:literal, $lines:literal, $answer:expr) => {
        case(
            $name,
            $rule,
            concat!("GET /files/t1.html HTTP/1.1\r\nHost: localhost\r\n", $lines, "\r\n").as_bytes(),
            Answers(&[$answer]),
        )
    };
}

pub(super) const FILES: &[Case] = &[
    get!("the whole file", "9110 9.3.1", "", WHOLE),
    get!(
        "first bytes",
        "9110 14.1.2",
        "Range: bytes=0-8\r\n",
        answer(206).body(FILE_HEAD_9).with(&[("Content-Range", "bytes 0-8/1000")])
    ),
    get!("final bytes", "9110 14.1.2", "Range: bytes=-10\r\n", TAIL),
    get!("final bytes explicit", "9110 14.1.2", "Range: bytes=990-\r\n", TAIL),
    get!("more than length", "9110 14.1.2", "Range: bytes=990-1990\r\n", TAIL),
    get!(
        "more final bytes than there are",
        "9110 14.1.2",
        "Range: bytes=-5000\r\n",
        answer(206).body(FILE).with(&[("Content-Range", "bytes 0-999/1000")])
    ),
    get!("the unit in capitals", "9110 14.1", "Range: BYTES=990-\r\n", TAIL),
    get!("several ranges", "9110 14.2", "Range: bytes=0-9, -10, 10-19\r\n", WHOLE)
        .because("the whole file, as permitted: only PDF viewers ask, and accept that too"),
    get!("too many ranges", "9110 14.2", "Range: bytes=0-10001, 0-0\r\n", WHOLE),
    get!("too big first byte", "9110 15.5.17", "Range: bytes=100000-\r\n", NOTHING),
    get!("no final bytes", "9110 15.5.17", "Range: bytes=-0\r\n", NOTHING),
    get!("letters for the first byte", "9110 14.2", "Range: bytes=alpha\r\n", WHOLE)
        .because("an invalid range may be ignored or rejected"),
    get!("letters for the last byte", "9110 14.2", "Range: bytes=10-alpha\r\n", WHOLE),
    get!("no hyphen", "9110 14.2", "Range: bytes=10\r\n", WHOLE),
    get!("no comma", "9110 14.2", "Range: bytes=10-11 12-\r\n", WHOLE),
    get!("the last byte before the first", "9110 14.1.1", "Range: bytes=5-2\r\n", WHOLE),
    get!("another unit", "9110 14.2", "Range: items=0-1\r\n", WHOLE),
    get!(
        "numbers over 64 bits",
        "9110 14.1.2",
        "Range: bytes=0-99999999999999999999\r\n",
        answer(206).body(FILE).with(&[("Content-Range", "bytes 0-999/1000")])
    ),
    get!(
        "If-Range with the tag",
        "9110 13.1.5",
        "Range: bytes=-10\r\nIf-Range: \"de0b6b3a7640000-3e8\"\r\n",
        TAIL
    ),
    get!("If-Range with another tag", "9110 13.1.5", "Range: bytes=-10\r\nIf-Range: \"other\"\r\n", WHOLE),
    get!(
        "If-Range with the tag, weak",
        "9110 13.1.5",
        "Range: bytes=-10\r\nIf-Range: W/\"de0b6b3a7640000-3e8\"\r\n",
        WHOLE
    ),
    get!(
        "If-Range with the date",
        "9110 13.1.5",
        "Range: bytes=-10\r\nIf-Range: Sun, 09 Sep 2001 01:46:40 GMT\r\n",
        TAIL
    ),
    get!(
        "If-Range with a later date",
        "9110 13.1.5",
        "Range: bytes=-10\r\nIf-Range: Sun, 09 Sep 2001 01:46:41 GMT\r\n",
        WHOLE
    ),
    get!(
        "If-Modified-Since of 2037",
        "9110 13.1.3",
        "If-Modified-Since: Wed, 08 Jul 2037 22:53:52 GMT\r\n",
        UNCHANGED
    ),
    get!(
        "If-Modified-Since the same",
        "9110 13.1.3",
        "If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT\r\n",
        UNCHANGED
    ),
    get!(
        "If-Modified-Since before",
        "9110 13.1.3",
        "If-Modified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n",
        WHOLE
    ),
    get!(
        "If-Modified-Since in the form of RFC 850",
        "9110 5.6.7",
        "If-Modified-Since: Sunday, 09-Sep-01 01:46:40 GMT\r\n",
        UNCHANGED
    ),
    get!(
        "If-Modified-Since in the form of asctime",
        "9110 5.6.7",
        "If-Modified-Since: Sun Sep  9 01:46:40 2001\r\n",
        UNCHANGED
    ),
    get!("If-Modified-Since that is no date", "9110 13.1.3", "If-Modified-Since: yesterday\r\n", WHOLE),
    get!("If-None-Match", "9110 13.1.2", "If-None-Match: \"de0b6b3a7640000-3e8\"\r\n", UNCHANGED),
    get!("If-None-Match of another", "9110 13.1.2", "If-None-Match: \"foo\"\r\n", WHOLE),
    get!(
        "If-None-Match in a list",
        "9110 13.1.2",
        "If-None-Match: \"foo\", \"bar\", \"de0b6b3a7640000-3e8\" , \"baz\"\r\n",
        UNCHANGED
    ),
    get!("If-None-Match of any", "9110 13.1.2", "If-None-Match: *\r\n", UNCHANGED),
    get!("If-None-Match weak", "9110 8.8.3.2", "If-None-Match: W/\"de0b6b3a7640000-3e8\"\r\n", UNCHANGED),
    get!(
        "If-None-Match before If-Modified-Since",
        "9110 13.2.2",
        "If-None-Match: \"foo\"\r\nIf-Modified-Since: Wed, 08 Jul 2037 22:53:52 GMT\r\n",
        WHOLE
    ),
    get!("If-Match", "9110 13.1.1", "If-Match: \"de0b6b3a7640000-3e8\"\r\n", WHOLE),
    get!("If-Match of another", "9110 13.1.1", "If-Match: \"foo\"\r\n", answer(412)),
    get!(
        "If-Match in a list",
        "9110 13.1.1",
        "If-Match: \"foo\", \"bar\", \t\"de0b6b3a7640000-3e8\" , \"baz\"\r\n",
        WHOLE
    ),
    get!("If-Match of any", "9110 13.1.1", "If-Match: *\r\n", WHOLE),
    get!("If-Match weak", "9110 8.8.3.2", "If-Match: W/\"de0b6b3a7640000-3e8\"\r\n", answer(412)),
    get!(
        "If-Unmodified-Since before",
        "9110 13.1.4",
        "If-Unmodified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n",
        answer(412)
    ),
    get!(
        "If-Unmodified-Since the same",
        "9110 13.1.4",
        "If-Unmodified-Since: Sun, 09 Sep 2001 01:46:40 GMT\r\n",
        WHOLE
    ),
    get!(
        "a condition and a range",
        "9110 13.2.2",
        "If-None-Match: \"de0b6b3a7640000-3e8\"\r\nRange: bytes=-10\r\n",
        UNCHANGED
    ),
    case(
        "If-Match of a missing file",
        "9110 13.2.1",
        b"GET /files/nx HTTP/1.1\r\nHost: a\r\nIf-Match: \"foo\"\r\n\r\n",
        Answers(&[answer(404)]),
    ),
    case(
        "HEAD of a part",
        "9110 14.2",
        b"HEAD /files/t1.html HTTP/1.1\r\nHost: a\r\nRange: bytes=0-8\r\n\r\n",
        Answers(&[answer(200).of_head().with(&[("Content-Length", "1000")])]),
    ),
    case(
        "HEAD that nothing has changed",
        "9110 13.1.2",
        b"HEAD /files/t1.html HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"de0b6b3a7640000-3e8\"\r\n\r\n",
        Answers(&[UNCHANGED.of_head()]),
    ),
    case(
        "HEAD of a missing file",
        "9110 9.3.2",
        b"HEAD /files/nx HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(404).of_head()]),
    ),
    case(
        "POST to a file",
        "9110 15.5.6",
        b"POST /files/t1.html HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        Answers(&[answer(405).with(&[("Allow", "GET, HEAD, OPTIONS")])]),
    ),
    case(
        "a path that leads out",
        "9110 4.2.5",
        b"GET /files/../secret HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(404)]),
    ),
    case(
        "a path that leads out, encoded",
        "9110 4.2.5",
        b"GET /files/%2e%2e/secret HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(404)]),
    ),
    case(
        "a file in gzip",
        "9110 8.4",
        b"HEAD /files/t1.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
        Answers(&[answer(200).of_head().with(&[("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")])]),
    ),
    case(
        "a file not in gzip",
        "9110 12.5.3",
        b"GET /files/t1.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip;q=0\r\n\r\n",
        Answers(&[WHOLE.with(&[("Vary", "Accept-Encoding")])]),
    ),
];
