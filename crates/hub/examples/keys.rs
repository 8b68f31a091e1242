//! A page of 1,000 prices, of which 60 change in a second: keys of a topic.
//!
//! ```sh
//! cargo run --package sinews-hub --example keys      # `-- 127.0.0.1:0`: at a free port
//! curl http://127.0.0.1:8080/topics/prices/keys?filter=10.*     # some of the prices
//! ```
//!
//! The page is at <http://127.0.0.1:8080/prices>. Limit its bandwidth with the network settings of the browser's
//! developer tools, and compare the age of what it shows.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sinews_hub::{Hub, key_value_of_json};
use sinews_server::{BoundServer, KeyError, KeyWrite, Publisher, Response, Router, Server};

/// Number of prices, and of changes a second.
const PRICES: usize = 1_000;
const CHANGES: u32 = 60;

/// Serves until the server is stopped. Calls `ready` when the addresses are bound.
pub(crate) fn serve(address: SocketAddr, ready: impl FnOnce(&BoundServer)) -> Result<(), Box<dyn Error>> {
    let hub = Hub::builder().build()?;
    let router = Router::new().get("/prices", |_| Response::html(include_str!("keys.html")));
    let server = hub.configure(Server::new(hub.mount(router)));
    let server = server.listen(address).bind()?;
    let (publisher, ends) = (server.publisher(), Arc::new(AtomicBool::new(false)));
    let hub = hub.start(&server)?;
    let ending = Arc::clone(&ends);
    let market = thread::spawn(move || run_market(&publisher, &ending));
    ready(&server);
    server.run()?;
    ends.store(true, Ordering::Relaxed);
    hub.shut_down();
    Ok(market.join().map_err(|_| "the market has panicked")??)
}

/// Changes one price after the other.
fn run_market(publisher: &Publisher, ends: &AtomicBool) -> Result<(), KeyError> {
    (0..PRICES).try_for_each(|number| set_price(publisher, number, 100.0))?;
    // A linear congruential generator: the numbers of Knuth's MMIX.
    let mut random = 1_u64;
    while !ends.load(Ordering::Relaxed) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (number, change) = ((random >> 33) as usize % PRICES, (random >> 48) as f64 / 65_536.0);
        set_price(publisher, number, 90.0 + 20.0 * change)?;
        thread::sleep(Duration::from_secs(1) / CHANGES);
    }
    Ok(())
}

/// Sets a price, with the time in milliseconds since 1970.
fn set_price(publisher: &Publisher, number: usize, price: f64) -> Result<(), KeyError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let value = key_value_of_json(&format!("{{\"price\":{price:.2},\"at\":{now}}}")).unwrap_or_default();
    let key = format!("{}.{}", number / 100, number % 100);
    publisher.write_key("prices", &KeyWrite::set(key, value)).map(|_| ())
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let address: SocketAddr = address.parse().map_err(|error| format!("address {address}: {error}"))?;
    serve(address, |server| {
        for address in server.addresses() {
            println!("http://{address}/prices");
        }
    })
}
