//! Findings of the HTTP Garden (Narf Industries): requests that a server or a proxy misinterpreted.

use super::Expected::{Answers, AnswersLast, Echoes, Refused};
use super::{Case, answer, case};

pub(super) const CASES: &[Case] = &[
    case(
        "underscore in a chunk size",
        "9112 7.1",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0_2e\r\n\r\n\
              GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "0x before a chunk size",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
        Refused(400),
    ),
    case(
        "minus before a chunk size",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-0x0\r\n\r\n",
        Refused(400),
    ),
    case(
        "space before a chunk size",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n           0\r\n\r\n",
        Refused(400),
    ),
    case(
        "empty chunk size",
        "9112 7.1",
        b"GET / HTTP/1.1\r\nHost: whatever\r\nTransfer-Encoding: chunked\r\n\r\n\r\n\r\n",
        Refused(400),
    ),
    case(
        "letters behind a chunk size",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
              1these-bytes-never-get-validated\r\nZ\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "letters for a chunk size",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: whatever\r\nTransfer-Encoding: chunked\r\n\r\nINVALID!!!\r\n\
              GET / HTTP/1.1\r\nHost: whatever\r\n\r\n",
        Refused(400),
    ),
    case(
        "bare line feed behind a chunk size",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\n\r\n",
        Refused(400),
    ),
    case(
        "bare line feed behind chunk data",
        "9112 7.1",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "two carriage returns behind a chunk size",
        "9112 7.1",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\r;ABCD\r\n34\r\nE\r\n\
              0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "two carriage returns behind a chunk extension",
        "9112 7.1.1",
        b"POST /abc HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: h2o.http-garden.us\r\n\r\n\
              5;a=b\r\rXXXXX\r\n0\r\n\r\nGET /bad_path/pwned HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\
              \r\n",
        Refused(400),
    ),
    case(
        "carriage return and a digit behind a chunk size",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r0\n",
        Refused(400),
    ),
    case(
        "a last chunk in the data of another",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n17\r\n0\r\n\r\n\
              GET / HTTP/1.1\r\n\r\n\r\n0\r\n\r\n",
        Echoes(b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
    ),
    case(
        "a trailer that looks like a request",
        "9112 7.1.2",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX:POST / HTTP/1.1\r\n\
              \r\n",
        Echoes(b""),
    ),
    case(
        "something else than a line end behind the last chunk",
        "9112 7.1",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nXX GET / HTTP/1.1\r\n\
              \r\n",
        Refused(400),
    ),
    case(
        "a null and a carriage return in a value",
        "9110 5.5",
        b"GET / HTTP/1.1\r\nHost: a\r\nHeader: v\x00\ralue\r\n\r\n",
        Refused(400),
    ),
    case(
        "a carriage return in a value",
        "9110 5.5",
        b"GET / HTTP/1.1\r\nHost: whatever\r\nHeader: va\rlue\r\n\r\n",
        Refused(400),
    ),
    case(
        "a header behind a carriage return",
        "9110 5.5",
        b"GET / HTTP/1.1\r\nHost: a\r\nVisible: :/\rSmuggled: :)\r\n\r\n",
        Refused(400),
    ),
    case(
        "a null in a value",
        "9110 5.5",
        b"GET / HTTP/1.1\r\nHost: whatever\r\nTest: test\x00THESE BYTES GET DROPPED\r\n\
              Connection: close\r\n\r\n",
        Refused(400),
    ),
    case(
        "a null at the end of a value",
        "9110 5.5",
        b"GET / HTTP/1.1\r\nHost: a\r\nEvil: evil\x00\r\n\r\n",
        Refused(400),
    ),
    case(
        "a null in a host",
        "9110 5.5",
        b"GET / HTTP/1.1\r\nHost: google.com\x00.kallus.org\r\n\r\n",
        Refused(400),
    ),
    case(
        "bytes of another alphabet in a host",
        "9112 3.2",
        b"POST / HTTP/1.1\r\nHost: \xffa\xff\r\nContent-Length: 0\r\n\r\n",
        Refused(400),
    ),
    case(
        "bytes of another alphabet around a value",
        "9110 5.5",
        b"GET /login HTTP/1.1\r\nHost: a\r\nUser: \x85admin\xa0\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "bytes of another alphabet around a coding",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: whatever\r\nTransfer-Encoding: \xa0chunked\xa0\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "bytes of another alphabet in a name",
        "9110 5.1",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length\x85: 10\r\n\r\n0123456789",
        Refused(400),
    ),
    case(
        "a name that begins with another alphabet",
        "9110 5.1",
        b"GET / HTTP/1.1\r\nHost: a\r\n\xefoo: bar\r\n\r\n",
        Refused(400),
    ),
    case(
        "all kinds of bytes in a name",
        "9110 5.1",
        b"GET / HTTP/1.1\r\nHost: a\r\n\
              \x00\x01\x02\x03\x04\x05\x06\x07\x08\t\x0b\x0c\x0e\x0f\x10\x1b \"(),/;<=>?@[/]{}: whatever\r\
              \n\r\n",
        Refused(400),
    ),
    case("a null in a name", "9110 5.1", b"GET / HTTP/1.1\r\nHost: a\r\nc\x00\r\n\r\n", Refused(400)),
    case(
        "a line feed in a name",
        "9112 2.2",
        b"GET / HTTP/1.1\r\nHost: whatever\r\nTe\nst: test\r\nConnection: close\r\n\r\n",
        Refused(400),
    ),
    case(
        "a line end in a name",
        "9112 5.1",
        b"POST / HTTP/1.1\r\nHost: whatever\r\nTransfer-\r\nEncoding: chunked\r\nContent-Length: 5\r\n\
              \r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "space before a colon",
        "9112 5.1",
        b"GET / HTTP/1.1\r\nHost: whatever\r\nContent-Length : 34\r\n\r\nGET / HTTP/1.1\r\n\
              Host: whatever\r\n\r\n",
        Refused(400),
    ),
    case(
        "a tab before the first header",
        "9112 2.2",
        b"GET / HTTP/1.1\r\n\tContent-Length: 1\r\n\r\nX",
        Refused(400),
    ),
    case("no name", "9112 5", b"GET / HTTP/1.1\r\n: ignored\r\nHost: whatever\r\n\r\n", Refused(400)),
    case(
        "neither name nor value",
        "9112 5",
        b"GET / HTTP/1.1\r\n:\r\nI: am chopped off\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case(
        "no colon",
        "9112 5",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length 10\r\n\r\n0123456789",
        Refused(400),
    ),
    case(
        "line feeds behind a colon",
        "9112 2.2",
        b"GET / HTTP/1.1\r\nHost: a\r\nUseless:\n\nGET / HTTP/1.1\r\n\r\n",
        Refused(400),
    ),
    case(
        "a carriage return instead of a header",
        "9112 2.2",
        b"GET / HTTP/1.1\r\nHost: a\r\n\rZGET /evil: HTTP/1.1\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case(
        "line feeds for line ends",
        "9112 2.2",
        b"GET / HTTP/1.1\nHost: whatever\nConnection: close\n\n",
        Refused(400),
    )
    .because("a recipient may take them for line ends; one in front of it may not"),
    case(
        "a version of two digits behind the point",
        "9112 2.3",
        b"GET /test HTTP/1.32\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case(
        "a version of many digits",
        "9112 2.3",
        b"GET / HTTP/4294967295.255\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case("carriage returns in a version", "9112 2.3", b"GET / HTTP/\r\r1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case("points for a version", "9112 2.3", b"\x00 / HTTP/............0596.7407.\r\n\r\n", Refused(400)),
    case("a line feed before the version", "9112 3", b"GET /\nHTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case(
        "a method that is no token",
        "9110 9.1",
        b"G=\":<>(e),[T];?\" /get HTTP/1.1\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case("a target that is none", "9112 3.2", b"GET ! HTTP/1.1\r\nHost: a\r\n\r\n", Refused(400)),
    case(
        "a length with a sign and an underscore",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1_0\r\n\r\n0123456789",
        Refused(400),
    ),
    case(
        "a length that is negative",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -48\r\n\r\n",
        Refused(400),
    ),
    case(
        "a length with 0x",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: akamai.my-domain.cool\r\nContent-Length: 0x10\r\n\r\nZ",
        Refused(400),
    ),
    case(
        "a length with a letter behind",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1Z\r\n\r\nZ",
        Refused(400),
    ),
    case(
        "an empty length",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: \r\n\r\nGET / HTTP/1.1\r\n\
              Host: localhost\r\n\r\n",
        Refused(400),
    ),
    case(
        "an empty length and another",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\nContent-Length: 43\r\n\r\n\
              POST /evil HTTP/1.1\r\nContent-Length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        Refused(400),
    ),
    case(
        "two lengths, the longer first",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 0\r\n\r\nZ",
        Refused(400),
    ),
    case(
        "two lengths, the longer last",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 31\r\n\r\n\
              GET /evil HTTP/1.1\r\nHost: a\r\n\r\n",
        Refused(400),
    ),
    case(
        "a length with a leading zero is decimal",
        "9110 8.6",
        b"GET / HTTP/1.1\r\nHost: whatever\r\nContent-Length: 010\r\n\r\n0123456789",
        Echoes(b"0123456789"),
    ),
    case(
        "a coding twice",
        "9112 7.1",
        b"POST / HTTP/1.1\r\nHost: whatever\r\nTransfer-Encoding: chunked\r\n\
              Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "a coding behind an empty element",
        "9110 5.6.1.2",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n",
        Echoes(b""),
    ),
    case(
        "the same with a length",
        "9112 6.3",
        b"GET / HTTP/1.1\r\nHost: whatever\r\nTransfer-Encoding: ,chunked\r\nContent-Length: 5\r\n\r\n\
              0\r\n\r\n",
        Refused(400),
    ),
    case(
        "an unknown coding alone",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: blegh\r\n\r\n1\r\nZ\r\n0\r\n\r\n",
        Refused(400),
    ),
    case(
        "a length and chunks",
        "9112 6.3",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\
              \r\n",
        Refused(400),
    ),
    case(
        "bytes behind a request with close",
        "9112 9.6",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nInvalid\r\n\r\n",
        AnswersLast(&[answer(200).body(b"")]),
    ),
    case(
        "a request behind one of no length",
        "9112 9.3.2",
        b"POST / HTTP/1.1\r\nContent-Length: 0\r\nConnection:keep-alive\r\nHost: a\r\nid: 0\r\n\r\n\
              POST / HTTP/1.1\r\nHost: a\r\nid: 1\r\nContent-Length: 34\r\n\r\nGET / HTTP/1.1\r\n\
              Host: a\r\nid: 2\r\n\r\n",
        Answers(&[answer(200).body(b""), answer(200).body(b"GET / HTTP/1.1\r\nHost: a\r\nid: 2\r\n\r\n")]),
    ),
    case("the preface of HTTP/2", "9113 3.4", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refused(505)),
];
