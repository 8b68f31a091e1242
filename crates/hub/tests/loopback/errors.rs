//! Errors of the public functions: their kind, their place and their source, and no secret.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use sinews_hub::auth::{
    ApiKeys, Auth, AuthError, AuthOptions, JwksOptions, TokenKeys, hmac_algorithms, read_secret,
};
use sinews_hub::{
    BuildError, ClusterOptions, HookOptions, HookTarget, HostRules, Hub, HubError, HubErrorKind, Namespace,
    Namespaces, PusherApp, PusherApps, PusherWebhook, StreamOptions, WebhookOptions, check_pattern,
};

/// A secret of each kind: too short for a key, and part of a URL.
const SECRET: &str = "s3cret";

const EMPTY_PART: &str =
    "a topic name has 1 to 256 bytes, no control characters, and no empty part between its dots";

/// Checks that neither the text, nor that of the sources, nor `Debug` has the secret.
fn check_no_secret(error: &(dyn Error + 'static)) {
    let mut next = Some(error);
    while let Some(error) = next {
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
        next = error.source();
    }
}

fn check<T>(result: Result<T, HubError>, kind: HubErrorKind, place: Option<&str>, text: &str) {
    let error = result.err().unwrap_or_else(|| panic!("no error: {text}"));
    let whole = place.map_or_else(|| text.to_owned(), |place| format!("{place}: {text}"));
    assert_eq!((error.kind(), error.place(), error.to_string()), (kind, place, whole));
    check_no_secret(&error);
}

#[test]
fn errors_of_topics_and_apps_name_their_place_and_no_secret() {
    use HubErrorKind::{Pattern, Setting, Url};
    check(check_pattern("a."), Pattern, None, EMPTY_PART);
    let hook = Namespace::new("a").with_publish_hook(HookTarget::Url(format!("http://u:{SECRET}@h/")));
    let fault = "the URL of a hook must have no user and password: sign the requests instead";
    check(Namespaces::new([hook]), Url, Some("namespace \"a\""), fault);
    let twice = ["a", "a"].map(Namespace::new);
    check(Namespaces::new(twice), Setting, Some("namespace \"a\""), "the pattern is given twice");
    let app = || PusherApp::new("1", "key", SECRET);
    let place = Some("app \"1\": webhook");
    let bad = app().with_webhook(PusherWebhook::new(format!("http://h/#{SECRET}")));
    check(PusherApps::new([bad]), Url, place, "url must have no fragment (#)");
    let bad = app().with_webhook(PusherWebhook::new("http://h/").with_header("a", format!("{SECRET}\n")));
    check(PusherApps::new([bad]), Setting, place, "value of header a has control characters");
    let same = [app(), PusherApp::new("2", "key", SECRET)];
    check(PusherApps::new(same), Setting, Some("app \"2\""), "key \"key\" is the key of another app");
    let names = ["any".to_owned(), "a".to_owned()];
    let fault = "any stands alone: the other names would have no effect";
    check(HostRules::new(Some(&names), std::iter::empty(), &[]), Setting, None, fault);
}

#[test]
fn errors_of_hooks_and_clusters_name_their_place_and_no_secret() {
    use HubErrorKind::{Certificates, Key, Pattern, Setting, Url};
    let hooks = HookOptions::new;
    check(hooks().with_headers(["Host"]), Setting, None, "Host is a header of the request itself");
    let pem = SECRET.as_bytes();
    check(hooks().with_trusted_certificates(pem), Certificates, None, "no certificate in PEM");
    let fault = "the signing key of 6 bytes is too short (at least 32)";
    check(hooks().with_signing_key(SECRET).check(), Key, None, fault);
    let fault = "timeout must be longer than zero and at most 30 s";
    check(hooks().with_timeout(Duration::ZERO).check(), Setting, None, fault);
    let webhook = |secret: &str| WebhookOptions::new("w", "http://app/", secret);
    let fault = "the secret of 6 bytes is too short (at least 32)";
    check(webhook(SECRET).check(), Key, None, fault);
    let topics = webhook(&SECRET.repeat(6)).with_topics(["a."]);
    check(topics.check(), Pattern, Some("topics: \"a.\""), EMPTY_PART);
    let jwks = JwksOptions::new().with_url(format!("ftp://{SECRET}"));
    check(jwks.check(), Url, None, "the URL of a key set must begin with http:// or https://");
    let url = format!("nats://a:{SECRET}@h/x");
    check(ClusterOptions::parse(&url), Url, None, "the URL has no host, or has a path");
    let fault = "the name of a node must have 1 to 64 bytes and no control characters";
    check(ClusterOptions::parse("nats://h").unwrap().with_name(""), Setting, None, fault);
}

#[test]
fn errors_of_keys_and_tokens_have_no_secret() {
    use HubErrorKind::{Key, Token};
    let fault = "the key has 6 bytes; 32 are required (create one with `openssl rand -hex 32`)";
    check(ApiKeys::new().with_key(SECRET), Key, None, fault);
    let fault = "the secret has 6 bytes; HS256 requires 32 (create one with `openssl rand -hex 32`)";
    check(hmac_algorithms(SECRET.as_bytes()), Key, None, fault);
    let auth = Auth::new(&AuthOptions::new()).unwrap();
    check(auth.verify(SECRET), Token, None, "the token is not a JWT");
}

#[test]
fn errors_keep_their_source() {
    let missing = Path::new("/nonexistent/keys");
    let kind = |error: &dyn Error| {
        error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind)
    };
    for error in [read_secret(missing).unwrap_err(), ApiKeys::new().with_file(missing).err().unwrap()] {
        assert_eq!((error.kind(), error.place()), (HubErrorKind::File, Some("/nonexistent/keys")));
        assert_eq!(kind(&error), Some(io::ErrorKind::NotFound));
    }
    let options = AuthOptions::new().with_keys(TokenKeys::SecretFile(missing.to_owned()));
    let error = Auth::new(&options).err().unwrap();
    assert!(matches!(&error, AuthError::Keys(fault) if fault.kind() == HubErrorKind::File), "{error}");
    assert_eq!(kind(&error), Some(io::ErrorKind::NotFound));
    let error =
        Hub::builder().streams(StreamOptions::in_directory("/dev/null/streams")).build().err().unwrap();
    assert!(matches!(&error, BuildError::StreamDirectory(fault) if fault.kind() == HubErrorKind::File));
    assert!(error.source().is_some(), "{error:?}");
    let error = HookOptions::new().with_connect(format!("http://a b/{SECRET}")).check().unwrap_err();
    assert!(error.kind() == HubErrorKind::Url && error.source().is_some(), "{error:?}");
    check_no_secret(&error);
}

#[test]
fn line_of_a_file_is_the_place() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("# keys\nname {SECRET} admin\n")).unwrap();
    let error = ApiKeys::new().with_file(file.path()).err().unwrap();
    assert_eq!(error.place(), Some(&*format!("{}:2", file.path().display())));
    assert_eq!(error.kind(), HubErrorKind::Key);
    check_no_secret(&error);
}
