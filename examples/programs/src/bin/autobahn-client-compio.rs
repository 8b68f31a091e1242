//! The client of the Autobahn suite on compio: `autobahn-client-compio [URL]`, by default with
//! `ws://localhost:9001`.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;

use sinews::compio::{Stream, WebSocket, connect};
use sinews::{AtFault, DeflateConfig, DeflateMode};

const AGENT: &str = "sinews";

#[compio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "ws://localhost:9001".to_owned());
    for case in 1..=case_count(&url).await? {
        run_case(&url, case).await?;
    }
    update_reports(&url).await
}

async fn case_count(url: &str) -> Result<u32, Box<dyn Error>> {
    let mut ws = connect(format!("{url}/getCaseCount")).await?;
    let message = ws.next().await.ok_or("no count of cases")??;
    Ok(message.as_text().ok_or("the count of cases is no text")?.parse()?)
}

async fn run_case(url: &str, case: u32) -> Result<(), Box<dyn Error>> {
    let deflate = DeflateConfig::new().with_mode(DeflateMode::Dedicated);
    let mut ws = connect(format!("{url}/runCase?case={case}&agent={AGENT}")).deflate(deflate).await?;
    match echo(&mut ws).await {
        // The suite violates the protocol on purpose.
        Err(error) if error.at_fault() != AtFault::Peer => println!("case {case}: {error}"),
        _ => {}
    }
    Ok(())
}

async fn echo(ws: &mut WebSocket<Stream>) -> Result<(), sinews::Error> {
    while let Some(message) = ws.next().await {
        let message = message?;
        if message.is_data() {
            ws.send(message).await?;
        }
    }
    Ok(())
}

/// The suite closes the connection when it has written the reports.
async fn update_reports(url: &str) -> Result<(), Box<dyn Error>> {
    let mut ws = connect(format!("{url}/updateReports?agent={AGENT}")).await?;
    while let Some(message) = ws.next().await {
        message?;
    }
    Ok(())
}
