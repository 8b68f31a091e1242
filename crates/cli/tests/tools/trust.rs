//! Certificate verification of `sinews bench` and `sinews connect`: both trust the same certificates, and report the
//! same errors.

use std::process::Stdio;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use sinews_testkit::TestCertificate;

use crate::connect::support::{Server, tool};
use crate::directory::Directory;

/// A certificate authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Path of its own certificate.
    file: String,
}

impl Authority {
    fn new(directory: &Directory, name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let file = directory.write(&format!("{name}.pem"), &params.self_signed(&key).unwrap().pem());
        Self { issuer: Issuer::new(params, key), file }
    }

    /// Starts a server with a certificate signed by the authority and modified by `change`.
    fn serve(&self, directory: &Directory, change: impl FnOnce(&mut CertificateParams)) -> Server {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate =
            directory.write("certificate.pem", &params.signed_by(&key, &self.issuer).unwrap().pem());
        serve(&certificate, &directory.write("key.pem", &key.serialize_pem()))
    }
}

/// Starts a server with these files.
fn serve(certificate: &str, key: &str) -> Server {
    Server::start(&["--echo", "--cert", certificate, "--key", key])
}

/// The clients, each of which sends a message and expects its echo. Certificate errors are reported immediately,
/// regardless of the connect timeout.
const CLIENTS: [&[&str]; 4] = [
    &["connect"],
    &["connect", "--inspect"],
    &["bench", "-c", "2", "-n", "4", "--timeout", "10m", "--quiet"],
    &["bench", "compare", "--rounds", "3", "-c", "1", "-n", "2", "--quiet"],
];

/// Runs the client, with `system` as the system's trust store. Returns whether it succeeded, and its error output.
fn run(client: &[&str], further: &[&str], server: &Server, system: &str) -> (bool, String) {
    let url = server.url.replace("127.0.0.1", "localhost");
    let mut command = tool(client);
    command.args(further).arg(&url).env("SSL_CERT_FILE", system).env_remove("SSL_CERT_DIR");
    if client.contains(&"compare") {
        command.arg(&url);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn certificate_errors_name_the_reason_and_a_remedy() {
    let directory = Directory::new();
    let (known, other) = (Authority::new(&directory, "known"), Authority::new(&directory, "other"));
    type Change = fn(&mut CertificateParams);
    let cases: [(Change, &[&str], &str, &str); 4] = [
        (|_| (), &[], "UnknownIssuer", "; --ca FILE trusts its issuer, --insecure accepts any certificate"),
        (
            |params| *params = CertificateParams::new(["example.com".to_owned()]).unwrap(),
            &["--ca", &known.file],
            "not valid for name \"localhost\"",
            "; --insecure accepts any certificate",
        ),
        (
            |params| params.not_after = date_time_ymd(2020, 1, 1),
            &["--ca", &known.file],
            "certificate expired",
            "; --insecure accepts any certificate",
        ),
        (
            |params| params.not_before = date_time_ymd(4000, 1, 1),
            &["--ca", &known.file],
            "certificate not valid yet",
            "; --insecure accepts any certificate",
        ),
    ];
    for (change, further, message, advice) in cases {
        let server = known.serve(&directory, change);
        for client in CLIENTS {
            let (through, said) = run(client, further, &server, &other.file);
            assert!(!through, "{client:?}: {message}");
            assert!(said.contains(message) && said.contains(advice), "{client:?}, {message}: {said}");
            let (through, said) = run(client, &["--insecure"], &server, &other.file);
            assert!(through, "{client:?}: {said}");
        }
    }
}

#[test]
fn ca_files_are_trusted_in_addition_to_the_system() {
    let directory = Directory::new();
    let (system, named) = (Authority::new(&directory, "system"), Authority::new(&directory, "named"));
    for signer in [&system, &named] {
        let server = signer.serve(&directory, |_| ());
        for client in CLIENTS {
            let (through, said) = run(client, &["--ca", &named.file], &server, &system.file);
            assert!(through, "{client:?}: {said}");
        }
    }
    // A self-signed certificate is its own authority.
    let (certificate, key) = directory.write_tls(&TestCertificate::new());
    let server = serve(&certificate, &key);
    for client in CLIENTS {
        let nobody = directory.write("nobody.pem", "");
        let (through, said) = run(client, &["--ca", &certificate], &server, &nobody);
        assert!(through, "{client:?}: {said}");
        let (through, said) = run(client, &[], &server, &nobody);
        assert!(!through && said.contains("use --ca FILE or --insecure"), "{client:?}: {said}");
    }
}

#[test]
fn files_without_certificates_are_reported() {
    let directory = Directory::new();
    let server = Authority::new(&directory, "known").serve(&directory, |_| ());
    let nothing = directory.write("nothing.pem", "no certificate\n");
    for client in CLIENTS {
        let (through, said) = run(client, &["--ca", &nothing], &server, &nothing);
        assert!(!through && said.contains("nothing.pem: no certificate in PEM"), "{client:?}: {said}");
        let (through, said) = run(client, &["--ca", "/no-such-file"], &server, &nothing);
        assert!(!through && said.contains("/no-such-file"), "{client:?}: {said}");
    }
}
