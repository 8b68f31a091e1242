//! Memory of an idle connection with TLS, without the thread of the clients, whose TLS costs more.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use sinews_server::{Certificates, Router, Server, TlsConfig, WebSocketRoute};
use sinews_testkit::{TestCertificate, exclude_this_thread, idle_live_bytes, measure_alone};

use crate::{Echo, HANDSHAKE, Serving, backend};

type Client = StreamOwned<ClientConnection, TcpStream>;

/// Opens a WebSocket that has echoed a message of 10,000 bytes, over several segments.
fn open(address: SocketAddr, config: &Arc<ClientConfig>) -> Client {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    // A small record waits for no delayed ACK of an earlier one: 40 ms.
    stream.set_nodelay(true).unwrap();
    let mut client = StreamOwned::new(connection, stream);
    client.write_all(HANDSHAKE).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let mut message = vec![0x82, 0x80 | 126, 0x27, 0x10, 0, 0, 0, 0];
    message.resize(8 + 10_000, 7);
    client.write_all(&message).unwrap();
    client.read_exact(&mut [0; 4 + 10_000]).unwrap();
    client
}

#[test]
fn idle_connection_keeps_its_cipher_state_and_no_buffer() {
    let _alone = measure_alone();
    let made = TestCertificate::new();
    let (chain, key) = (made.pem(), made.key_pem());
    let certificates = Certificates::new().with_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let router = Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Echo)));
    let server = Server::new(router).engine(backend::engine()).threads(1);
    let tls = TlsConfig::new(certificates).unwrap();
    let server = server.listen_tls(([127, 0, 0, 1], 0).into(), tls).bind().unwrap();
    let serving = Serving::new(server);
    let address = serving.address;

    exclude_this_thread();
    for version in rustls::ALL_VERSIONS {
        let roots = made.roots();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let config = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
        // Tables double, so the count goes from one power of two to another.
        let mut clients: Vec<Client> = (0..FEW).map(|_| open(address, &config)).collect();
        let few = idle_live_bytes();
        clients.extend((FEW..MANY).map(|_| open(address, &config)));
        let each = (idle_live_bytes() - few) / (MANY - FEW) as isize;
        println!("{each} bytes for an idle WebSocket on {version:?}");
        assert!(each <= MOST, "{each} bytes for a connection");
        assert!(each >= 512, "{each} bytes: too few, the measurement is broken");
    }
}

const FEW: usize = 64;
const MANY: usize = 256;

/// In bytes.
const MOST: isize = 4096;
