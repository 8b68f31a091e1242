//! Serves a directory and counts its requests: `cargo run -p sinews-server --example files -- [PORT]
//! [auto|poll|uring] [DIRECTORY]`.
//!
//! ```sh
//! curl -i http://127.0.0.1:8080/                      # index.html, with its validators
//! curl -r 0-99 http://127.0.0.1:8080/film.mp4         # a range
//! curl --compressed http://127.0.0.1:8080/script.js   # gzip, or script.js.br beside it
//! curl http://127.0.0.1:8080/count
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sinews_server::{Compression, Cors, EngineConfig, Files, OriginPolicy, Response, Router, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let router = Router::new()
        .before("/", move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            None
        })
        .compress("/count", Compression::default())
        .cors("/", Cors::new(OriginPolicy::any()))
        .get("/count", move |_| Response::text(format!("{}\n", asked.load(Ordering::Relaxed))))
        .files("/", Files::open(argument(3, "."))?.with_cache_control("public, max-age=60"));
    let server = Server::new(router)
        .listen(format!("127.0.0.1:{}", argument(1, "8080")).parse()?)
        .engine(EngineConfig::default().with_backend(argument(2, "auto").parse()?))
        .bind()?;
    println!("http://{}/", server.addresses()[0]);
    server.run()?;
    Ok(())
}
