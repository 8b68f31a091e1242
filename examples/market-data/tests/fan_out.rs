//! Clients of one market: each receives its subscription, and a slow client the newest prices.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use compio::net::TcpSocket;
use compio::runtime::Runtime;
use market_data::{Market, Quote, Server, Subscribe, Update};
use sinews::compio::{Transport, WebSocket};
use sinews::{Cause, CloseCode};

/// Runs on compio with a server of two threads; prints a notice where io_uring is unavailable.
fn with_server<F: Future<Output = ()>>(symbols: &[String], test: impl FnOnce(Arc<Market>, SocketAddr) -> F) {
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return println!("skipped: no runtime: {error}"),
    };
    let market = Arc::new(Market::new(symbols, 7));
    let two = NonZero::new(2).expect("two");
    let server = Server::start(([127, 0, 0, 1], 0).into(), two, &market).expect("a server");
    runtime.block_on(async {
        let test = test(market, server.address());
        compio::time::timeout(Duration::from_secs(60), test).await.expect("bounded in time");
    });
    drop(runtime);
    server.stop().expect("in order");
}

/// The symbols S0, S1 and so on.
fn symbols(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("S{n}")).collect()
}

struct Client<S: Transport>(WebSocket<S>);

impl<S: Transport> Client<S> {
    async fn subscribe(&mut self, symbols: &[&str]) -> Update {
        let subscribe = symbols.iter().map(|&symbol| symbol.to_owned()).collect();
        let request = serde_json::to_string(&Subscribe { subscribe }).expect("JSON");
        self.0.send(request).await.expect("sent");
        self.update().await
    }

    async fn update(&mut self) -> Update {
        let message = self.0.next().await.expect("an update").expect("in order");
        serde_json::from_slice(message.as_bytes()).unwrap_or_else(|error| panic!("{error}: {message:?}"))
    }
}

async fn connect(address: SocketAddr) -> Client<sinews::compio::Stream> {
    Client(sinews::compio::connect(format!("ws://{address}/")).await.expect("connected"))
}

#[test]
fn each_client_gets_a_snapshot_and_then_its_subscription() {
    with_server(&symbols(3), |market, address| async move {
        let (mut one, mut two) = (connect(address).await, connect(address).await);
        for _ in 0..10 {
            market.tick();
        }
        let now = |symbol| market.quote(symbol).expect("listed");
        assert_eq!(one.subscribe(&["S0", "S1"]).await.quotes, [now("S0"), now("S1")]);
        let snapshot = two.subscribe(&["S2", "NONE"]).await;
        assert_eq!(
            (&snapshot.quotes[..], &snapshot.unknown[..]),
            (&[now("S2")][..], &["NONE".to_owned()][..])
        );

        for _ in 0..200 {
            let before = now("S2");
            market.tick();
            if now("S2") != before {
                let update = two.update().await;
                assert_eq!(update.quotes, [now("S2")]);
            }
        }
        let mut last = BTreeMap::new();
        while last.get("S0") != Some(&now("S0")) || last.get("S1") != Some(&now("S1")) {
            for quote in one.update().await.quotes {
                assert_ne!(quote.symbol, "S2");
                let earlier = last.insert(quote.symbol.clone(), quote);
                let later = earlier.as_ref().and_then(|earlier| last.get(&earlier.symbol));
                assert!(
                    earlier.as_ref().zip(later).is_none_or(|(earlier, later)| earlier.round < later.round)
                );
            }
        }
        // A new subscription replaces the old subscription.
        assert_eq!(one.subscribe(&["S2"]).await.quotes, [now("S2")]);
    });
}

#[test]
fn a_slow_client_gets_the_newest_price_and_delays_no_other_client() {
    const ROUNDS: usize = 5_000;
    let all = symbols(20);
    with_server(&all.clone(), |market, address| async move {
        let socket = TcpSocket::new_v4().await.expect("a socket");
        socket.set_recv_buffer_size(128 << 10).expect("a smaller buffer");
        let stream = socket.connect(address).await.expect("connected");
        let url = format!("ws://{address}/");
        let mut slow = Client(sinews::compio::connect(url).over(stream).await.expect("a WebSocket"));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        slow.subscribe(&all).await;
        let mut fast = connect(address).await;
        fast.subscribe(&["S0"]).await;

        // Each price of one symbol is awaited before the next change, while the slow client reads nothing: 5
        // MB for it.
        let mut changes = 0;
        for _ in 0..ROUNDS {
            let before = market.quote("S0");
            market.tick();
            let now = market.quote("S0");
            if now != before {
                changes += 1;
                assert_eq!(fast.update().await.quotes, [now.expect("listed")]);
            }
        }

        let mut last: BTreeMap<String, Quote> = BTreeMap::new();
        let newest: Vec<Quote> = all.iter().filter_map(|symbol| market.quote(symbol)).collect();
        let mut seen = 0;
        while newest.iter().any(|quote| last.get(&quote.symbol) != Some(quote)) {
            for quote in slow.update().await.quotes {
                seen += usize::from(quote.symbol == "S0");
                last.insert(quote.symbol.clone(), quote);
            }
        }
        assert!(changes > ROUNDS / 3, "{changes}");
        assert!(seen < changes / 2, "{seen} of {changes} prices reached a client that was not reading");
    });
}

#[test]
fn invalid_messages_are_rejected_and_shutdown_closes_connections() {
    with_server(&symbols(1), |_, address| async move {
        let mut client = connect(address).await;
        client.0.send("Hello").await.expect("sent");
        while client.0.next().await.transpose().expect("in order").is_some() {}
        assert_eq!(client.0.closed().and_then(|closed| closed.code()), Some(CloseCode::UNSUPPORTED));

        let mut client = connect(address).await;
        let many = symbols(101);
        let request = serde_json::to_string(&Subscribe { subscribe: many }).expect("JSON");
        client.0.send(request).await.expect("sent");
        while client.0.next().await.transpose().expect("in order").is_some() {}
        assert_eq!(client.0.closed().and_then(|closed| closed.code()), Some(CloseCode::POLICY));
    });

    if Runtime::new().is_err() {
        return;
    }
    let market = Arc::new(Market::new(["S0"], 7));
    let server = Server::start(([127, 0, 0, 1], 0).into(), NonZero::<usize>::MIN, &market).expect("a server");
    let address = server.address();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let client = std::thread::spawn(move || {
        Runtime::new().expect("a runtime").block_on(async {
            let mut client = connect(address).await;
            client.subscribe(&["S0"]).await;
            ready.send(()).expect("the receiver is alive");
            while client.0.next().await.transpose().expect("in order").is_some() {}
            client.0.closed().cloned()
        })
    });
    is_ready.recv().expect("a client");
    server.stop().expect("in order");
    let closed = client.join().expect("no panic").expect("over");
    assert_eq!((closed.code(), closed.cause()), (Some(CloseCode::GOING_AWAY), Cause::Peer));
}
