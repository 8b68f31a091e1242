//! actix-web: HTTP only, written as its users write it.

use std::net::SocketAddr;

use actix_web::rt::System;
use actix_web::web::get;
use actix_web::{App, HttpServer};

use crate::{Error, HELLO, Threads, announce};

/// Serves `/hello` forever. One thread accepts, beside the serving threads.
pub(crate) fn run(address: SocketAddr, threads: Threads) -> Result<(), Error> {
    let workers = match threads {
        Threads::One => 1,
        Threads::Multi => 2,
    };
    System::new().block_on(async {
        let server = HttpServer::new(|| App::new().route("/hello", get().to(|| async { HELLO })));
        let server = server.workers(workers).bind(address)?;
        announce(server.addrs()[0])?;
        Ok(server.run().await?)
    })
}
