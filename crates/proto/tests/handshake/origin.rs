//! Web pages that may connect (RFC 6455 section 10.2).

use sinews_proto::handshake::{HandshakeMisuse, OriginPolicy, ServerOptions, same_origin};

use crate::{ForeignRequest, Lines, with_head};

fn status(lines: &Lines, policy: &OriginPolicy) -> u16 {
    let options = ServerOptions::new().with_origin(policy.clone());
    lines.accept(&options).map_or_else(|refusal| refusal.status(), |accepted| accepted.status())
}

fn from(origin: &str) -> Lines {
    Lines::new().with(&format!("Origin: {origin}"))
}

#[test]
fn foreign_origins_are_rejected_by_default() {
    assert_eq!(from("https://evil.example").status(), 403);
    assert_eq!(from("https://server.example.com").status(), 101);
}

#[test]
fn the_same_origin_is_the_same_host_and_port() {
    let same = |host: &str, origin: &str| {
        with_head(&from(origin).replace("Host", host).bytes(), |head| same_origin(head)).expect("sound")
    };
    for (host, origin) in [
        ("a.example", "https://a.example"),
        ("a.example", "http://a.example"),
        ("A.example", "https://a.EXAMPLE"),
        ("a.example:8080", "http://a.example:8080"),
        ("a.example:443", "https://a.example"),
        ("a.example", "http://a.example:80"),
        ("[::1]:9001", "http://[::1]:9001"),
    ] {
        assert!(same(host, origin), "{host} {origin}");
    }
    for (host, origin) in [
        ("a.example", "https://b.example"),
        ("a.example", "https://a.example.evil"),
        ("a.example", "https://xa.example"),
        ("a.example:8080", "http://a.example"),
        ("a.example", "http://a.example:443"),
        ("a.example", "null"),
        ("a.example", "a.example"),
        ("a.example", "chrome-extension://a.example"),
        ("a.example", "https://a.example/"),
        ("a.example", "https://u@a.example"),
        ("", "https://"),
        ("a.example", ""),
    ] {
        assert!(!same(host, origin), "{host} {origin}");
    }
}

#[test]
fn repeated_origin_is_not_same_origin() {
    let lines = from("http://server.example.com").with("Origin: http://server.example.com");
    assert_eq!(status(&lines, &OriginPolicy::same_origin()), 403);
    let list = OriginPolicy::list(["http://server.example.com"]).expect("sound");
    assert_eq!(status(&lines, &list), 403);
}

#[test]
fn http_2_authority_is_compared_with_origin() {
    let mut request = ForeignRequest::extended_connect();
    request.headers.push(("origin", "https://server.example.com"));
    assert!(same_origin(&request));
    request.authority = Some("other.example");
    assert!(!same_origin(&request));
    request.authority = None;
    assert!(!same_origin(&request));
}

#[test]
fn origin_list_compares_whole_origins() {
    let list = OriginPolicy::list(["https://a.example", "http://localhost:3000", "null"]).expect("sound");
    for (origin, expected) in [
        ("https://a.example", 101),
        ("HTTPS://A.example", 101),
        ("http://localhost:3000", 101),
        ("null", 101),
        ("http://a.example", 403),
        ("https://a.example.evil", 403),
        ("https://a.example:8443", 403),
        ("https://server.example.com", 403),
    ] {
        assert_eq!(status(&from(origin), &list), expected, "{origin}");
    }
    for origin in ["https://a.example/", "a.example", "https://", "*", "", "https://a\r\nb", "https://a/b"] {
        assert_eq!(OriginPolicy::list([origin]), Err(HandshakeMisuse::Origin), "{origin}");
    }
}

#[test]
fn origin_list_has_subdomains_and_default_ports() {
    let list = OriginPolicy::list([
        "https://*.example.com",
        "http://*.example.com:8080",
        "https://a.example:443",
        "http://b.example:80",
    ]);
    let list = list.expect("sound");
    for (origin, expected) in [
        ("https://a.example.com", 101),
        ("https://a.b.EXAMPLE.com", 101),
        ("https://a.example.com:443", 101),
        ("http://a.example.com:8080", 101),
        ("https://a.example", 101),
        ("https://a.example:443", 101),
        ("http://b.example", 101),
        ("https://example.com", 403),
        ("https://.example.com", 403),
        ("https://evilexample.com", 403),
        ("https://a.example.com.evil", 403),
        ("https://evil/.example.com", 403),
        ("https://evil@a.example.com", 403),
        ("https://a.example.com:8443", 403),
        ("http://a.example.com", 403),
        ("http://a.example:443", 403),
        ("null", 403),
    ] {
        assert_eq!(status(&from(origin), &list), expected, "{origin}");
    }
    for origin in [
        "https://*",
        "https://*.",
        "https://*example.com",
        "https://a.*.com",
        "https://*.*.com",
        "*.example.com",
        "https://a:",
        "https://a:65536",
        "https://a:x",
        "https://u:p@a",
        "https://..",
        "https://.a",
        "https://a..b",
        "https://a.example:443/",
        "https://ä.example",
        "NULL",
    ] {
        assert_eq!(OriginPolicy::list([origin]), Err(HandshakeMisuse::Origin), "{origin}");
    }
}

#[test]
fn clients_without_origin_are_accepted_by_default() {
    let list = OriginPolicy::list(["https://a.example"]).expect("sound");
    for policy in [OriginPolicy::any(), OriginPolicy::same_origin(), list] {
        assert_eq!(status(&Lines::new(), &policy), 101);
        assert_eq!(status(&Lines::new(), &policy.require_origin()), 403);
    }
    assert_eq!(status(&from("https://evil.example"), &OriginPolicy::any().require_origin()), 101);
}
