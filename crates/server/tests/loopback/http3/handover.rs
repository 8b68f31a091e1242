//! Hot restart: connections of the predecessor end in peace while the successor accepts others on the same port.

use super::*;

/// A successor of a server, with another certificate and its own `/later`.
fn successor(of: &Running, threads: usize, knows_datagrams: bool) -> Http3Server {
    let (tls, roots) = tls();
    let wakers = Arc::<Mutex<Vec<Waker>>>::default();
    let server = Server::new(routes(Router::new(), &wakers)).threads(threads).engine(backend::engine());
    let mut listeners = Listeners::default();
    for (address, socket) in of.stop.listeners().unwrap().iter() {
        // A program without this way of datagrams takes the other sockets.
        if knows_datagrams || *address != ListenAddress::Datagrams {
            listeners.push(address.clone(), socket.try_clone_to_owned().unwrap()).unwrap();
        }
    }
    let server = server.http(patient().with_http3(true)).inherit(listeners);
    let bound = server.listen_on(Listen::tcp(of.address).with_tls(tls)).bind().unwrap();
    let monitor = bound.monitor();
    Http3Server { running: Running::bound(bound), monitor, roots, wakers }
}

/// A client with an open request to `/later`.
fn waiting(server: &Http3Server) -> (Http3Client, u64) {
    let before = server.wakers.lock().unwrap().len();
    let mut client = server.connect();
    let later = client.ask("GET", "/later", b"");
    client.run("a request to /later", |_| server.wakers.lock().unwrap().len() > before);
    (client, later)
}

/// Lets all clients receive their answers in turn: a server that stops gives up a client that acknowledges nothing for a second.
fn receive_answers(clients: &mut [(Http3Client, u64)]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_complete = |(client, later): &(Http3Client, u64)| {
        client.quic.responses.get(later).is_some_and(|(.., is_complete)| *is_complete)
    };
    while !clients.iter().all(is_complete) {
        assert!(Instant::now() < deadline, "not every client has its answer");
        for (client, _) in &mut *clients {
            client.flush();
            client.receive_within(Duration::from_millis(1));
        }
    }
    for (client, later) in clients {
        assert_eq!(client.answer(*later), (200, b"late".to_vec()));
        client.ends("server stops");
    }
}

/// Changes the address of a client, and tells the server: the datagrams reach any socket of all processes.
fn change_address(client: &mut Http3Client) {
    client.migrate();
    client.quic.quic.ping();
    client.flush();
}

#[test]
fn open_requests_are_finished_by_the_predecessor_while_the_successor_serves_new_clients() {
    let server = Http3Server::new(patient(), 2);
    // The kernel spreads them over the sockets of both processes.
    let mut clients: Vec<(Http3Client, u64)> = (0..16).map(|_| waiting(&server)).collect();
    let mut idle = server.connect();
    let successor = successor(&server.running, 3, true);
    server.running.stop.hand_over();
    idle.ends("server stops");
    // A client that cannot verify the certificate of the predecessor is one of the successor.
    for _ in 0..16 {
        let mut new = successor.connect();
        assert_eq!(new.get("/fixed").0, 200);
    }
    assert_eq!(successor.connect().ask_and_count("/large"), LARGE);
    for (client, _) in &mut clients {
        client.run("GOAWAY", |quic| quic.go_away.is_some());
        change_address(client);
        assert!(client.quic.lost.is_none(), "{:?}", client.quic.lost);
    }
    server.wake();
    receive_answers(&mut clients);
    let forwarded = server.monitor.metrics().http3_datagrams_forwarded
        + successor.monitor.metrics().http3_datagrams_forwarded;
    assert!(forwarded > 0, "datagrams of the other process");
    server.running.join();
    assert_eq!(successor.connect().get("/fixed").0, 200);
}

