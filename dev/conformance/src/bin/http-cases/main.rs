//! Runs the HTTP cases against a server: `http-cases ADDRESS all|heads`. `heads` selects the cases that apply
//! to any server, independent of its routes. Prints `ok NAME` or `FAIL NAME: why` for each case.
#![forbid(unsafe_code)]

mod exchange;

use std::env;
use std::error::Error;
use std::process::ExitCode;

use sinews_conformance::http::cases;

use crate::exchange::Server;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(address), Some(which)) = (arguments.next(), arguments.next()) else {
        return Err("http-cases ADDRESS all|heads".into());
    };
    let mut server = Server::connect(address.parse()?)?;
    let mut failed = 0;
    for case in cases().iter().filter(|case| which == "all" || case.is_refused_head()) {
        let name = format!("{}: {} (RFC {})", case.source, case.name, case.rule);
        match server.run(case) {
            Ok(()) => println!("ok {name}"),
            Err(why) => {
                failed += 1;
                println!("FAIL {name}: {why}");
            }
        }
    }
    println!("{} connections", server.connections);
    Ok(ExitCode::from(u8::from(failed > 0)))
}
