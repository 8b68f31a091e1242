//! Keys of tokens at URLs: rotation, several issuers, and servers of keys that fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::auth::{SECRET, keys, post, status, token};
use crate::hooks::{AppAnswer, Application, serve};
use crate::support::{Running, program, until, unused_address};

/// A key set with the keys of these ids.
fn key_set(ids: &[&str]) -> Value {
    let set: Value = serde_json::from_str(&std::fs::read_to_string(keys("jwks.json")).unwrap()).unwrap();
    let all = set["keys"].as_array().unwrap().iter();
    let keys: Vec<&Value> = all.filter(|key| ids.contains(&key["kid"].as_str().unwrap())).collect();
    assert_eq!(keys.len(), ids.len());
    json!({ "keys": keys })
}

/// A token of a private key.
fn signed(key: &str, id: &str, more: &[&str]) -> String {
    let output = program()
        .args(["token", "--private-key-file", &keys(key), "--key-id", id, "--publish", "a"])
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn answer(server: &Running, token: &str) -> (String, String) {
    let answer = post(server, "a", Some(token));
    (status(&answer).to_owned(), answer)
}

/// The answer to a token, when the server has the keys.
fn settled(server: &Running, token: &str) -> String {
    let mut settled = String::new();
    until("the server has the keys", || {
        let (status, answer) = answer(server, token);
        settled = status;
        assert!(settled != "503" || answer.contains("\r\nRetry-After: 1\r\n"), "{answer}");
        settled != "503"
    });
    settled
}

#[test]
fn rotated_keys_are_fetched_once_however_many_tokens_need_them() {
    let (set, count) = (Arc::new(Mutex::new(key_set(&["es256"]))), Arc::new(AtomicUsize::new(0)));
    let (served, counted) = (Arc::clone(&set), Arc::clone(&count));
    let app = Application::start(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        AppAnswer::Json(served.lock().unwrap().clone())
    });
    let server = serve(&format!("[auth]\njwks_url = {:?}\n", app.url("/jwks.json?a=1")));
    let begin = Instant::now();
    let (former, next) = (signed("ec256.pem", "es256", &[]), signed("ed25519.pem", "ed", &[]));
    assert_eq!(settled(&server, &former), "200");
    assert_eq!(app.request().path, "/jwks.json?a=1");
    assert_eq!(count.load(Ordering::SeqCst), 1);
    *set.lock().unwrap() = key_set(&["ed", "rsa"]);
    assert_eq!(answer(&server, &next).0, "503", "it is looked up");
    let meanwhile = answer(&server, &former).0;
    // On a busy machine, the keys may have been fetched already.
    let is_fetched = count.load(Ordering::SeqCst) > 1;
    assert!(meanwhile == "200" || is_fetched, "{meanwhile}: the former keys are valid meanwhile");
    assert_eq!(settled(&server, &next), "200");
    assert_eq!(settled(&server, &former), "401", "the former key is withdrawn");
    for number in 0..100 {
        let (status, _) = answer(&server, &signed_id(&next, &format!("unknown{number}")));
        assert!(["401", "503"].contains(&&*status), "{status}");
    }
    let requests = count.load(Ordering::SeqCst) as u64;
    assert!(requests <= 2 + begin.elapsed().as_secs() / 5, "{requests} requests");
    assert_eq!(settled(&server, &signed_id(&next, "unknown0")), "401");
    let metrics = server.get("/metrics");
    assert!(metrics.contains("sinews_jwks_keys{issuer=\"any\"} 2\n"), "{metrics}");
    assert!(metrics.contains("sinews_jwks_fetches_total{issuer=\"any\",result=\"failed\"} 0\n"), "{metrics}");
}

