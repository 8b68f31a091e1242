//! Requests of the tests of llhttp, the parser of Node, with a `Host` added where they omit it for another
//! purpose.

use super::Expected::{Answers, AnswersLast, Echoes, EchoesLast, Refused};
use super::{Case, answer, case};

const NO_FOLDING: &str = "a server may join folded lines; a proxy in front may not have joined them";

pub(super) const HEADS: &[Case] = &[
    case(
        "ICE protocol",
        "9112 2.3",
        b"GET /music/sweet/music ICE/1.0\r\nHost: example.com\r\n\r\n",
        Refused(400),
    ),
    case(
        "ICE protocol, but not really",
        "9112 2.3",
        b"GET /music/sweet/music IHTTP/1.0\r\nHost: example.com\r\n\r\n",
        Refused(400),
    ),
    case(
        "RTSP protocol",
        "9112 2.3",
        b"PUT /music/sweet/music RTSP/1.0\r\nHost: example.com\r\n\r\n",
        Refused(400),
    ),
    case(
        "ANNOUNCE method",
        "9110 9.1",
        b"ANNOUNCE /music/sweet/music HTTP/1.0\r\nHost: example.com\r\n\r\n",
        EchoesLast(b""),
    ),
    case("invalid method", "9110 9.1", b"MKCOLA / HTTP/1.1\r\nHost: a\r\n\r\n", Echoes(b""))
        .because("a token, and so the application's to know"),
    case("headers separated by CR", "9112 2.2", b"GET / HTTP/1.1\r\nFoo: 1\rBar: 2\r\n\r\n", Refused(400)),
    case(
        "headers separated by LF",
        "9112 2.2",
        b"POST / HTTP/1.1\r\nHost: localhost:5000\r\nx:x\nTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n\
              0\r\n\r\n",
        Refused(400),
    ),
    case(
        "empty headers separated by CR",
        "9112 2.2",
        b"POST / HTTP/1.1\r\nConnection: Close\r\nHost: localhost:5000\r\n\
              x:\rTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "empty headers separated by LF",
        "9112 2.2",
        b"POST / HTTP/1.1\r\nHost: localhost:5000\r\nx:\nTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n\
              0\r\n\r\n",
        Refused(400),
    ),
    case("invalid header token #1", "9110 5.1", b"GET / HTTP/1.1\r\nFo@: Failure\r\n\r\n", Refused(400)),
    case("invalid header token #2", "9110 5.1", b"GET / HTTP/1.1\r\nFoo\x01test: Bar\r\n\r\n", Refused(400)),
    case(
        "illegal header field name line folding",
        "9112 5.2",
        b"GET / HTTP/1.1\r\nHost: a\r\nname\r\n : value\r\n\r\n",
        Refused(400),
    ),
    case(
        "corrupted Connection header",
        "9112 5",
        b"GET / HTTP/1.1\r\nHost: www.example.com\r\nConnection\r\x1b5\xd5eep-Alive\r\n\
              Accept-Encoding: gzip\r\n\r\n",
        Refused(400),
    ),
    case(
        "missing CR between headers",
        "9112 2.2",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nDummy: x\nContent-Length: 23\r\n\r\nGET / HTTP/1.1\r\n\
              Dummy: GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n",
        Refused(400),
    ),
    case("invalid HTTP version", "9110 15.6.6", b"GET / HTTP/5.6\r\nHost: a\r\n\r\n", Refused(505)),
    case("invalid space after start line", "9112 2.2", b"GET / HTTP/1.1\r\n Host: foo\r\n\r\n", Refused(400)),
    case(
        "only LFs present",
        "9112 2.2",
        b"POST / HTTP/1.1\nTransfer-Encoding: chunked\nTrailer: Baz\nHost: abc\n\n1\nA\n0\n\n\
              Baz: ghi\n\n",
        Refused(400),
    ),
    case(
        "spaces before headers",
        "9112 5.2",
        b"POST /hello HTTP/1.1\r\nHost: localhost\r\nFoo: bar\r\n Content-Length: 38\r\n\r\n\
              GET /bye HTTP/1.1\r\nHost: localhost\r\n\r\n",
        Refused(400),
    )
    .because(NO_FOLDING),
    case(
        "simple request",
        "9112 5",
        b"OPTIONS /url HTTP/1.1\r\nHost: a\r\nHeader1: Value1\r\nHeader2:\t Value2\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "curl GET",
        "9112 3",
        b"GET /test HTTP/1.1\r\n\
              User-Agent: curl/7.18.0 (i486-pc-linux-gnu) libcurl/7.18.0 OpenSSL/0.9.8g zlib/1.2.3.3 libid\
              n/1.1\r\nHost: 0.0.0.0=5000\r\nAccept: */*\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "Firefox GET",
        "9112 3",
        b"GET /favicon.ico HTTP/1.1\r\nHost: 0.0.0.0=5000\r\n\
              User-Agent: Mozilla/5.0 (X11; U; Linux i686; en-US; rv:1.9) Gecko/2008061015 Firefox/3.0\r\n\
              Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
              Accept-Language: en-us,en;q=0.5\r\nAccept-Encoding: gzip,deflate\r\n\
              Accept-Charset: ISO-8859-1,utf-8;q=0.7,*;q=0.7\r\nKeep-Alive: 300\r\n\
              Connection: keep-alive\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "DUMBPACK",
        "9110 5.5",
        b"GET /dumbpack HTTP/1.1\r\nHost: a\r\naaaaaaaaaaaaa:++++++++++\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "no headers and no body",
        "9112 3.2",
        b"GET /get_no_headers_no_body/world HTTP/1.1\r\n\r\n",
        Refused(400),
    ),
    case(
        "apache bench GET",
        "9112 9.3",
        b"GET /test HTTP/1.0\r\nHost: 0.0.0.0:5000\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\
              \r\n",
        EchoesLast(b""),
    ),
    case("prefix newline", "9112 2.2", b"\r\nGET /test HTTP/1.1\r\nHost: a\r\n\r\n", Echoes(b"")),
    case("no HTTP version", "9112 3", b"GET /\r\n\r\n", Refused(400)),
    case(
        "line folding in header value with CRLF",
        "9112 5.2",
        b"GET / HTTP/1.1\r\nHost: a\r\nLine1:   abc\r\n\tdef\r\n ghi\r\n\t\tjkl\r\n\
              Line3:\r\n line3\r\nConnection:\r\n close\r\n\r\n",
        Refused(400),
    )
    .because(NO_FOLDING),
    case(
        "line folding in header value with LF",
        "9112 5.2",
        b"GET / HTTP/1.1\nHost: a\nLine1:   abc\n\tdef\n\n",
        Refused(400),
    ),
    case("no LF after CR", "9112 2.2", b"GET / HTTP/1.1\rLine: 1\r\n\r\n", Refused(400)),
    case(
        "extended characters",
        "9110 5.5",
        b"GET / HTTP/1.1\r\nHost: a\r\nTest: D\xc3\xbcsseldorf\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "255 ASCII in header value",
        "9110 5.5",
        b"OPTIONS /url HTTP/1.1\r\nHost: a\r\nHeader1: Value1\r\nHeader2: \xffValue2\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "form feed in a header value",
        "9110 5.5",
        b"GET /url HTTP/1.1\r\nHost: a\r\nHeader1: \x0c\r\n\r\n",
        Refused(400),
    ),
    case("REPORT request", "9110 9.1", b"REPORT /test HTTP/1.1\r\nHost: a\r\n\r\n", Echoes(b"")),
    case(
        "CONNECT request",
        "9110 9.3.6",
        b"CONNECT 0-home0.netscape.com:443 HTTP/1.0\r\nUser-agent: Mozilla/1.1N\r\n\
              Proxy-authorization: basic aGVsbG86d29ybGQ=\r\n\r\nsome data\r\nand yet even more data",
        AnswersLast(&[answer(404)]),
    )
    .because("no proxy, and the rest is for the other end of a tunnel that does not exist"),
    case(
        "CONNECT with body",
        "9110 9.3.6",
        b"CONNECT foo.bar.com:443 HTTP/1.0\r\nUser-agent: Mozilla/1.1N\r\nContent-Length: 10\r\n\r\n\
              blarfcicle",
        AnswersLast(&[answer(404)]),
    ),
    case(
        "M-SEARCH request",
        "9112 3.2.4",
        b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nMAN: \"ssdp:discover\"\r\n\
              ST: \"ssdp:all\"\r\n\r\n",
        Refused(400),
    )
    .because("`*` is for OPTIONS only; this one is of UDP"),
    case(
        "PATCH request",
        "9110 9.1",
        b"PATCH /file.txt HTTP/1.1\r\nHost: www.example.com\r\nContent-Type: application/example\r\n\
              If-Match: \"e0023aa4e\"\r\nContent-Length: 10\r\n\r\ncccccccccc",
        Echoes(b"cccccccccc"),
    ),
    case(
        "PURGE request",
        "9110 9.1",
        b"PURGE /file.txt HTTP/1.1\r\nHost: www.example.com\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "LINK request",
        "9110 9.1",
        b"LINK /images/my_dog.jpg HTTP/1.1\r\nHost: example.com\r\n\
              Link: <http://example.com/profiles/joe>; rel=\"tag\"\r\n\
              Link: <http://example.com/profiles/sally>; rel=\"tag\"\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "SOURCE request with ICE",
        "9112 2.3",
        b"SOURCE /music/sweet/music ICE/1.0\r\nHost: example.com\r\n\r\n",
        Refused(400),
    ),
    case(
        "PRI request of HTTP/1.1",
        "9112 3.2.4",
        b"PRI * HTTP/1.1\r\nHost: a\r\n\r\nSM\r\n\r\n",
        Refused(400),
    ),
    case(
        "QUERY request",
        "9110 9.1",
        b"QUERY /contacts HTTP/1.1\r\nHost: example.org\r\nContent-Type: example/query\r\n\
              Accept: text/csv\r\nContent-Length: 41\r\n\r\nselect surname, givenname, email limit 10",
        Echoes(b"select surname, givenname, email limit 10"),
    ),
    case(
        "quotes in URI",
        "9112 3.2",
        b"GET /with_\"lovely\"_quotes?foo=\\\"bar\\\" HTTP/1.1\r\nHost: a\r\n\r\n",
        Echoes(b""),
    )
    .because("no part of a URI, but visible; browsers send some of these bytes as they are"),
    case(
        "query URL with question mark",
        "9112 3.2.1",
        b"GET /test.cgi?foo=bar?baz HTTP/1.1\r\nHost: a\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "query URL with vertical bar",
        "9112 3.2",
        b"GET /test.cgi?query=| HTTP/1.1\r\nHost: a\r\n\r\n",
        Echoes(b""),
    )
    .because("no part of a URI, but browsers send it"),
    case(
        "host terminated by a query string",
        "9112 3.2.2",
        b"GET http://hypnotoad.org?hail=all HTTP/1.1\r\nHost: hypnotoad.org\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "host:port terminated by a query string",
        "9112 3.2.2",
        b"GET http://hypnotoad.org:1234?hail=all HTTP/1.1\r\nHost: hypnotoad.org:1234\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "host:port terminated by a space",
        "9112 3.2.2",
        b"GET http://hypnotoad.org:1234 HTTP/1.1\r\nHost: hypnotoad.org:1234\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "UTF-8 in URI path",
        "9112 3.2",
        b"GET /\xce\xb4\xc2\xb6/\xce\xb4t/pope?q=1 HTTP/1.1\r\nHost: github.com\r\n\r\n",
        Refused(400),
    ),
    case(
        "fragment in URI",
        "9112 3.2.1",
        b"GET /forums/1/topics/2375?page=1#posts-17408 HTTP/1.1\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case(
        "host:port and basic auth",
        "9110 4.2.4",
        b"GET http://a%12:b!&*$@hypnotoad.org:1234/toto HTTP/1.1\r\nHost: hypnotoad.org\r\n\r\n",
        Refused(400),
    ),
    case("space in URI", "9112 3.2", b"GET /foo bar/ HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case(
        "explicit keep-alive",
        "9112 9.3",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "no restart when keep-alive is off (1.0)",
        "9112 9.3",
        b"PUT /url HTTP/1.0\r\n\r\nPUT /url HTTP/1.1\r\nHost: a\r\n\r\n",
        EchoesLast(b""),
    ),
    case(
        "CR in a connection option",
        "9110 5.5",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: keep\ralive\r\n\r\n",
        Refused(400),
    ),
    case("close", "9112 9.6", b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", EchoesLast(b"")),
    case(
        "close followed by tab",
        "9112 9.6",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: close\t\r\n\r\n",
        EchoesLast(b""),
    ),
    case(
        "multiple connection options",
        "9110 7.6.1",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: close, token, upgrade, token, keep-alive\r\n\r\n",
        EchoesLast(b""),
    ),
    case(
        "multiple connection options with folding",
        "9112 5.2",
        b"GET /demo HTTP/1.1\r\nHost: example.com\r\n\
              Connection: Something,\r\n Upgrade, ,Keep-Alive\r\n\r\n",
        Refused(400),
    )
    .because(NO_FOLDING),
    case(
        "whitespace behind the name Connection",
        "9112 5.1",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection : upgrade\r\nContent-Length: 4\r\nUpgrade: ws\r\n\
              \r\nabcdefgh",
        Refused(400),
    ),
    case(
        "an upgrade to something else",
        "9110 7.8",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nContent-Length: 4\r\nUpgrade: ws\r\n\
              \r\nabcd",
        Echoes(b"abcd"),
    )
    .because("the upgrade is ignored, and the connection continues"),
];

pub(super) const BODIES: &[Case] = &[
    case(
        "several events",
        "9112 9.3.2",
        b"POST /aaa HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nAAAPUT /bbb HTTP/1.1\r\n\
              Host: a\r\nContent-Length: 4\r\n\r\nBBBBPATCH /ccc HTTP/1.1\r\nHost: a\r\n\
              Content-Length: 5\r\n\r\nCCCCC",
        Answers(&[answer(200).body(b"AAA"), answer(200).body(b"BBBB"), answer(200).body(b"CCCCC")]),
    ),
    case(
        "CRLF between requests",
        "9112 2.2",
        b"POST / HTTP/1.1\r\nHost: www.example.com\r\n\
              Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4\r\n\r\nq=42\r\n\
              GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        Answers(&[answer(200).body(b"q=42"), answer(200).body(b"")]),
    ),
    case(
        "CRLF behind a request that says close",
        "9112 9.6",
        b"POST / HTTP/1.1\r\nHost: www.example.com\r\n\
              Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4\r\n\
              Connection: close\r\n\r\nq=42\r\nGET / HTTP/1.1\r\n\r\n",
        EchoesLast(b"q=42"),
    ),
    case(
        "chunks with lowercase size",
        "9112 7.1",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\
              \r\n",
        Echoes(b"0123456789"),
    ),
    case(
        "chunks with uppercase size",
        "9112 7.1",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\
              \r\n",
        Echoes(b"0123456789"),
    ),
    case(
        "a chunk of two digits",
        "9112 7.1",
        b"POST /post_chunked_all_your_base HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
              1e\r\nall your base are belong to us\r\n0\r\n\r\n",
        Echoes(b"all your base are belong to us"),
    ),
    case(
        "two chunks and triple zero prefixed end chunk",
        "9112 7.1",
        b"POST /two_chunks_mult_zero_end HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
              5\r\nhello\r\n6\r\n world\r\n000\r\n\r\n",
        Echoes(b"hello world"),
    ),
    case(
        "trailing headers",
        "9112 7.1.2",
        b"POST /chunked_w_trailing_headers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
              5\r\nhello\r\n6\r\n world\r\n0\r\nVary: *\r\nContent-Type: text/plain\r\n\r\n",
        Echoes(b"hello world"),
    ),
    case(
        "chunk extensions",
        "9112 7.1.1",
        b"POST /chunked_w_unicorns_after_length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
              \r\n5;ilovew3;somuchlove=aretheseparametersfor;another=withvalue\r\nhello\r\n\
              6;blahblah;blah\r\n world\r\n0\r\n\r\n",
        Echoes(b"hello world"),
    ),
    case(
        "chunk extensions quoting",
        "9112 7.1.1",
        b"POST /chunked_w_unicorns_after_length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
              \r\n\
              5;ilovew3=\"I \\\"love\\\"; \\\\extensions\\\\\";somuchlove=\"aretheseparametersfor\";blah;f\
              oo=bar\r\nhello\r\n6;blahblah;blah\r\n world\r\n0\r\n\r\n",
        Echoes(b"hello world"),
    ),
    case(
        "no semicolon before chunk extensions",
        "9112 7.1.1",
        b"POST /chunked_w_unicorns_after_length HTTP/1.1\r\nHost: localhost\r\n\
              Transfer-encoding: chunked\r\n\r\n2 erfrferferf\r\naa\r\n0 rrrr\r\n\r\n",
        Refused(400),
    ),
    case(
        "no extension after semicolon",
        "9112 7.1.1",
        b"POST /chunked_w_unicorns_after_length HTTP/1.1\r\nHost: localhost\r\n\
              Transfer-encoding: chunked\r\n\r\n2;\r\naa\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "unbalanced chunk extensions quoting",
        "9112 7.1.1",
        b"POST /chunked_w_unicorns_after_length HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
              \r\n5;ilovew3=\"abc\";somuchlove=\"def; ghi\r\nhello\r\n6;blahblah;blah\r\n world\r\n0\r\n\
              \r\n",
        Refused(400),
    ),
    case(
        "ignoring pigeons",
        "9112 6.3",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: pigeons\r\n\r\n",
        Refused(400),
    ),
    case(
        "identity and a length",
        "9112 6.3",
        b"POST /post_identity_body_world?q=search HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\
              Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nWorld",
        Refused(400),
    ),
    case(
        "empty codings and a length",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: foo\r\nContent-Length: 10\r\nTransfer-Encoding:\r\n\
              Transfer-Encoding:\r\nTransfer-Encoding:\r\n\r\n2\r\nAA\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "chunked before other transfer codings",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nTransfer-Encoding: chunked, deflate\r\n\r\n\
              World",
        Refused(400),
    ),
    case(
        "chunked and another coding in a second line",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: deflate\r\n\
              \r\nWorld",
        Refused(400),
    ),
    case(
        "chunked as last transfer coding",
        "9112 6.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: deflate, chunked\r\n\r\n5\r\nWorld\r\n0\r\n\
              \r\n",
        Refused(501),
    ),
    case(
        "chunked as last transfer coding, in a second line",
        "9112 6.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: deflate\r\nTransfer-Encoding: chunked\r\n\
              \r\n5\r\nWorld\r\n0\r\n\r\n",
        Refused(501),
    ),
    case(
        "chunkedchunked",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunkedchunked\r\n\r\n5\r\nWorld\r\n0\r\n\
              \r\n",
        Refused(400),
    ),
    case(
        "missing last chunk",
        "9112 7.1",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nfoo\r\n\r\n",
        Refused(400),
    ),
    case(
        "line feed within a chunk size",
        "9112 7.1",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3 \n  \r\nfoo\r\n\r\n",
        Refused(400),
    ),
    case(
        "folding after chunked",
        "9112 5.2",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n  abc\r\n\r\n5\r\nWorld\r\n\
              0\r\n\r\n",
        Refused(400),
    ),
    case(
        "chunk data not terminated by CRLF",
        "9112 7.1",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close \r\nTransfer-Encoding: chunked \r\n\r\n5\r\n\
              ABCDE0\r\n\r\n",
        Refused(400),
    ),
    case(
        "space after chunk header",
        "9112 7.1",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na \r\n0123456789\r\n0\r\n\
              \r\n",
        Refused(400),
    ),
    case(
        "Content-Length with zeroes",
        "9110 8.6",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 003\r\n\r\nabc",
        Echoes(b"abc"),
    ),
    case(
        "Content-Length with headers behind",
        "9110 8.6",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 003\r\nOhai: world\r\n\r\nabc",
        Echoes(b"abc"),
    ),
    case(
        "Content-Length overflow",
        "9110 8.6",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000000000000\r\n\r\n",
        Refused(400),
    ),
    case(
        "duplicate Content-Length",
        "9112 6.3",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        Refused(400),
    ),
    case(
        "whitespace behind the name Content-Length",
        "9112 5.1",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nContent-Length : 4\r\nUpgrade: ws\r\n\
              \r\nabcdefgh",
        Refused(400),
    ),
    case(
        "funky Content-Length with body",
        "9112 6.2",
        b"GET /get_funky_content_length_body_hello HTTP/1.0\r\nconTENT-Length: 5\r\n\r\nHELLO",
        EchoesLast(b"HELLO"),
    ),
    case(
        "spaces around Content-Length",
        "9110 5.5",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:  3 \r\n\r\nabc",
        Echoes(b"abc"),
    ),
    case(
        "tabs around Content-Length",
        "9110 5.5",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\t3\t  \r\n\r\nabc",
        Echoes(b"abc"),
    ),
    case(
        "spaces in Content-Length",
        "9110 8.6",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4 2\r\n\r\n",
        Refused(400),
    ),
    case(
        "empty Content-Length",
        "9110 8.6",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
        Refused(400),
    ),
    case(
        "Content-Length with CR instead of dash",
        "9110 5.1",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nContent\rLength: 003\r\n\r\nabc",
        Refused(400),
    ),
    case(
        "Content-Length that swallows a request",
        "9112 6.2",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 46\r\n\r\nPOST /url HTTP/1.1\r\n\
              Content-Length: 456\r\n\r\n+++",
        Echoes(b"POST /url HTTP/1.1\r\nContent-Length: 456\r\n\r\n+++"),
    ),
    case(
        "missing CRLF-CRLF before body",
        "9112 2.2",
        b"PUT /url HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\rabc\r\n\r\n",
        Refused(400),
    ),
];
