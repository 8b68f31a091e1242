//! Settings, and the address of the server.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ProtocolVersion, RedisConnectionInfo,
    TlsCertificates, cmd,
};

use super::names::Names;
use super::script::ScriptRules;
use crate::error::BrokerConfigError;
use crate::redis::client::{PORT, client_for, login, server};
use crate::url::{BrokerUrl, url_error};

const SENTINEL_PORT: u16 = 26_379;
/// Timeout of a connection with its login, and of a question to a sentinel.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Beginning of all keys and channels.
const PREFIX: &str = "sinews:";

/// Setting names, for errors.
const SETTINGS: [&str; 7] =
    ["database", "prefix", "sentinel.password", "sentinel.user", "tls.ca", "tls.cert", "tls.key"];

/// How to reach Redis.
pub(super) struct Settings {
    pub(super) names: Names,
    /// The URL without credentials, for logs.
    pub(super) name: String,
    pub(super) rules: ScriptRules,
    target: ServerLookup,
    login: RedisConnectionInfo,
    /// `None`: those of the system.
    certificates: Option<TlsCertificates>,
}

enum ServerLookup {
    Server(ConnectionAddr),
    Sentinels { hosts: Vec<ConnectionAddr>, service: String, login: RedisConnectionInfo, is_tls: bool },
}

impl Settings {
    pub(super) fn parse(url: &str, settings: &BTreeMap<String, String>) -> Result<Self, BrokerConfigError> {
        let mut address = BrokerUrl::parse_with_path(url, settings)?;
        let name = address.to_string();
        let database = address.take_number("database", 0)?;
        let prefix = address.take("prefix").unwrap_or_else(|| PREFIX.to_owned());
        if prefix.contains(['{', '}']) {
            return Err(address.setting_error("prefix", "it contains a brace"));
        }
        let certificates = certificates(&mut address)?;
        let target = ServerLookup::parse(url, &mut address)?;
        address.reject_unknown_settings(&SETTINGS)?;
        let login = login(address.user.as_deref(), address.password.as_deref(), database);
        // A command that needs a right.
        let login = login.set_skip_set_lib_name();
        Ok(Self { names: Names { prefix }, name, rules: ScriptRules::default(), target, login, certificates })
    }

    /// The server that accepts writes. Sentinels are asked for it.
    pub(super) async fn primary(&self) -> Result<ConnectionAddr, String> {
        let ServerLookup::Sentinels { hosts, service, login, is_tls } = &self.target else {
            let ServerLookup::Server(server) = &self.target else { unreachable!("two kinds") };
            return Ok(server.clone());
        };
        let mut reasons = Vec::new();
        for host in hosts {
            let asked = tokio::time::timeout(CONNECT_TIMEOUT, self.ask(host, login, service)).await;
            match asked.unwrap_or_else(|_| Err("no answer".to_owned())) {
                Ok(primary) => return server(&primary, *is_tls).map_err(|error| error.to_string()),
                Err(reason) => reasons.push(format!("{host}: {reason}")),
            }
        }
        Err(format!("no sentinel knows the service {service}: {}", reasons.join("; ")))
    }

    async fn ask(
        &self,
        host: &ConnectionAddr,
        login: &RedisConnectionInfo,
        service: &str,
    ) -> Result<String, String> {
        let client = client_for(host.clone(), login.clone(), self.certificates_for(host));
        let client = client.map_err(|error| error.to_string())?;
        let settings = AsyncConnectionConfig::new();
        let mut sentinel = client
            .get_multiplexed_async_connection_with_config(&settings)
            .await
            .map_err(|error| error.to_string())?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let answer: Option<(String, String)> =
            question.query_async(&mut sentinel).await.map_err(|error| error.to_string())?;
        let (host, port) = answer.ok_or("unknown service")?;
        Ok(format!("{host}:{port}"))
    }

    pub(super) fn client(
        &self,
        server: &ConnectionAddr,
        protocol: ProtocolVersion,
    ) -> Result<Client, String> {
        let login = self.login.clone().set_protocol(protocol);
        client_for(server.clone(), login, self.certificates_for(server)).map_err(|error| error.to_string())
    }

    fn certificates_for(&self, server: &ConnectionAddr) -> Option<&TlsCertificates> {
        let is_tls = matches!(server, ConnectionAddr::TcpTls { .. });
        self.certificates.as_ref().filter(|_| is_tls)
    }
}

impl ServerLookup {
    fn parse(url: &str, address: &mut BrokerUrl) -> Result<Self, BrokerConfigError> {
        let (is_tls, is_sentinel) = match &*address.scheme {
            "redis+unix" if address.hosts == [""] && !address.path.is_empty() => {
                return Ok(Self::Server(ConnectionAddr::Unix(PathBuf::from(format!("/{}", address.path)))));
            }
            "redis+unix" => return Err(url_error(url, "it is not redis+unix:///PATH")),
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis+sentinel" => (false, true),
            _ => (true, true),
        };
        address.check_hosts(url)?;
        address.default_port(if is_sentinel { SENTINEL_PORT } else { PORT });
        let hosts = address.hosts.iter().map(|host| server(host, is_tls));
        let hosts = hosts.collect::<Result<Vec<_>, _>>().map_err(|error| address.client_error(&error))?;
        if is_sentinel {
            let service = address.path.clone();
            if service.is_empty() || service.contains('/') {
                return Err(url_error(url, "it has no service name behind the sentinels"));
            }
            let (user, password) = (address.take("sentinel.user"), address.take("sentinel.password"));
            let login = login(user.as_deref(), password.as_deref(), 0);
            return Ok(Self::Sentinels { hosts, service, login, is_tls });
        }
        match <[ConnectionAddr; 1]>::try_from(hosts) {
            _ if !address.path.is_empty() => Err(url_error(url, "it has a path, which is not supported")),
            Ok([server]) => Ok(Self::Server(server)),
            Err(_) => Err(url_error(url, "Redis supports one host; several sentinels need redis+sentinel")),
        }
    }
}

/// Reads the files of the settings `tls.*`.
fn certificates(address: &mut BrokerUrl) -> Result<Option<TlsCertificates>, BrokerConfigError> {
    let is_tls = address.scheme.starts_with("rediss");
    let mut read = |setting: &str| {
        let Some(path) = address.take(setting) else { return Ok(None) };
        if !is_tls {
            return Err(address.setting_error(setting, "the scheme is without TLS; use rediss"));
        }
        let content =
            fs::read(&path).map_err(|error| address.setting_error(setting, format!("{path}: {error}")));
        content.map(Some)
    };
    let (root_cert, client_cert, client_key) = (read("tls.ca")?, read("tls.cert")?, read("tls.key")?);
    let client_tls = match (client_cert, client_key) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
        (None, None) => None,
        (Some(_), None) => return Err(address.setting_error("tls.cert", "it needs tls.key")),
        (None, Some(_)) => return Err(address.setting_error("tls.key", "it needs tls.cert")),
    };
    let is_set = root_cert.is_some() || client_tls.is_some();
    Ok(is_set.then_some(TlsCertificates { client_tls, root_cert }))
}
