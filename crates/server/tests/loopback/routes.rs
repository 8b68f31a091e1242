//! Routing by method and path.

use std::net::TcpStream;

use sinews_server::{Listen, Request, Response, Router, Server};
use sinews_testkit::exchange;

use crate::backend;
use crate::support::{Client, Running, echo, get, handshake, post, routes};

/// Reports the called handler and its request.
fn describing(name: &'static str) -> impl Fn(&mut Request<'_>) -> Response + Send + Sync {
    move |request| {
        let body = String::from_utf8_lossy(request.body()).into_owned();
        Response::text(format!("{name} {} {body}", request.head().method()))
    }
}

/// Returns the answer to a request with a body, or without one.
fn ask(client: &mut Client, method: &str, path: &str) -> (u16, String) {
    client.send(post(path, "body").replacen("POST", method, 1));
    let answer = client.answer_to(method).unwrap();
    (answer.status, answer.text().to_owned())
}

#[test]
fn each_method_has_its_own_answer() {
    let router = Router::new()
        .get("/", describing("get"))
        .post("/", describing("post"))
        .put("/", describing("put"))
        .patch("/", describing("patch"))
        .delete("/", describing("delete"))
        .options("/", describing("options"))
        .route("PROPFIND", "/", describing("route"));
    let (_server, mut client) = Running::connected(router);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let expected = format!("{} {method} body", method.to_lowercase());
        assert_eq!(ask(&mut client, method, "/"), (200, expected));
    }
    assert_eq!(ask(&mut client, "PROPFIND", "/").1, "route PROPFIND body");
    client.send(get("/").replace("GET", "LOCK"));
    let answer = client.answer();
    let allowed = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PROPFIND, PUT";
    assert_eq!((answer.status, answer.header("allow")), (405, Some(allowed)));
}

#[test]
fn any_answers_all_other_methods() {
    let server = Running::router(Router::new().any("/", describing("any")).post("/", describing("post")));
    let mut client = server.connect();
    for (method, expected) in [("GET", "any"), ("POST", "post"), ("OPTIONS", "any"), ("WHATEVER", "any")] {
        assert_eq!(ask(&mut client, method, "/"), (200, format!("{expected} {method} body")));
    }
    client.send(get("/").replace("GET", "HEAD"));
    let length = "any HEAD ".len().to_string();
    assert_eq!(client.answer_to("HEAD").unwrap().header("content-length"), Some(&*length));
}

#[test]
fn websockets_of_unknown_paths_are_upgraded_by_the_fallback() {
    let router = Router::new()
        .get("/known/app", describing("known"))
        .websocket_fallback(|path| path.ends_with("/app"), echo());
    let server = Running::router(router);
    for path in ["/app", "/a/b/app"] {
        server.websocket(path).sync();
    }
    for (request, status) in [
        (handshake("/other", ""), 404),
        (get("/a/app"), 404),
        (handshake("/known/app", ""), 200),
        (handshake("/a/app", "").replace("13", "12"), 426),
        (handshake("/a/app", "").replace("GET", "POST"), 404),
    ] {
        assert_eq!(server.connect().send(&request).answer().status, status, "{request}");
    }
}

#[test]
fn later_registration_replaces_an_earlier_one() {
    let server = Running::router(Router::new().get("/", describing("first")).get("/", describing("second")));
    assert_eq!(ask(&mut server.connect(), "GET", "/").1, "second GET body");
}

#[test]
fn head_may_have_its_own_answer() {
    let router = Router::new()
        .get("/", describing("get"))
        .route("HEAD", "/", |_| Response::text("of head").with_header("X-Head", "yes"));
    let (_server, mut client) = Running::connected(router);
    client.send(get("/").replace("GET", "HEAD"));
    let answer = client.answer_to("HEAD").unwrap();
    assert_eq!((answer.header("x-head"), answer.header("content-length")), (Some("yes"), Some("7")));
    assert_eq!(ask(&mut client, "GET", "/").1, "get GET body");
}

