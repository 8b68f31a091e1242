//! Redis clients from broker URLs.

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisResult, TlsCertificates,
};

use crate::url::BrokerUrl;

pub(super) const PORT: u16 = 6379;

/// Creates a client for one host of a URL, with its login.
pub(super) fn client(address: &BrokerUrl, host: &str, database: u64) -> RedisResult<Client> {
    let server = server(host, address.scheme == "rediss")?;
    let login = login(address.user.as_deref(), address.password.as_deref(), database);
    client_for(server, login, None)
}

/// Reads a host with its port.
pub(super) fn server(host: &str, is_tls: bool) -> RedisResult<ConnectionAddr> {
    let (host, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = port.parse().map_err(|_| (ErrorKind::InvalidClientConfig, "the port is not a number"))?;
    Ok(if is_tls {
        // Fails if the program has already installed a provider, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    })
}

pub(super) fn login(user: Option<&str>, password: Option<&str>, database: u64) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_db(i64::try_from(database).unwrap_or(i64::MAX));
    if let Some(user) = user.filter(|user| !user.is_empty()) {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

/// Creates a client for a server. Certificates replace those of the system.
pub(super) fn client_for(
    server: ConnectionAddr,
    login: RedisConnectionInfo,
    certificates: Option<&TlsCertificates>,
) -> RedisResult<Client> {
    // Commands follow each other before they are answered: with Nagle's algorithm each would wait for an acknowledgement.
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = server.into_connection_info()?.set_redis_settings(login).set_tcp_settings(tcp);
    match certificates {
        Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        None => Client::open(info),
    }
}
