//! Settings, and the address of the server.

use std::collections::{BTreeMap, HashSet};
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

/// Maximum independent servers.
const SERVERS_MAX: usize = 16;
/// Longest wait for a replica: the connection executes nothing meanwhile.
const REPLICA_WAIT_MAX: u64 = 1_000;
const SENTINEL_PORT: u16 = 26_379;
/// Timeout of a connection with its login, and of a question to a sentinel.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Beginning of all keys and channels.
const PREFIX: &str = "sinews:";

/// Setting names, for errors.
const SETTINGS: [&str; 8] = [
    "database",
    "prefix",
    "replica.wait.ms",
    "sentinel.password",
    "sentinel.user",
    "tls.ca",
    "tls.cert",
    "tls.key",
];

/// How to reach Redis.
pub(super) struct Settings {
    pub(super) names: Names,
    /// The URL without credentials, for logs.
    pub(super) name: String,
    pub(super) rules: ScriptRules,
    /// Time that a write waits for a replica; `None`: a write waits for none.
    pub(super) replica_wait: Option<Duration>,
    pub(super) is_tls: bool,
    pub(super) target: StoreTarget,
    login: RedisConnectionInfo,
    /// `None`: those of the system.
    certificates: Option<TlsCertificates>,
}

/// The servers of a store.
#[derive(Clone)]
pub(super) enum StoreTarget {
    /// Independent servers with their names, which are empty for a single one.
    Servers(Vec<(String, ServerLookup)>),
    /// Some servers of a Redis Cluster.
    Cluster(Vec<ConnectionAddr>),
}

/// How to find a server.
#[derive(Clone)]
pub(super) enum ServerLookup {
    Server(ConnectionAddr),
    Sentinels { hosts: Vec<ConnectionAddr>, service: String, login: RedisConnectionInfo },
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
        let replica_wait = replica_wait(&mut address)?;
        let is_tls = address.scheme.starts_with("rediss");
        let target = StoreTarget::parse(url, &mut address, is_tls)?;
        address.reject_unknown_settings(&SETTINGS)?;
        let is_cluster = matches!(target, StoreTarget::Cluster(_));
        if is_cluster && database != 0 {
            return Err(address.setting_error("database", "a Redis Cluster has only database 0"));
        }
        let rules = ScriptRules { is_cluster, ..ScriptRules::default() };
        let login = login(address.user.as_deref(), address.password.as_deref(), database);
        // A command that needs a right.
        let login = login.set_skip_set_lib_name();
        let names = Names { prefix };
        Ok(Self { names, name, rules, replica_wait, is_tls, target, login, certificates })
    }

    /// The server that accepts writes. Sentinels are asked for it.
    pub(super) async fn primary(&self, lookup: &ServerLookup) -> Result<ConnectionAddr, String> {
        let (hosts, service, login) = match lookup {
            ServerLookup::Server(server) => return Ok(server.clone()),
            ServerLookup::Sentinels { hosts, service, login } => (hosts, service, login),
        };
        let mut reasons = Vec::new();
        for host in hosts {
            let asked = tokio::time::timeout(CONNECT_TIMEOUT, self.ask(host, login, service)).await;
            match asked.unwrap_or_else(|_| Err("no answer".to_owned())) {
                Ok(primary) => return server(&primary, self.is_tls).map_err(|error| error.to_string()),
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

impl StoreTarget {
    fn parse(url: &str, address: &mut BrokerUrl, is_tls: bool) -> Result<Self, BrokerConfigError> {
        let scheme = address.scheme.clone();
        let kind = scheme.split_once('+').map_or("", |(_, kind)| kind);
        if kind == "unix" {
            if address.hosts != [""] || address.path.is_empty() {
                return Err(url_error(url, "it is not redis+unix:///PATH"));
            }
            let server = ConnectionAddr::Unix(PathBuf::from(format!("/{}", address.path)));
            return Ok(Self::Servers(vec![(String::new(), ServerLookup::Server(server))]));
        }
        address.check_hosts(url)?;
        address.default_port(if kind == "sentinel" { SENTINEL_PORT } else { PORT });
        let hosts = address.hosts.iter().map(|host| server(host, is_tls));
        let hosts = hosts.collect::<Result<Vec<_>, _>>().map_err(|error| address.client_error(&error))?;
        let mut servers: Vec<(String, ServerLookup)> = if kind == "sentinel" {
            if address.path.is_empty()
                || address.path.contains('/')
                || address.path.split(',').any(str::is_empty)
            {
                return Err(url_error(url, "it has no service name behind the sentinels"));
            }
            let (user, password) = (address.take("sentinel.user"), address.take("sentinel.password"));
            let login = login(user.as_deref(), password.as_deref(), 0);
            let lookup = |service: &str| {
                let lookup = ServerLookup::Sentinels {
                    hosts: hosts.clone(),
                    service: service.to_owned(),
                    login: login.clone(),
                };
                (format!("{scheme}://{service}"), lookup)
            };
            address.path.split(',').map(lookup).collect()
        } else if !address.path.is_empty() {
            return Err(url_error(url, "it has a path, which is not supported"));
        } else if kind == "cluster" {
            return Ok(Self::Cluster(hosts));
        } else {
            let names = address.hosts.iter().map(|host| format!("{scheme}://{host}"));
            names.zip(hosts.into_iter().map(ServerLookup::Server)).collect()
        };
        let names: HashSet<&String> = servers.iter().map(|(name, _)| name).collect();
        if names.len() < servers.len() || servers.len() > SERVERS_MAX {
            return Err(url_error(
                url,
                &format!("a server occurs twice, or there are more than {SERVERS_MAX}"),
            ));
        }
        if let [(name, _)] = &mut servers[..] {
            name.clear();
        }
        Ok(Self::Servers(servers))
    }
}

fn replica_wait(address: &mut BrokerUrl) -> Result<Option<Duration>, BrokerConfigError> {
    match address.take_number("replica.wait.ms", 0)? {
        0 => Ok(None),
        time @ ..=REPLICA_WAIT_MAX => Ok(Some(Duration::from_millis(time))),
        _ => Err(address.setting_error("replica.wait.ms", format!("it is more than {REPLICA_WAIT_MAX}"))),
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
