//! Files of a directory: lookup, conditions, ranges, codings, and large files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use sinews_server::{Files, Response, Router, Server};
use tempfile::TempDir;

use crate::support::{Answer, Client, Running, get, routes};

/// A directory for each test, removed with it.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Serves with revalidation at each request.
    fn files(&self) -> Files {
        Files::open(self.path("public")).unwrap().with_revalidation(Duration::ZERO)
    }

    fn served(&self) -> Running {
        self.connected().0
    }

    fn connected(&self) -> (Running, Client) {
        Running::connected(routes().files("/static", self.files()))
    }
}

fn date(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

fn site() -> Site {
    let site = Site::new();
    site.write("public/index.html", "<p>home</p>");
    site.write("public/sub dir/index.html", "<p>sub</p>");
    site.write("public/sub dir/ü.txt", "umlaut");
    site.write("public/plain.bin", b"\0\x01\x02\x03\x04\x05\x06\x07\x08\x09");
    site.write("public/empty/x.css", "");
    site.write("public/.env", "secret");
    site.write("public/.well-known/security.txt", "contact");
    site.write("secret.txt", "outside");
    date(&site.path("public/plain.bin"), 784_111_777);
    site
}

/// Sends GET with further header lines.
fn ask(client: &mut Client, path: &str, lines: &str) -> Answer {
    client.send(get(path).replace("\r\n\r\n", &format!("\r\n{lines}\r\n"))).answer()
}

#[test]
fn files_are_found_by_path_and_typed_by_name() {
    let (site, lines) = (site(), "");
    let (_server, mut client) = site.connected();
    for (path, text, content_type) in [
        ("/static/", "<p>home</p>", "text/html; charset=utf-8"),
        ("/static/index.html", "<p>home</p>", "text/html; charset=utf-8"),
        ("/static/sub%20dir/", "<p>sub</p>", "text/html; charset=utf-8"),
        ("/static/sub%20dir/%C3%BC.txt?v=1", "umlaut", "text/plain; charset=utf-8"),
        ("/static/empty/x.css", "", "text/css; charset=utf-8"),
        ("/static/.well-known/security.txt", "contact", "text/plain; charset=utf-8"),
    ] {
        let answer = ask(&mut client, path, lines);
        assert_eq!((answer.status, answer.text()), (200, text), "{path}");
        assert_eq!(answer.header("content-type"), Some(content_type), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-cache"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    let answer = ask(&mut client, "/static/plain.bin", lines);
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    assert_eq!(answer.header("last-modified"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    assert!(answer.header("etag").unwrap().starts_with('"'));
    client.send(get("/static/plain.bin").replace("GET", "HEAD"));
    let head = client.answer_to("HEAD").unwrap();
    assert_eq!((head.status, head.header("content-length")), (200, Some("10")));
    let allowed = client.send(get("/static/plain.bin").replace("GET", "POST")).answer();
    assert_eq!((allowed.status, allowed.header("allow")), (405, Some("GET, HEAD, OPTIONS")));
}

#[test]
fn directory_is_found_with_its_slash() {
    let site = site();
    let (_server, mut client) = site.connected();
    for (path, location) in [
        ("/static", "/static/"),
        ("/static?a=b", "/static/?a=b"),
        ("/static/sub%20dir", "/static/sub%20dir/"),
        ("/static/sub%20dir?a=b", "/static/sub%20dir/?a=b"),
    ] {
        let answer = ask(&mut client, path, "");
        assert_eq!((answer.status, answer.header("location")), (301, Some(location)), "{path}");
    }
    assert_eq!(ask(&mut client, "/static/empty/", "").status, 404, "no index, no list");
    let (_server, mut client) = Running::connected(Router::new().files("/", site.files().with_index(None)));
    assert_eq!(ask(&mut client, "/sub%20dir", "").status, 404);
    assert_eq!(ask(&mut client, "/", "").status, 404);
    assert_eq!(ask(&mut client, "/index.html", "").status, 200);
}

#[test]
fn files_outside_and_hidden_files_are_not_found() {
    let site = site();
    let links = site.path("public");
    std::os::unix::fs::symlink("../secret.txt", links.join("out.txt")).unwrap();
    std::os::unix::fs::symlink(site.path("secret.txt"), links.join("absolute.txt")).unwrap();
    std::os::unix::fs::symlink("..", links.join("up")).unwrap();
    std::os::unix::fs::symlink("sub dir/ü.txt", links.join("in.txt")).unwrap();
    std::os::unix::fs::symlink("loop", links.join("loop")).unwrap();
    let (_server, mut client) = site.connected();
    for path in [
        "../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "sub%20dir/../../secret.txt",
        "sub%20dir/../index.html",
        "./index.html",
        "/index.html",
        "sub%20dir//index.html",
        "sub%20dir%2findex.html",
        "plain.bin/",
        "plain.bin/x",
        "nothing",
        ".env",
        "%2Eenv",
        "%00",
        "%ff",
        "out.txt",
        "absolute.txt",
        "up/secret.txt",
        "loop",
        &"x".repeat(300),
    ] {
        let answer = ask(&mut client, &format!("/static/{path}"), "");
        assert!([404, 403, 500].contains(&answer.status), "{path}: {}", answer.status);
        assert!(!answer.text().contains("outside") && !answer.text().contains("secret"), "{path}");
        let expected = match path {
            "out.txt" | "absolute.txt" | "up/secret.txt" => 403,
            "loop" => 500,
            _ => 404,
        };
        assert_eq!(answer.status, expected, "{path}");
    }
    assert_eq!(ask(&mut client, "/static/in.txt", "").text(), "umlaut", "a link inside");
    let all = site.files().with_links_followed(true).with_dotfiles(true);
    let (_server, mut client) = Running::connected(Router::new().files("/", all));
    for (path, text) in [("/out.txt", "outside"), ("/up/secret.txt", "outside"), ("/.env", "secret")] {
        assert_eq!(ask(&mut client, path, "").text(), text);
    }
    assert_eq!(ask(&mut client, "/../secret.txt", "").status, 404);
}

#[test]
fn special_files_are_not_opened() {
    let site = site();
    // Opening a FIFO without a writer blocks.
    let made = std::process::Command::new("mkfifo").arg(site.path("public/pipe")).status();
    if !made.is_ok_and(|status| status.success()) {
        return println!("no mkfifo here");
    }
    assert_eq!(ask(&mut site.served().connect(), "/static/pipe", "").status, 404);
}

#[test]
fn conditions_spare_the_body() {
    let site = site();
    let (_server, mut client) = site.connected();
    let path = "/static/plain.bin";
    let etag = ask(&mut client, path, "").header("etag").unwrap().to_owned();
    for (status, lines) in [
        (304, format!("If-None-Match: {etag}\r\n")),
        (304, "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n".to_owned()),
        (200, "If-None-Match: \"other\"\r\n".to_owned()),
        (200, "If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT\r\n".to_owned()),
        (412, "If-Match: \"other\"\r\n".to_owned()),
        (412, "If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT\r\n".to_owned()),
        (200, format!("If-Match: {etag}\r\n")),
    ] {
        let answer = ask(&mut client, path, &lines);
        assert_eq!(answer.status, status, "{lines}");
        if status == 304 {
            assert_eq!((answer.header("etag"), answer.header("content-length")), (Some(&*etag), None));
            assert_eq!(answer.header("content-type"), None);
            assert_eq!(answer.header("cache-control"), Some("no-cache"));
        }
    }
    site.write("public/plain.bin", "changed");
    let changed = ask(&mut client, path, &format!("If-None-Match: {etag}\r\n"));
    assert_eq!((changed.status, changed.text()), (200, "changed"));
}

#[test]
fn ranges_are_served() {
    let site = site();
    let (_server, mut client) = site.connected();
    let path = "/static/plain.bin";
    let whole = ask(&mut client, path, "");
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let etag = whole.header("etag").unwrap().to_owned();
    for (range, bytes, content_range) in [
        ("bytes=0-0", &[0][..], "bytes 0-0/10"),
        ("bytes=3-5", &[3, 4, 5], "bytes 3-5/10"),
        ("bytes=8-", &[8, 9], "bytes 8-9/10"),
        ("bytes=-2", &[8, 9], "bytes 8-9/10"),
        ("bytes=8-100", &[8, 9], "bytes 8-9/10"),
    ] {
        let answer = ask(&mut client, path, &format!("Range: {range}\r\nIf-Range: {etag}\r\n"));
        assert_eq!((answer.status, &*answer.body), (206, bytes), "{range}");
        assert_eq!(answer.header("content-range"), Some(content_range));
        assert_eq!(answer.header("etag"), Some(&*etag));
    }
    let beyond = ask(&mut client, path, "Range: bytes=10-\r\n");
    assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */10")));
    for lines in ["Range: bytes=0-1,3-4\r\n", "Range: bytes=0-1\r\nIf-Range: \"old\"\r\n", "Range: x\r\n"] {
        let answer = ask(&mut client, path, lines);
        assert_eq!((answer.status, answer.body.len()), (200, 10), "{lines}");
    }
}

/// Bytes that reveal their offset.
fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 % 251) as u8).collect()
}

#[test]
fn large_files_arrive_completely() {
    let site = site();
    // Around the size of a piece and of the cache limit, and far beyond.
    for len in [128 << 10, (128 << 10) + 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 5_000_001] {
        site.write("public/large.bin", numbered(len));
        let (server, mut client) = site.connected();
        client.send(get("/static/large.bin").repeat(2) + &get("/name/next"));
        for _ in 0..2 {
            let answer = client.answer();
            assert!(answer.status == 200 && answer.body == numbered(len), "{len}");
        }
        assert_eq!(client.answer().text(), "next");
        let part = ask(&mut client, "/static/large.bin", &format!("Range: bytes=100-{}\r\n", len - 2));
        assert!(part.status == 206 && part.body == numbered(len)[100..len - 1], "{len}");
        client.send(get("/static/large.bin").replace("GET", "HEAD"));
        let len = len.to_string();
        assert_eq!(client.answer_to("HEAD").unwrap().header("content-length"), Some(&*len));
        let mut last = server.connect();
        last.send(get("/static/large.bin").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
        assert_eq!(last.answer().body.len().to_string(), len);
        last.assert_end();
        let mut half = server.connect();
        half.send(get("/static/large.bin")).half_close();
        assert_eq!(half.answer().body.len().to_string(), len);
        half.assert_end();
    }
}

#[test]
fn slow_reader_gets_no_more_than_it_takes() {
    let site = site();
    const LEN: usize = 64 << 20;
    let path = site.write("public/huge.bin", "");
    fs::File::options().write(true).open(&path).unwrap().set_len(LEN as u64).unwrap();
    let server = site.served();
    let mut slow = server.connect();
    slow.send(get("/static/huge.bin"));
    for _ in 0..100 {
        assert_eq!(server.connect().send(get("/")).answer().status, 200, "other clients are served");
    }
    // Unread data is not sent: the connection closes early.
    fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    let mut received = 0;
    let mut chunk = vec![0; 1 << 20];
    while let Ok(count @ 1..) = std::io::Read::read(&mut slow.stream, &mut chunk) {
        received += count;
    }
    assert!(received < LEN, "all of it was read for one that takes none");
    assert_eq!(server.connect().send(get("/")).answer().status, 200);
}

#[test]
fn reset_during_a_file_does_not_affect_other_clients() {
    let site = site();
    site.write("public/large.bin", numbered(5_000_000));
    let server = site.served();
    for _ in 0..20 {
        let mut client = server.connect();
        client.send(get("/static/large.bin").repeat(3));
        let mut some = [0; 1_000];
        std::io::Read::read_exact(&mut client.stream, &mut some).unwrap();
        client.reset();
    }
    assert_eq!(server.connect().send(get("/static/large.bin")).answer().body.len(), 5_000_000);
}

#[test]
fn text_is_compressed_for_clients_that_accept_it() {
    let site = site();
    let text = "the same again, ".repeat(1_000);
    site.write("public/a.txt", &text);
    site.write("public/b.txt", &text);
    site.write("public/b.txt.br", "brotli");
    site.write("public/b.txt.gz", "gzip");
    site.write("public/c.png", &text);
    let (_server, mut client) = site.connected();
    let plain = ask(&mut client, "/static/a.txt", "");
    assert_eq!((plain.text(), plain.header("content-encoding")), (&*text, None));
    assert_eq!(plain.header("vary"), Some("Accept-Encoding"));
    let made = ask(&mut client, "/static/a.txt", "Accept-Encoding: gzip, br\r\n");
    assert_eq!(made.header("content-encoding"), Some("gzip"));
    assert!(made.body.starts_with(b"\x1f\x8b") && made.body.len() < 1_000);
    assert_eq!(made.header("content-type"), plain.header("content-type"));
    assert_ne!(made.header("etag"), plain.header("etag"));
    let etag = made.header("etag").unwrap();
    let same =
        ask(&mut client, "/static/a.txt", &format!("Accept-Encoding: gzip\r\nIf-None-Match: {etag}\r\n"));
    assert_eq!((same.status, same.header("vary")), (304, Some("Accept-Encoding")));
    for (accept, coding, body) in [
        ("br, gzip", Some("br"), "brotli"),
        ("gzip", Some("gzip"), "gzip"),
        ("br;q=0, gzip", Some("gzip"), "gzip"),
        ("*", Some("br"), "brotli"),
        ("identity", None, &*text),
    ] {
        let answer = ask(&mut client, "/static/b.txt", &format!("Accept-Encoding: {accept}\r\n"));
        assert_eq!((answer.header("content-encoding"), answer.text()), (coding, body), "{accept}");
    }
    let part = ask(&mut client, "/static/b.txt", "Accept-Encoding: gzip\r\nRange: bytes=0-2\r\n");
    assert_eq!((part.status, part.text(), part.header("content-encoding")), (206, "the", None));
    let picture = ask(&mut client, "/static/c.png", "Accept-Encoding: gzip\r\n");
    assert_eq!((picture.header("content-encoding"), picture.header("vary")), (None, None));
    let bare = site.files().with_compression(false).with_precompressed(false).with_cache_control("");
    let server = Running::router(Router::new().files("/", bare));
    let answer = ask(&mut server.connect(), "/b.txt", "Accept-Encoding: gzip, br\r\n");
    assert_eq!((answer.text(), answer.header("cache-control")), (&*text, None));
}

#[test]
fn directory_may_be_replaced_as_a_whole() {
    let site = site();
    site.write("next/index.html", "new");
    let (_server, mut client) = site.connected();
    assert_eq!(ask(&mut client, "/static/", "").text(), "<p>home</p>");
    fs::rename(site.path("public"), site.path("old")).unwrap();
    fs::rename(site.path("next"), site.path("public")).unwrap();
    assert_eq!(ask(&mut client, "/static/", "").text(), "new");
    assert_eq!(ask(&mut client, "/static/plain.bin", "").status, 404);
}

#[test]
fn files_coexist_with_other_routes() {
    let site = site();
    let router = Router::new()
        .files("/", site.files())
        .get("/healthz", |_| Response::text("ok"))
        .websocket("/sub dir/echo", crate::support::echo());
    let server = Running::server(Server::new(router).threads(2));
    let mut client = server.connect();
    for (path, text) in [("/", "<p>home</p>"), ("/healthz", "ok"), ("/sub%20dir/", "<p>sub</p>")] {
        assert_eq!(ask(&mut client, path, "").text(), text);
    }
    assert!(Files::open(site.path("nothing")).is_err());
    assert!(Files::open(site.path("secret.txt")).is_err());
}
