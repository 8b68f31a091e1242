//! An HTTP/1.1 server for requests from a program under test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// A received request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The request line's method.
    pub method: String,
    /// Its target.
    pub path: String,
    /// Names in lower case, and values.
    headers: Vec<(String, String)>,
    /// The content.
    pub body: String,
}

#[allow(clippy::missing_panics_doc, reason = "a panic fails the test")]
impl HttpRequest {
    /// Reads a request; `None` if the connection ends instead.
    pub fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let mut words = lines.first()?.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let header = |line: &String| {
            let (name, value) = line.split_once(": ").expect("a header");
            (name.to_lowercase(), value.to_owned())
        };
        let headers = lines[1..].iter().map(header).collect();
        let mut request = Self { method, path, headers, body: String::new() };
        let length = request.header("content-length").map_or(0, |length| length.parse().expect("a number"));
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        request.body = String::from_utf8(body).expect("UTF-8");
        Some(request)
    }

    /// Returns the content, which is JSON.
    #[cfg(feature = "json")]
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    /// Returns a header's value; the name is in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

/// What follows a request.
#[derive(Clone, Debug)]
pub enum HttpAnswer {
    /// A whole response: the test's status line, such as `200 OK`, and headers; and this content.
    Response(String, String),
    /// These bytes; then the connection is closed.
    End(&'static str),
}

/// Answers requests, each connection on a thread of its own, until the process ends.
pub fn serve_http(listener: TcpListener, answer: impl Fn(HttpRequest) -> HttpAnswer + Send + Sync + 'static) {
    accept(listener, move |stream| converse(stream, &answer));
}

/// Answers requests over TLS.
#[cfg(feature = "tls")]
pub fn serve_https(
    listener: TcpListener,
    tls: rustls::ServerConfig,
    answer: impl Fn(HttpRequest) -> HttpAnswer + Send + Sync + 'static,
) {
    let tls = Arc::new(tls);
    accept(listener, move |stream| {
        let connection = rustls::ServerConnection::new(Arc::clone(&tls)).expect("sound settings");
        converse(rustls::StreamOwned::new(connection, stream), &answer);
    });
}

fn accept(listener: TcpListener, serve: impl Fn(TcpStream) + Send + Sync + 'static) {
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
}

fn converse(stream: impl Read + Write, answer: &impl Fn(HttpRequest) -> HttpAnswer) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = HttpRequest::read(&mut reader) {
        let (text, ends) = match answer(request) {
            HttpAnswer::Response(head, body) => {
                (format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()), false)
            }
            HttpAnswer::End(text) => (text.to_owned(), true),
        };
        // At once: a second write would wait for the first one's acknowledgement. The program may have gone.
        let stream = reader.get_mut();
        let written = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
        if ends || written.is_err() {
            return;
        }
    }
}