#[test]
fn options_lists_allowed_methods() {
    let (_server, mut client) = Running::connected(routes().put("/body", describing("put")));
    for (target, allowed) in [
        ("/", "GET, HEAD, OPTIONS"),
        ("/body", "OPTIONS, POST, PUT"),
        ("/echo", "GET, OPTIONS"),
        ("*", "GET, HEAD, OPTIONS, POST, PUT"),
    ] {
        let answer = client.send(get(target).replace("GET", "OPTIONS")).answer();
        assert_eq!((answer.status, answer.header("allow")), (204, Some(allowed)), "{target}");
        assert_eq!(answer.header("content-length"), None);
    }
    assert_eq!(client.send(get("/nowhere").replace("GET", "OPTIONS")).answer().status, 404);
    assert_eq!(client.send(get("*")).last_status(), 400, "only OPTIONS has this target");
}

#[test]
fn path_parameters_are_decoded() {
    let parts = |request: &mut Request<'_>| {
        let part = |name| request.param(name).map(|value| value.into_owned());
        Response::text(format!("{:?} {:?}", part("a"), part("rest")))
    };
    let router = Router::new()
        .get("/p/{a}", parts)
        .get("/p/{a}/of/{*rest}", parts)
        .get("/p/fixed", |_| Response::text("fixed"))
        .get("/{*rest}", parts);
    let (_server, mut client) = Running::connected(router);
    for (path, expected) in [
        ("/p/x%20y", "Some(\"x y\") None"),
        ("/p/x/of/a/b%2Fc/", "Some(\"x\") Some(\"a/b/c/\")"),
        ("/p/fixed", "fixed"),
        ("/p/", "None Some(\"p/\")"),
        ("/elsewhere", "None Some(\"elsewhere\")"),
        ("http://other.example/p/x?q", "Some(\"x\") None"),
    ] {
        assert_eq!(client.send(get(path)).answer().text(), expected, "{path}");
    }
    assert_eq!(client.send(get("/")).answer().status, 404, "a rest has a byte at least");
}

#[test]
fn websocket_route_coexists_with_every_other_method() {
    let server = Running::router(Router::new().any("/both", describing("any")).websocket("/both", echo()));
    assert_eq!(ask(&mut server.connect(), "DELETE", "/both").1, "any DELETE body");
    assert_eq!(ask(&mut server.connect(), "GET", "/both").1, "any GET body");
    server.websocket("/both").sync();
}

#[test]
#[should_panic(expected = "is not a token")]
fn method_that_is_no_token_panics() {
    let _ = Router::new().route("GET /", "/", describing("never"));
}

#[test]
fn unknown_paths_have_the_answer_of_the_router() {
    let unknown = |request: &mut Request<'_>| {
        Response::text(format!("nothing at {}", request.head().path())).with_status(404)
    };
    let router = Router::new().get("/", describing("root")).not_found(unknown);
    let (_server, mut client) = Running::connected(router);
    for method in ["GET", "POST", "DELETE"] {
        assert_eq!(ask(&mut client, method, "/none"), (404, "nothing at /none".to_owned()));
    }
    assert_eq!(ask(&mut client, "GET", "/").0, 200);
    assert_eq!(ask(&mut client, "POST", "/").0, 405);
}

#[test]
fn requests_show_the_tag_of_their_listener() {
    let address = || ([127, 0, 0, 1], 0).into();
    let router = Router::new().get("/", |request| Response::text(request.listener_tag().to_string()));
    let proxied = Listen::tcp(address()).with_proxy_protocol().with_tag(9);
    let server = Server::new(router).engine(backend::engine()).threads(1);
    let server = server.listen(address()).listen_on(Listen::tcp(address()).with_tag(7)).listen_on(proxied);
    let bound = server.bind().unwrap();
    let addresses = bound.addresses().to_vec();
    let _running = Running::bound(bound);
    for (address, head, tag) in
        [(addresses[0], "", "0"), (addresses[1], "", "7"), (addresses[2], "PROXY UNKNOWN\r\n", "9")]
    {
        let request = format!("{head}GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = exchange(TcpStream::connect(address).unwrap(), &request).unwrap();
        assert!(answer.ends_with(&format!("\r\n\r\n{tag}")), "{answer}");
    }
}
