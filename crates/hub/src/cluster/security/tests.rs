use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use sinews_testkit::tls::TestCertificate;

use super::super::nkey::tests::{SEED, credentials};
use super::super::observe::observe_nodes;
use super::super::options::ClusterOptions;

/// A Redis server with TLS that accepts the login of one client with the other certificate. Returns its port.
fn serve_tls(own: &TestCertificate, client: &TestCertificate) -> (u16, JoinHandle<()>) {
    let mut roots = RootCertStore::empty();
    roots.add(client.der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_client_cert_verifier(verifier.build().unwrap());
    let config = Arc::new(config.with_single_cert(vec![own.der()], own.key()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
        let mut chunk = [0; 4096];
        // A client without the certificate fails here.
        if stream.read(&mut chunk).is_ok_and(|count| count > 0) && stream.write_all(b"%0\r\n").is_ok() {
            while stream.read(&mut chunk).is_ok_and(|count| count > 0) {}
        }
    });
    (port, serving)
}

#[test]
fn tls_has_the_authorities_and_the_certificate_of_the_url() {
    let (server, client) =
        (TestCertificate::for_names(&["localhost"]), TestCertificate::for_names(&["node"]));
    let files = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (ca, other) = (write("ca", server.pem()), write("other", client.pem()));
    let (cert, key) = (write("cert", client.pem()), write("key", client.key_pem()));
    let log_in = |settings: &str| {
        let (port, serving) = serve_tls(&server, &client);
        let options = ClusterOptions::parse(&format!("rediss://localhost:{port}?{settings}")).unwrap();
        let observed = observe_nodes(&options, Duration::from_secs(60));
        serving.join().unwrap();
        observed.map(|nodes| assert!(nodes.is_empty())).map_err(|error| error.to_string())
    };
    assert_eq!(log_in(&format!("tls.ca={ca}&tls.cert={cert}&tls.key={key}")), Ok(()));
    let error = log_in(&format!("tls.ca={ca}")).unwrap_err();
    assert!(error.to_lowercase().contains("certificate"), "{error}");
    let error = log_in(&format!("tls.ca={other}&tls.cert={cert}&tls.key={key}")).unwrap_err();
    assert!(error.contains("invalid peer certificate"), "{error}");
}

#[test]
fn unusable_file_is_named_with_its_setting_and_without_its_content() {
    let certificate = TestCertificate::new();
    let files = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (cert, key) = (write("cert", &certificate.pem()), write("key", &certificate.key_pem()));
    let broken =
        write("broken", "SUSECRET\n-----BEGIN PRIVATE KEY-----\nSECRET!\n-----END PRIVATE KEY-----\n");
    let other = write("other", &TestCertificate::new().key_pem());
    let (seed, jwt) = (write("seed", SEED), write("jwt", &credentials("eyJ.SECRET.x")));
    let large = write("large", &"x".repeat(1 << 21));
    for (query, setting, reason) in [
        (format!("tls.ca={broken}"), "tls.ca", "not base64"),
        (format!("tls.ca={large}"), "tls.ca", "exceed the limit"),
        (format!("tls.cert={broken}&tls.key={key}"), "tls.cert", ""),
        (format!("tls.cert={cert}&tls.key={broken}"), "tls.key", ""),
        (format!("tls.cert={cert}&tls.key={other}"), "tls.cert", ""),
        (format!("credentials={broken}"), "credentials", "mistyped"),
        (format!("credentials={seed}"), "credentials", "no JWT"),
        (format!("nkey={jwt}"), "nkey", "use `credentials`"),
        (format!("nkey={cert}"), "nkey", "no seed"),
    ] {
        let error = ClusterOptions::parse(&format!("nats+tls://h?{query}")).unwrap_err().to_string();
        let is_named = error.contains(&format!("{setting}: {}", files.path().display()));
        assert!(is_named && error.contains(reason), "{query}: {error}");
        assert!(!error.contains("SECRET") && !error.contains("SUACS"), "{error}");
    }
    for query in [format!("credentials={jwt}"), format!("nkey={seed}")] {
        let options = ClusterOptions::parse(&format!("nats://h?{query}")).unwrap();
        assert_eq!(
            (options.to_string(), format!("{options:?}")),
            ("nats://h:4222".to_owned(), "ClusterOptions(\"nats://h:4222\")".to_owned())
        );
    }
}
