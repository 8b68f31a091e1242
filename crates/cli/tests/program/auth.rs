//! Rights to publish and subscribe.

use std::process::Stdio;

use sinews_testkit::{Frame, Reply};

use crate::config::Directory;
use crate::support::{Running, Socket, fails, program};

pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";

pub(crate) fn keys(name: &str) -> String {
    format!("{}/tests/keys/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The output of `sinews token`.
pub(crate) fn token(secret_file: &str, arguments: &[&str]) -> String {
    let output = program().args(["token", "--secret-file", secret_file]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

pub(crate) fn post(server: &Running, topic: &str, token: Option<&str>) -> String {
    let token = token.map_or_else(String::new, |token| format!("\r\nAuthorization: Bearer {token}"));
    server.request(&format!("POST /topics/{topic} HTTP/1.1{token}"), "hello")
}

pub(crate) fn status(answer: &str) -> &str {
    &answer["HTTP/1.1 ".len()..][..3]
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn tokens_limit_publications_and_subscriptions() {
    let directory = Directory::new();
    let secret = directory.write("secret", &format!("{SECRET}\n"));
    let server = Running::serve(&["--auth-secret-file", &secret, "--auth-public-subscribe", "news"]);
    let reader = token(&secret, &["--subscribe", "chat.>"]);
    let writer =
        token(&secret, &["--publish", "chat.room", "--publish", "chat.hall", "--subscribe", "chat.*"]);

    // Plain requests.
    let none = post(&server, "chat.room", None);
    assert_eq!(status(&none), "401");
    assert!(none.contains("\r\nWWW-Authenticate: Bearer realm=\"sinews\"\r\n"), "{none}");
    let expected =
        "{\"error\":\"a token is needed to publish to chat.room\",\"needs\":{\"publish\":[\"chat.room\"]}}\n";
    assert_eq!(body(&none), expected);
    let other = post(&server, "chat.room", Some(&reader));
    assert_eq!(status(&other), "403");
    let expected =
        "{\"error\":\"this token may not publish to chat.room\",\"needs\":{\"publish\":[\"chat.room\"]}}\n";
    assert_eq!(body(&other), expected);
    assert_eq!(status(&post(&server, "chat.room", Some(&writer))), "200");
    assert_eq!(status(&post(&server, "chat.attic", Some(&writer))), "403");
    let forged = post(&server, "chat.room", Some(&format!("{writer}x")));
    assert_eq!(status(&forged), "401");
    assert!(forged.contains("error=\"invalid_token\"") && body(&forged).contains("signature"), "{forged}");

    // WebSockets, with each way to pass the token.
    let head = server.try_websocket("/topics/chat.room", "").map(|_| ()).unwrap_err();
    assert_eq!(status(&head), "401");
    assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
    assert!(server.try_websocket("/topics/news", "").is_ok(), "it is public");
    let bearer = format!("Authorization: Bearer {reader}\r\n");
    assert!(server.try_websocket("/topics/attic", &bearer).is_err_and(|head| status(&head) == "403"));
    let mut by_header = server.try_websocket("/topics/chat.room", &bearer).unwrap();
    let offer = format!("Sec-WebSocket-Protocol: sinews.raw, sinews.bearer.{writer}\r\n");
    let mut by_offer = server.try_websocket("/topics/chat.room", &offer).unwrap();
    assert!(by_offer.head.contains("Sec-WebSocket-Protocol: sinews.raw\r\n"), "{}", by_offer.head);
    let mut by_query = server.websocket(&format!("/topics/chat.room?token={writer}"));
    for socket in [&mut by_header, &mut by_offer, &mut by_query] {
        synced(socket);
    }
    by_offer.send(&Frame::text("from a writer"));
    for socket in [&mut by_header, &mut by_offer, &mut by_query] {
        assert_eq!(socket.next(), Some(Reply::text("from a writer")));
    }
    by_header.send(&Frame::text("from a reader"));
    assert_eq!(by_header.next().and_then(|reply| reply.close_code()), Some(4403));
    by_query.send(&Frame::ping("nothing else"));
    assert_eq!(by_query.next(), Some(Reply::Pong(b"nothing else".to_vec())));
}

fn synced(socket: &mut Socket) {
    socket.send(&Frame::ping(""));
    assert_eq!(socket.next(), Some(Reply::Pong(Vec::new())));
}

#[test]
fn connection_closes_when_its_token_expires() {
    let secret = keys("secret");
    let server = Running::serve(&["--auth-secret-file", &secret, "--auth-leeway", "0s"]);
    let long = token(&secret, &["--subscribe", "a"]);
    let mut stays = server.websocket(&format!("/topics/a?token={long}"));
    // At most two seconds, usually one: the expiry has whole seconds.
    let mut ends = loop {
        let short = token(&secret, &["--subscribe", "a", "--expires", "2s"]);
        if let Ok(socket) = server.try_websocket(&format!("/topics/a?token={short}"), "") {
            break (socket, short);
        }
    };
    assert_eq!(ends.0.next().and_then(|reply| reply.close_code()), Some(4401));
    synced(&mut stays);
    let again = server.try_websocket(&format!("/topics/a?token={}", ends.1), "").map(|_| ()).unwrap_err();
    assert!(status(&again) == "401" && body(&again).is_empty(), "{again}");
}

#[test]
fn each_algorithm_is_accepted_with_its_key_only() {
    let directory = Directory::new();
    let secret = directory.write("secret", &SECRET.repeat(2));
    // Made by another program.
    let tokens = std::fs::read_to_string(keys("tokens.txt")).unwrap();
    let mut seen = 0;
    for (flag, key, algorithms) in [
        ("--auth-secret-file", secret, &["HS256", "HS384", "HS512"][..]),
        (
            "--auth-public-key-file",
            keys("rsa.pub.pem"),
            &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
        ),
        ("--auth-public-key-file", keys("ec256.pub.pem"), &["ES256"]),
        ("--auth-public-key-file", keys("ec384.pub.pem"), &["ES384"]),
        ("--auth-public-key-file", keys("ed25519.pub.pem"), &["EdDSA"]),
        (
            "--auth-jwks-file",
            keys("jwks.json"),
            &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"],
        ),
    ] {
        let server = Running::serve(&[flag, &key]);
        for line in tokens.lines() {
            let (algorithm, token) = line.split_once(' ').unwrap();
            let answer = post(&server, "chat.room", Some(token));
            let expected = if algorithms.contains(&algorithm) { "200" } else { "401" };
            assert_eq!(status(&answer), expected, "{algorithm} by {key}: {answer}");
            seen += 1;
            // Change one byte of the signed part.
            let (head, rest) = token.split_once('.').unwrap();
            let forged = format!("{head}.{}", rest.replacen('e', "f", 1));
            assert_eq!(status(&post(&server, "chat.room", Some(&forged))), "401", "{algorithm}");
        }
    }
    assert_eq!(seen, 6 * 12);
}

#[test]
fn token_command_shows_claims_and_verdict() {
    let directory = Directory::new();
    let secret = keys("secret");
    let made = token(
        &secret,
        &["--publish", "a.*", "--subject", "me", "--audience", "us", "--issuer", "here", "--expires", "90s"],
    );
    let inspect = |arguments: &[&str], token: &str| {
        let mut child =
            program().args(["token", "inspect", "-"]).args(arguments).stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), token.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), serde_json::from_str::<serde_json::Value>(&message).unwrap_or_default())
    };
    let (good, shown) = inspect(&[], &made);
    assert!(good && shown["verdict"] == "not checked: no key was given", "{shown}");
    assert_eq!(shown["header"]["alg"], "HS256");
    let claims = &shown["claims"];
    assert_eq!((&claims["sub"], &claims["iss"]), (&"me".into(), &"here".into()));
    assert_eq!((&claims["publish"][0], &claims["aud"][0]), (&"a.*".into(), &"us".into()));
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 90);
    let us = ["--secret-file", &secret, "--audience", "us", "--issuer", "here"];
    assert!(inspect(&us, &made).0);
    let (good, shown) = inspect(&us[..2], &made);
    assert!(!good && shown["verdict"].as_str().unwrap().contains("another audience"), "{shown}");
    let them = directory.write("other", &SECRET.repeat(2));
    let (good, shown) = inspect(&["--secret-file", &them], &made);
    assert!(!good && shown["verdict"].as_str().unwrap().contains("signature"), "{shown}");
    assert!(!inspect(&[], "no.token.").0);

    // A token signed with a private key verifies with its public key.
    for (private, public) in [
        ("rsa.pem", "rsa.pub.pem"),
        ("ec256.pem", "ec256.pub.pem"),
        ("ec384.pem", "ec384.pub.pem"),
        ("ed25519.pem", "ed25519.pub.pem"),
    ] {
        let output = program()
            .args(["token", "--private-key-file", &keys(private), "--subscribe", ">"])
            .output()
            .unwrap();
        let made = String::from_utf8(output.stdout).unwrap();
        let (good, shown) = inspect(&["--public-key-file", &keys(public)], made.trim_end());
        assert!(good && shown["verdict"] == "good", "{private}: {shown}");
    }

    for (arguments, message) in [
        (&["--subscribe", "a"][..], "a key is needed: --secret-file or --private-key-file"),
        (&["--secret-file", &secret], "give --subscribe, --publish, --keys, --delete or --topics"),
        (&["--secret-file", &secret, "--subscribe", "a.>.b"], "--subscribe a.>.b: not a valid topic pattern"),
        (&["--secret-file", &secret, "--subscribe", "a", "--algorithm", "HS512"], "good for [HS256]"),
    ] {
        let error = fails(program().arg("token").args(arguments));
        assert!(error.contains(message) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn audience_issuer_and_times_are_checked() {
    let secret = keys("secret");
    let server = Running::serve(&[
        "--auth-secret-file",
        &secret,
        "--auth-audience",
        "us,you",
        "--auth-issuer",
        "here",
        "--auth-leeway",
        "0s",
    ]);
    let with = |arguments: &[&str]| {
        let token = token(&secret, &[&["--publish", "a"], arguments].concat());
        let answer = post(&server, "a", Some(&token));
        (status(&answer).to_owned(), body(&answer).to_owned())
    };
    assert_eq!(with(&["--audience", "you", "--issuer", "here"]).0, "200");
    for (arguments, problem) in [
        (&["--issuer", "here"][..], "the token has no aud"),
        (&["--audience", "us"], "the token has no iss"),
        (&["--audience", "them", "--issuer", "here"], "another audience"),
        (&["--audience", "us", "--issuer", "there"], "another issuer"),
        (&["--audience", "us", "--issuer", "here", "--expires", "0s"], "expired"),
    ] {
        let answer = with(arguments);
        assert!(answer.0 == "401" && answer.1.contains(problem), "{problem}: {answer:?}");
    }
}

#[test]
fn public_listener_without_auth_or_tls_is_warned_of() {
    let log = |arguments: &[&str]| {
        let server = Running::start(program().args(["serve", "--threads", "1"]).args(arguments));
        server.signal("TERM");
        server.wait().1
    };
    let open = log(&["--listen", "0.0.0.0:0"]);
    assert!(open.contains("auth.secret_file") && open.contains("sinews token"), "{open}");
    assert!(open.contains("does not use TLS"), "{open}");
    let secret = keys("secret");
    let with_auth = log(&["--listen", "0.0.0.0:0", "--auth-secret-file", &secret]);
    assert!(!with_auth.contains("sinews token") && with_auth.contains("does not use TLS"), "{with_auth}");
    assert!(!log(&["--listen", "127.0.0.1:0"]).contains("WARN"));
}