#[test]
fn rotated_key_is_fetched_after_many_tokens_with_unknown_ids() {
    let set = Arc::new(Mutex::new(key_set(&["es256"])));
    let served = Arc::clone(&set);
    let app = Application::start(move |_| AppAnswer::Json(served.lock().unwrap().clone()));
    let server = serve(&format!("[auth]\njwks_url = {:?}\n", app.url("/")));
    let (former, next) = (signed("ec256.pem", "es256", &[]), signed("ed25519.pem", "ed", &[]));
    assert_eq!(settled(&server, &former), "200");
    // Nobody has to sign them. The keys are fetched for the first ones.
    let unknown: Vec<String> = (0..80).map(|number| signed_id(&next, &format!("unknown{number}"))).collect();
    for token in &unknown {
        assert_eq!(answer(&server, token).0, "503");
    }
    assert_eq!(settled(&server, &unknown[0]), "401");
    *set.lock().unwrap() = key_set(&["ed"]);
    assert_eq!(settled(&server, &next), "200", "the client tries again");
}

/// The token with another id of the key.
fn signed_id(token: &str, id: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "EdDSA", "typ": "JWT", "kid": id}).to_string());
    format!("{header}.{}", token.split_once('.').unwrap().1)
}

#[test]
fn each_issuer_has_its_own_keys() {
    let [one, two] = ["es256", "ed"].map(|id| Application::start(move |_| AppAnswer::Json(key_set(&[id]))));
    let file = format!(
        "[auth]\njwks_url = [{:?}, {:?}]\n",
        format!("https://one.example={}", one.url("/")),
        format!("two={}", two.url("/"))
    );
    let server = serve(&file);
    let ec = |issuer: &str| signed("ec256.pem", "es256", &["--issuer", issuer]);
    let ed = |issuer: &str| signed("ed25519.pem", "ed", &["--issuer", issuer]);
    assert_eq!(settled(&server, &ec("https://one.example")), "200");
    assert_eq!(settled(&server, &ed("two")), "200");
    assert_eq!(settled(&server, &ec("two")), "401", "it is the key of another issuer");
    let (status, reason) = answer(&server, &ec("three"));
    assert!(status == "401" && reason.contains("another issuer"), "{reason}");
    let (status, reason) = answer(&server, &signed("ec256.pem", "es256", &[]));
    assert!(status == "401" && reason.contains("has no iss"), "{reason}");
    // A reload keeps the keys.
    one.requests.try_iter().for_each(drop);
    server.directory.write("sinews.toml", &format!("{file}leeway = \"1s\"\npublic_publish = \"b\"\n"));
    server.signal("HUP");
    until("the reload", || post(&server, "b", None).starts_with("HTTP/1.1 200 "));
    assert_eq!(answer(&server, &ec("https://one.example")).0, "200");
    assert!(one.requests.try_recv().is_err());
}

#[test]
fn server_starts_without_the_keys_and_fetches_them_later() {
    let address = unused_address();
    let server = serve(&format!("[auth]\njwks_url = \"http://{address}/\"\n"));
    let good = signed("ec256.pem", "es256", &[]);
    assert_eq!(status(&post(&server, "a", None)), "401");
    loop {
        let (status, reason) = answer(&server, &good);
        assert_eq!(status, "503", "{reason}");
        if reason.contains("connect to 127.0.0.1") {
            break;
        }
    }
    let count = AtomicUsize::new(0);
    let _app = Application::at(address, move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => AppAnswer::Status(500),
        1 => AppAnswer::Half,
        _ => AppAnswer::Json(key_set(&["es256"])),
    });
    assert_eq!(settled(&server, &good), "200");
    assert!(server.get("/metrics").contains("sinews_jwks_keys{issuer=\"any\"} 1\n"));
}

#[test]
fn secrets_in_a_public_key_set_are_ignored() {
    let app = Application::start(|_| {
        let mut set = key_set(&["es256"]);
        let secret = json!({"kty": "oct", "kid": "secret", "k": URL_SAFE_NO_PAD.encode(SECRET)});
        set["keys"].as_array_mut().unwrap().push(secret);
        AppAnswer::Json(set)
    });
    let server = serve(&format!("[auth]\njwks_url = {:?}\n", app.url("/")));
    assert_eq!(settled(&server, &signed("ec256.pem", "es256", &[])), "200");
    let secret = keys("secret");
    let forged = token(&secret, &["--publish", "a"]);
    assert_eq!(answer(&server, &forged).0, "401");
    assert_eq!(settled(&server, &token(&secret, &["--publish", "a", "--key-id", "secret"])), "401");
}
