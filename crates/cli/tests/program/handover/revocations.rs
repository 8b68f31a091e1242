//! Revocations during a handover.

use super::*;
use crate::auth::{SECRET, token};

const KEY: &str = "0123456789abcdef0123456789abcdef-admin";

/// Revokes a token by its id at the process that accepts the connection; whether the request was answered.
fn revoke(address: SocketAddr, id: &str) -> bool {
    let body = json!({ "token": id }).to_string();
    let head = format!("POST /api/v1/revoke HTTP/1.1\r\nAuthorization: Bearer {KEY}");
    request(address, &head, &body).starts_with("HTTP/1.1 200 ")
}

fn is_rejected(address: SocketAddr, token: &str) -> bool {
    let lines = format!("Authorization: Bearer {token}\r\nAccept: application/json");
    let answer = request(address, &format!("GET /topics/a?wait=0 HTTP/1.1\r\n{lines}"), "");
    answer.starts_with("HTTP/1.1 401 ")
}

fn check(name: &str, more: &str) {
    let files = crate::config::Directory::new();
    let secret = files.write("secret", SECRET);
    let more = more.replace("{directory}", &files.path("streams"));
    let mut service =
        Service::start(name, &format!("{more}\n[auth]\nsecret_file = {secret:?}\n[api]\nkey = {KEY:?}"));
    let address = service.address;
    let of = |id: &str| token(&secret, &["--subject", "anna", "--id", id, "--subscribe", ">"]);
    let tokens = ["0", "1", "2"].map(of);
    assert!(revoke(address, "0"));
    assert!(is_rejected(address, &tokens[0]) && !is_rejected(address, &tokens[1]));
    service.restart();
    service.old_one_ends();
    assert!(is_rejected(address, &tokens[0]) && !is_rejected(address, &tokens[1]));
    assert!(revoke(address, "1"));
    service.restart();
    service.old_one_ends();
    assert!(is_rejected(address, &tokens[0]) && is_rejected(address, &tokens[1]));
    assert!(!is_rejected(address, &tokens[2]));
}

#[test]
fn successor_rejects_revoked_tokens() {
    check("revocations", "");
}

#[test]
fn successor_rejects_revoked_tokens_of_a_file() {
    check("revocations-file", "[streams]\ndirectory = \"{directory}\"");
}
