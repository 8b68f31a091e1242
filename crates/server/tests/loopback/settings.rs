//! Invalid settings are rejected at bind, with their name.

use std::time::Duration;

use sinews_server::{Config, HttpConfig, Server, TopicConfig};

use crate::support::{echo, routes};

fn refused(server: Server) -> String {
    let error = server.bind().expect_err("nothing could work");
    assert_eq!((error.address(), error.io_error().kind()), (None, std::io::ErrorKind::InvalidInput));
    error.to_string()
}

fn somewhere(server: Server) -> Server {
    server.listen(([127, 0, 0, 1], 0).into()).threads(1)
}

#[test]
fn server_without_a_listen_address_is_not_bound() {
    assert!(refused(Server::new(routes())).contains("no address to listen on"));
}

#[test]
fn timeouts_of_zero_are_rejected_by_name() {
    let http = HttpConfig::default();
    let zero = Duration::ZERO;
    for (config, name) in [
        (http.clone().with_head_timeout(zero), "head_timeout"),
        (http.clone().with_body_idle_timeout(zero), "body_idle_timeout"),
        (http.clone().with_body_timeout(zero), "body_timeout"),
        (http.clone().with_keep_alive_timeout(zero), "keep_alive_timeout"),
        (http.clone().with_write_timeout(zero), "write_timeout"),
    ] {
        let said = refused(somewhere(Server::new(routes()).http(config)));
        assert!(said.contains(&format!("`HttpConfig`: {name} ")), "{said}");
    }
    let topics = TopicConfig::default().with_deliveries_per_turn(0);
    let said = refused(somewhere(Server::new(routes()).topics(topics)));
    assert!(said.contains("deliveries_per_turn"), "{said}");
}

#[test]
fn route_with_invalid_config_is_named() {
    let config = Config::default().with_ping_interval(Some(Duration::ZERO));
    let routes = routes().websocket("/wrong", echo().with_config(config));
    let said = refused(somewhere(Server::new(routes)));
    assert!(said.contains("/wrong") && said.contains("ping_interval"), "{said}");
}

#[test]
fn defaults_are_valid() {
    assert!(somewhere(Server::new(routes())).bind().is_ok());
}
