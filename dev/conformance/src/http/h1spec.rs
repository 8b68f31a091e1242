//! The cases of h1spec (uNetworking). It permits a range of statuses; these cases require the status of RFC
//! 9112 within that range.

use super::Expected::{Echoes, Refused, Waits};
use super::{Case, case};

/// The server waits for the rest of an incomplete request: h1spec's first 15 cases.
const WAITED_FOR: &str = "9112 2.2";

pub(super) const CASES: &[Case] = &[
    case("fragmented method", WAITED_FOR, b"G", Waits),
    case("fragmented URL 1", WAITED_FOR, b"GET ", Waits),
    case("fragmented URL 2", WAITED_FOR, b"GET /hello", Waits),
    case("fragmented URL 3", WAITED_FOR, b"GET /hello ", Waits),
    case("fragmented HTTP version", WAITED_FOR, b"GET /hello HTTP", Waits),
    case("fragmented request line", WAITED_FOR, b"GET /hello HTTP/1.1", Waits),
    case("fragmented request line newline 1", WAITED_FOR, b"GET /hello HTTP/1.1\r", Waits),
    case("fragmented request line newline 2", WAITED_FOR, b"GET /hello HTTP/1.1\r\n", Waits),
    case("fragmented field name", WAITED_FOR, b"GET /hello HTTP/1.1\r\nHos", Waits),
    case("fragmented field value 1", WAITED_FOR, b"GET /hello HTTP/1.1\r\nHost:", Waits),
    case("fragmented field value 2", WAITED_FOR, b"GET /hello HTTP/1.1\r\nHost: ", Waits),
    case("fragmented field value 3", WAITED_FOR, b"GET /hello HTTP/1.1\r\nHost: localhost", Waits),
    case("fragmented field value 4", WAITED_FOR, b"GET /hello HTTP/1.1\r\nHost: localhost\r", Waits),
    case("fragmented request", WAITED_FOR, b"GET /hello HTTP/1.1\r\nHost: localhost\r\n", Waits),
    case(
        "fragmented request termination",
        WAITED_FOR,
        b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r",
        Waits,
    ),
    case("request without HTTP version", "9112 3", b"GET / \r\n\r\n", Refused(400)),
    case(
        "request with Expect header",
        "9110 10.1.1",
        b"GET / HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\n\r\n",
        Echoes(b""),
    )
    .because("without a body there is nothing to go on with, and 100 may be left out"),
    case("valid GET request", "9112 2.1", b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", Echoes(b"")),
    case(
        "valid GET request with edge cases",
        "9112 5",
        b"GET / HTTP/1.1\r\nhoSt:\texample.com\r\nempty:\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "invalid header characters",
        "9110 5.1",
        b"GET / HTTP/1.1\r\nHost: example.com\r\nX-Invalid[]: test\r\n\r\n",
        Refused(400),
    ),
    case("missing Host header", "9112 3.2", b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", Refused(400)),
    case(
        "multiple Host headers",
        "9112 3.2",
        b"GET / HTTP/1.1\r\nHost: example.com\r\nHost: example.org\r\n\r\n",
        Refused(400),
    ),
    case(
        "overflowing negative Content-Length header",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: example.com\r\nContent-Length: -123456789123456789123456789\r\n\r\n",
        Refused(400),
    ),
    case(
        "negative Content-Length header",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: example.com\r\nContent-Length: -1234\r\n\r\n",
        Refused(400),
    ),
    case(
        "non-numeric Content-Length header",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: example.com\r\nContent-Length: abc\r\n\r\n",
        Refused(400),
    ),
    case(
        "empty header value",
        "9110 5.5",
        b"GET / HTTP/1.1\r\nHost: example.com\r\nX-Empty-Header: \r\n\r\n",
        Echoes(b""),
    ),
    case(
        "header containing invalid control character",
        "9110 5.5",
        b"GET / HTTP/1.1\r\nHost: example.com\r\nX-Bad-Control-Char: test\x07\r\n\r\n",
        Refused(400),
    ),
    case("invalid HTTP version", "9110 15.6.6", b"GET / HTTP/9.9\r\nHost: example.com\r\n\r\n", Refused(505)),
    case(
        "invalid prefix of request",
        "9112 3",
        b"Extra lineGET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
        Refused(400),
    ),
    case(
        "invalid line ending",
        "9112 2.2",
        b"GET / HTTP/1.1\r\nHost: example.com\r\n\rSome-Header: Test\r\n\r\n",
        Refused(400),
    ),
    case(
        "valid POST request with body",
        "9112 6.2",
        b"POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\n\r\nhello",
        Echoes(b"hello"),
    ),
    case(
        "chunked Transfer-Encoding",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n\
              HellO world1\r\n0\r\n\r\n",
        Echoes(b"HellO world1"),
    ),
    case(
        "conflicting Transfer-Encoding and Content-Length in varying case",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: example.com\r\ncontent-LengtH: 5\r\nTransFer-Encoding: chunked\r\n\
              \r\nc\r\nHellO world1\r\n0\r\n\r\n",
        Refused(400),
    )
    .because("a server may refuse it, and one that does cannot be the second of two that disagree"),
];
