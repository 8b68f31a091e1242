//! Requests over one persistent connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::Fault;
use crate::client;

pub(crate) struct Http {
    stream: TcpStream,
    received: Vec<u8>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Http {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self, Fault> {
        Ok(Self { stream: client::connect(address)?, received: Vec::new() })
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn ask(&mut self, request: &str) -> Result<(), Fault> {
        Ok(self.stream.write_all(request.as_bytes())?)
    }

    /// Posts a body, and returns the body of the answer, which must be 200.
    pub(crate) fn post(&mut self, path: &str, body: &[u8]) -> Result<String, Fault> {
        let len = body.len();
        let mut request =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n").into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request)?;
        let answer = self.answer()?;
        if answer.status == 200 {
            return Ok(answer.body);
        }
        Err(format!("POST {path} answered {} {}", answer.status, answer.body).into())
    }

    /// Returns the next answer. Answers arrive in the order of the requests.
    pub(crate) fn answer(&mut self) -> Result<Answer, Fault> {
        let end = loop {
            match self.received.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => self.read()?,
            }
        };
        let head = String::from_utf8(self.received.drain(..end).collect())?;
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).ok_or("no status line")?;
        let length = head.lines().filter_map(|line| line.split_once(": "));
        let length = length.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length: usize = length.map_or(Ok(0), |(_, value)| value.parse())?;
        while self.received.len() < length {
            self.read()?;
        }
        let body = String::from_utf8(self.received.drain(..length).collect())?;
        Ok(Answer { status: status.parse()?, body })
    }

    fn read(&mut self) -> Result<(), Fault> {
        let mut chunk = [0; 16 << 10];
        match self.stream.read(&mut chunk)? {
            0 => Err("the connection ended before the answer".into()),
            count => {
                self.received.extend_from_slice(&chunk[..count]);
                Ok(())
            }
        }
    }
}
