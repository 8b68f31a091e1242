//! Rules of RFC 9112 and RFC 9110 that the other groups do not cover.

use super::Expected::{Answers, AnswersLast, Echoes, EchoesLast, Refused, Waits};
use super::{Case, Wire, answer, case, flood};

pub(super) const MESSAGES: &[Case] = &[
    case("empty Host", "9112 3.2", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", Echoes(b"")),
    case("no Host in HTTP/1.0", "9112 3.2", b"GET / HTTP/1.0\r\n\r\n", EchoesLast(b"")),
    case("the same Host twice", "9112 3.2", b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refused(400)),
    case("Host twice in HTTP/1.0", "9112 3.2", b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", Refused(400)),
    case(
        "keep-alive in HTTP/1.0",
        "9112 9.3",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        Answers(&[answer(200).body(b"").with(&[("Connection", "keep-alive")])]),
    ),
    case(
        "keep-alive and close",
        "9112 9.3",
        b"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n",
        EchoesLast(b""),
    ),
    case(
        "close in capitals in a second line",
        "9110 7.6.1",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x\r\nConnection: CLOSE\r\n\r\n",
        EchoesLast(b""),
    ),
    case(
        "chunks in HTTP/1.0",
        "9112 6.1",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    case("HTTP/0.9, and nothing more", "9112 3", b"GET /\r\n", Waits)
        .because("it may yet be a line of a head that is refused"),
    case("HTTP/0.9 by its number", "9110 15.6.6", b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", Refused(505)),
    case("HTTP/2.0 by its number", "9110 15.6.6", b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", Refused(505)),
    case("HTTP/1.2", "9110 2.5", b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", Refused(505)).because(
        "section 2.5 says to treat it as 1.1; but the version does not exist, and other parsers \
             refuse it",
    ),
    case(
        "the name of the protocol in small letters",
        "9112 2.3",
        b"GET / http/1.1\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case("a version without its minor number", "9112 2.3", b"GET / HTTP/1\r\nHost: a\r\n\r\n", Refused(400)),
    case("space behind the version", "9112 3", b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", Refused(400)),
    case("two spaces in a request line", "9112 3", b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("two spaces before the version", "9112 3", b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("tabs in a request line", "9112 3", b"GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("space before the method", "9112 3", b" GET / HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case(
        "a method in small letters",
        "9110 9.1",
        b"get /only-get HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(405).with(&[("Allow", "GET, HEAD, OPTIONS")])]),
    )
    .because("another method than GET; not 501, since the application defines the supported methods"),
    case(
        "a method of all that a token may have",
        "9110 9.1",
        b"!#$%&'*+-.^_`|~09AZaz / HTTP/1.1\r\nHost: a\r\n\r\n",
        Echoes(b""),
    ),
    case("one empty line before", "9112 2.2", b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Echoes(b"")),
    case("two empty lines before", "9112 2.2", b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400))
        .because("at least one is to be ignored; more are no client's mistake"),
    case("a bare line feed before", "9112 2.2", b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("a bare carriage return before", "9112 2.2", b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("no target", "9112 3.2", b"GET HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("a target without its slash", "9112 3.2.1", b"GET a/b HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("asterisk with GET", "9112 3.2.4", b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("authority form with GET", "9112 3.2.3", b"GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("CONNECT of a path", "9112 3.2.3", b"CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("CONNECT without a port", "9112 3.2.3", b"CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case(
        "CONNECT",
        "9110 9.3.6",
        b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        AnswersLast(&[answer(404)]),
    ),
    case("absolute form in HTTP/1.0", "9112 3.2.2", b"GET http://a/ HTTP/1.0\r\n\r\n", EchoesLast(b"")),
    case(
        "absolute form in capitals",
        "9110 4.2.3",
        b"GET HTTP://EXAMPLE.COM/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        Echoes(b""),
    ),
    case("a delete in a header", "9110 5.5", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x7fb\r\n\r\n", Refused(400)),
    case(
        "a vertical tab around a value",
        "9110 5.5",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "a coding in quotes",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "a coding with a parameter",
        "9112 7",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "a coding in any case",
        "9112 7",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ChUnKeD\r\n\r\n1\r\na\r\n0\r\n\r\n",
        Echoes(b"a"),
    ),
    case(
        "chunked, and a coding in a header of another name",
        "9112 6.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer_Encoding: identity\r\n\
              \r\n1\r\na\r\n0\r\n\r\n",
        Echoes(b"a"),
    ),
    case(
        "a length in a list of equals",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc",
        Refused(400),
    )
    .because("equal values may be merged; a proxy in front may use neither"),
    case(
        "a length twice, of equals",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        Refused(400),
    ),
    case(
        "CL.TE",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\
              \r\nG",
        Refused(400),
    ),
    case(
        "TE.CL",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n\
              GPOST / HTTP/1.1\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "TE.TE, the second unknown",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-encoding: cow\r\n\r\n\
              0\r\n\r\n",
        Refused(400),
    ),
    case(
        "TE.TE, the first unknown",
        "9112 6.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-encoding: cow\r\nTransfer-Encoding: chunked\r\n\r\n\
              0\r\n\r\n",
        Refused(501),
    ),
    case(
        "TE.0",
        "9112 6.3",
        b"OPTIONS / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\n\r\n",
        Echoes(b"GET /"),
    ),
    case(
        "0.CL",
        "9112 6.2",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 22\r\n\r\nGET / HTTP/1.1\r\nX: y\r\n",
        Echoes(b"GET / HTTP/1.1\r\nX: y\r\n"),
    ),
    case(
        "a body with DELETE",
        "9112 6",
        b"DELETE / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx",
        Echoes(b"x"),
    ),
    case(
        "trailers that would change the framing",
        "9110 6.5.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\
              Content-Length: 50\r\nTransfer-Encoding: x\r\nHost: b\r\n\r\n",
        Echoes(b"a"),
    ),
    case(
        "a folded trailer",
        "9112 7.1.2",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n c\r\n\r\n",
        Refused(400),
    ),
    case(
        "a trailer without a colon",
        "9112 7.1.2",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA\r\n\r\n",
        Refused(400),
    ),
    case(
        "a trailer with space before its colon",
        "9112 7.1.2",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA : b\r\n\r\n",
        Refused(400),
    ),
    case(
        "a trailer with a null",
        "9112 7.1.2",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: \0\r\n\r\n",
        Refused(400),
    ),
    case(
        "a chunk extension with a carriage return in quotes",
        "9112 7.1.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a=\"\r\n\"\r\nx\r\n0\r\n\
              \r\n",
        Refused(400),
    ),
    case(
        "space around a chunk extension",
        "9112 7.1.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1 \t; a \t= \"b\" ;c\r\n\
              x\r\n0\r\n\r\n",
        Echoes(b"x"),
    ),
    case(
        "a chunk extension without a name",
        "9112 7.1.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;=b\r\nx\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "a chunk extension without a value",
        "9112 7.1.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a=\r\nx\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "a chunk size of 65 bits",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000001\r\nx\r\n\
              0\r\n\r\n",
        Refused(400),
    ),
    case(
        "a chunk size of seventeen digits",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n00000000000000001\r\nx\r\n\
              0\r\n\r\n",
        Refused(400),
    )
    .because("leading zeros without end would be work without end"),
    case(
        "a chunk size of all bits",
        "9110 15.5.14",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        Refused(413),
    ),
    case(
        "a length over the limit",
        "9110 15.5.14",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n",
        Refused(413),
    ),
    flood(
        "chunk extensions without end",
        "9112 7.1.1",
        Wire::Flood(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;",
            b"abcdefgh",
            1000,
            b"\r\n",
        ),
        Refused(413),
    ),
    flood(
        "trailers without end",
        "9112 7.1.2",
        Wire::Flood(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"Name: value\r\n",
            1000,
            b"\r\n",
        ),
        Refused(413),
    ),
    flood(
        "headers without end",
        "9112 5.4",
        Wire::Flood(b"GET / HTTP/1.1\r\nHost: a\r\n", b"X: y\r\n", 3000, b"\r\n"),
        Refused(431),
    ),
    flood(
        "a header without end",
        "9112 5.4",
        Wire::Flood(b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"yyyyyyyy", 3000, b"\r\n\r\n"),
        Refused(431),
    ),
    flood(
        "a name without end",
        "9112 5.4",
        Wire::Flood(b"GET / HTTP/1.1\r\nHost: a\r\n", b"xxxxxxxx", 3000, b": y\r\n\r\n"),
        Refused(431),
    ),
    flood(
        "one line more than may be",
        "9112 5.4",
        Wire::Flood(b"GET / HTTP/1.1\r\nHost: a\r\n", b"X: y\r\n", 100, b"\r\n"),
        Refused(431),
    ),
    flood(
        "as many lines as may be",
        "9112 5.4",
        Wire::Flood(b"GET / HTTP/1.1\r\nHost: a\r\n", b"X: y\r\n", 99, b"\r\n"),
        Echoes(b""),
    ),
    flood(
        "a target without end",
        "9112 3",
        Wire::Flood(b"GET /", b"aaaaaaaa", 3000, b" HTTP/1.1\r\nHost: a\r\n\r\n"),
        Refused(414),
    ),
    flood(
        "a target of 8,000 bytes",
        "9112 3",
        Wire::Flood(b"GET /", b"aaaaaaaa", 1000, b" HTTP/1.1\r\nHost: a\r\n\r\n"),
        Echoes(b""),
    ),
    flood(
        "a method without end",
        "9112 3",
        Wire::Flood(b"", b"GETGETGE", 3000, b" / HTTP/1.1\r\nHost: a\r\n\r\n"),
        Refused(414),
    )
    .because(
        "501, says section 3, where the method is too long; it is the first line that is, and \
             no method is known",
    ),
];

pub(super) const SEMANTICS: &[Case] = &[
    case(
        "HEAD",
        "9110 9.3.2",
        b"HEAD /only-get HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(200).of_head().with(&[("Content-Length", "4")])]),
    ),
    case(
        "HEAD, and GET behind it",
        "9110 9.3.2",
        b"HEAD /only-get HTTP/1.1\r\nHost: a\r\n\r\nGET /only-get HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(200).of_head(), answer(200).body(b"get\n")]),
    ),
    case(
        "HEAD with a body",
        "9110 9.3.2",
        b"HEAD /only-get HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        Answers(&[answer(200).of_head()]),
    ),
    case(
        "another method than may be",
        "9110 15.5.6",
        b"DELETE /only-get HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(405).with(&[("Allow", "GET, HEAD, OPTIONS")])]),
    ),
    case(
        "the same with a body",
        "9112 9.3",
        b"POST /only-get HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        Answers(&[answer(405)]),
    ),
    case(
        "the same with chunks",
        "9112 9.3",
        b"POST /only-get HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\
              \r\n",
        Answers(&[answer(405)]),
    ),
    case(
        "HEAD where it may not be",
        "9110 9.3.2",
        b"HEAD /websocket HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(405).of_head()]),
    ),
    case("TRACE", "9110 9.3.8", b"TRACE /only-get HTTP/1.1\r\nHost: a\r\n\r\n", Answers(&[answer(405)])),
    case(
        "OPTIONS",
        "9110 9.3.7",
        b"OPTIONS /only-get HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(204).with(&[("Allow", "GET, HEAD, OPTIONS")])]),
    ),
    case(
        "OPTIONS of the server",
        "9110 9.3.7",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(204)]),
    ),
    case(
        "OPTIONS of the server with a body",
        "9110 9.3.7",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        Answers(&[answer(204)]),
    ),
    case(
        "leave to send a body",
        "9110 10.1.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
        Echoes(b"hello"),
    )
    .because("100 before it, if the body has not come with the head"),
    case(
        "leave to send chunks, in capitals",
        "9110 10.1.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nTransfer-Encoding: chunked\r\n\r\n\
              1\r\nx\r\n0\r\n\r\n",
        Echoes(b"x"),
    ),
    case(
        "leave asked for in HTTP/1.0",
        "9110 10.1.1",
        b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
        EchoesLast(b"hello"),
    ),
    case(
        "another expectation",
        "9110 10.1.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 5\r\n\r\nhello",
        Echoes(b"hello"),
    )
    .because("417 may be the answer; ignored, as by most"),
    case(
        "100-continue for an unwanted body",
        "9110 10.1.1",
        b"POST /only-get HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n",
        AnswersLast(&[answer(405)]),
    ),
    case(
        "a body that is too large, asked before",
        "9110 10.1.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5000000000\r\n\r\n",
        Refused(413),
    ),
    case(
        "a WebSocket that is not asked for",
        "9110 15.5.22",
        b"GET /websocket HTTP/1.1\r\nHost: a\r\n\r\n",
        AnswersLast(&[answer(426).with(&[("Upgrade", "websocket")])]),
    ),
    case(
        "a WebSocket in HTTP/1.0",
        "9110 7.8",
        b"GET /websocket HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        AnswersLast(&[answer(426)]),
    ),
    case(
        "a WebSocket with a body",
        "9931",
        b"GET /websocket HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
              Content-Length: 4\r\n\r\nGET ",
        AnswersLast(&[answer(400)]),
    ),
    case(
        "an upgrade to HTTP/2",
        "9113 3.1",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
              HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "an upgrade without its option",
        "9110 7.8",
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "two requests",
        "9112 9.3.2",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1POST / HTTP/1.1\r\nHost: a\r\n\
              Transfer-Encoding: chunked\r\n\r\n1\r\n2\r\n0\r\n\r\n",
        Answers(&[answer(200).body(b"1"), answer(200).body(b"2")]),
    ),
    case(
        "a sound request and one that is not",
        "9112 9.3.2",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        AnswersLast(&[answer(200).body(b""), answer(400)]),
    ),
];