/// A client of one UDP socket opens its next connection from the address of the one before.
#[test]
fn client_reconnects_to_the_successor_from_the_address_of_its_open_request() {
    let server = Http3Server::new(patient(), 2);
    let (mut client, later) = waiting(&server);
    let successor = successor(&server.running, 2, true);
    server.running.stop.hand_over();
    client.run("GOAWAY", |quic| quic.go_away.is_some());
    for _ in 0..4 {
        let socket = client.socket.try_clone().unwrap();
        let address = successor.running.address;
        let mut next = Http3Client::start(address, successor.roots.clone());
        next.socket = socket;
        next.run("handshake", |quic| quic.http.peer_settings().is_some());
        assert_eq!(next.get("/fixed").0, 200);
    }
    server.wake();
    assert_eq!(client.answer(later), (200, b"late".to_vec()));
    client.run("the end of the connection", |quic| quic.lost.is_some());
    server.running.join();
}

/// The connections of three processes at a time.
#[test]
fn open_requests_outlive_two_handovers() {
    let server = Http3Server::new(patient(), 2);
    let (mut first, first_later) = waiting(&server);
    let second = successor(&server.running, 2, true);
    server.running.stop.hand_over();
    first.run("GOAWAY", |quic| quic.go_away.is_some());
    let mut middle = second.connect();
    let middle_later = middle.ask("GET", "/later", b"");
    middle.run("a request to /later", |_| !second.wakers.lock().unwrap().is_empty());
    let third = successor(&second.running, 2, true);
    second.running.stop.hand_over();
    middle.run("GOAWAY", |quic| quic.go_away.is_some());
    for _ in 0..4 {
        assert_eq!(third.connect().get("/fixed").0, 200);
        change_address(&mut first);
        change_address(&mut middle);
        first.run_until_quiet();
        middle.run_until_quiet();
    }
    server.wake();
    assert_eq!(first.answer(first_later), (200, b"late".to_vec()));
    second.wake();
    assert_eq!(middle.answer(middle_later), (200, b"late".to_vec()));
    for mut client in [first, middle] {
        client.run("the end of the connection", |quic| quic.lost.is_some());
    }
    server.running.join();
    second.running.join();
    assert_eq!(third.connect().get("/fixed").0, 200);
}

/// The datagrams between the first and the third process take the way through the second.
#[test]
fn process_without_connections_passes_on_datagrams_until_its_predecessor_ends() {
    let server = Http3Server::new(patient(), 2);
    let mut clients: Vec<(Http3Client, u64)> = (0..16).map(|_| waiting(&server)).collect();
    let second = successor(&server.running, 2, true);
    server.running.stop.hand_over();
    for (client, _) in &mut clients {
        client.run("GOAWAY", |quic| quic.go_away.is_some());
    }
    let third = successor(&second.running, 2, true);
    second.running.stop.hand_over();
    for (client, _) in &mut clients {
        assert_eq!(third.connect().get("/fixed").0, 200);
        change_address(client);
    }
    server.wake();
    receive_answers(&mut clients);
    server.running.join();
    second.running.join();
    assert_eq!(third.connect().get("/fixed").0, 200);
}

#[test]
fn handover_to_a_program_without_datagrams_closes_connections_and_leaves_the_port() {
    let server = Http3Server::new(patient(), 2);
    let (mut client, later) = waiting(&server);
    let successor = successor(&server.running, 2, false);
    server.running.stop.hand_over();
    client.ends("server restarts");
    assert!(!client.quic.responses.contains_key(&later));
    assert_eq!(successor.running.address, server.running.address);
    server.running.join();
    assert_eq!(successor.connect().get("/fixed").0, 200);
}

/// A successor that runs passes on datagrams before the handover, too.
#[test]
fn predecessor_keeps_its_connections_until_the_handover() {
    let server = Http3Server::new(patient(), 2);
    let mut clients: Vec<Http3Client> = (0..8).map(|_| server.connect()).collect();
    let successor = successor(&server.running, 2, true);
    for client in &mut clients {
        assert_eq!(client.get("/fixed").0, 200);
        change_address(client);
        assert_eq!(client.get("/fixed").0, 200);
    }
    assert_eq!(clients[0].ask_and_count("/large"), LARGE);
    server.running.stop.hand_over();
    for mut client in clients {
        client.run("the end of the connection", |quic| quic.lost.is_some());
    }
    server.running.join();
    for _ in 0..4 {
        assert_eq!(successor.connect().get("/fixed").0, 200);
    }
}
