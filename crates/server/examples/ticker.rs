//! Price ticker: `cargo run -p sinews-server --example ticker -- [PORT] [auto|poll|uring] [MILLISECONDS]`.
//!
//! A thread publishes prices; `python3 -m websockets ws://127.0.0.1:8080/ACME` shows one symbol. A slow client misses
//! some prices and gets the last one as soon as it reads: other clients are not delayed, and the cost is bounded.

use std::error::Error;
use std::thread;
use std::time::Duration;

use sinews_server::{
    Context, EngineConfig, Handler, HistoryPolicy, Payload, Prepared, PublishOptions, Refusal, ReplayFrom,
    Router, Server, SlowConsumer, TopicRule, WebSocketRoute,
};

const SYMBOLS: [&str; 3] = ["ACME", "INITECH", "UMBRELLA"];

/// Client of one symbol.
struct Viewer(&'static str);

impl Handler for Viewer {
    fn open(&mut self, cx: &mut Context<'_>) {
        // The last price, and then each later price.
        cx.subscribe_from(self.0, ReplayFrom::Last(1)).expect("the topics of all symbols are kept");
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    let pause = Duration::from_millis(argument(3, "100").parse()?);
    let viewers = WebSocketRoute::new(|request| {
        let symbol = SYMBOLS.into_iter().find(|symbol| request.param("symbol").as_deref() == Some(symbol));
        symbol.map(Viewer).ok_or_else(|| Refusal::new(404).expect("404 is among the statuses of a refusal"))
    });
    let prices =
        TopicRule::new(">").with_slow_consumer(SlowConsumer::Conflate).with_history(HistoryPolicy::new(1));
    let server = Server::new(Router::new().websocket("/{symbol}", viewers).metrics("/metrics"))
        .topic_rule(prices)
        .listen(format!("127.0.0.1:{}", argument(1, "8080")).parse()?)
        .engine(EngineConfig::default().with_backend(argument(2, "auto").parse()?))
        .bind()?;
    let publisher = server.publisher();
    thread::spawn(move || {
        for tick in 0_u64.. {
            for (at, symbol) in SYMBOLS.iter().enumerate() {
                // A sine wave for each symbol, instead of a market.
                let price = 100.0 + 10.0 * (tick as f64 / 50.0 + at as f64).sin();
                let text = format!(r#"{{"symbol":"{symbol}","price":{price:.2},"tick":{tick}}}"#);
                // Fails while a thread is too busy: the next price follows.
                let _ = publisher.publish(symbol, &Prepared::text(text), PublishOptions::new());
            }
            thread::sleep(pause);
        }
    });
    println!("ws://{}/ACME", server.addresses()[0]);
    server.run()?;
    Ok(())
}
