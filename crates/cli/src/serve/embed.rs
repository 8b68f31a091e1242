//! The server of `sinews serve` inside of another event loop.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use sinews_hub::RunningHub;
use sinews_server::{BackendChoice, EmbeddedServer, EngineConfig, Router, StopHandle, TlsConfig};

use super::options::{access_policy, build_hub};
use super::{assemble, explain, raise_descriptor_limit};
use crate::config::file::ConfigFile;
use crate::config::flags::SettingFlags;
use crate::config::network::ListenEndpoint;
use crate::log;
use crate::settings::{BackendSetting, ServeSettings, TABLES};

/// The settings of `sinews serve`, for a server inside of another event loop. Flags and environment variables are not
/// read, and signals are the program's.
///
/// ```no_run
/// use sinews_cli::ServerConfig;
/// use sinews_server::NextTurn;
///
/// let config = ServerConfig::from_json(r#"{ "history": ["chat.>=100"], "auth": { "secret_file": "token.key" } }"#)?;
/// let mut server = config.with_listen(([127, 0, 0, 1], 0).into()).bind(Ok)?;
/// while server.embedded.turn()? {
///     if let NextTurn::Readable(_time) = server.embedded.next_turn() {
///         // The other loop watches `server.embedded.descriptor()`.
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ServerConfig {
    settings: ServeSettings,
}

/// Why a server cannot be configured or bound.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// A setting is invalid, or names a file that cannot be read. The text names the setting and, of a file, the line.
    Setting(String),
    /// An address cannot be bound, or the system has no thread left.
    System(String),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Setting(text) | Self::System(text)) = self;
        f.write_str(text)
    }
}

impl Error for ServeError {}

impl From<io::Error> for ServeError {
    fn from(error: io::Error) -> Self {
        Self::System(error.to_string())
    }
}

impl ServerConfig {
    /// Reads a configuration file in TOML.
    ///
    /// # Errors
    /// [`ServeError::Setting`].
    pub fn from_file(path: &Path) -> Result<Self, ServeError> {
        ConfigFile::read(path, TABLES).and_then(|file| Self::new(&file)).map_err(ServeError::Setting)
    }

    /// Reads the keys of a configuration file from a JSON object: its tables are objects.
    ///
    /// # Errors
    /// [`ServeError::Setting`].
    pub fn from_json(text: &str) -> Result<Self, ServeError> {
        ConfigFile::from_json(text, TABLES).and_then(|file| Self::new(&file)).map_err(ServeError::Setting)
    }

    fn new(file: &ConfigFile) -> Result<Self, String> {
        let settings = ServeSettings::load_file(&SettingFlags::default(), file)?;
        if let Some(threads) = settings.threads.filter(|threads| threads.get() > 1) {
            return Err(format!("{}: {threads} threads are not possible: {LOOP}", settings.name("threads")));
        }
        if settings.backend == BackendSetting::Uring {
            return Err(format!("{}: uring is not possible: {LOOP}", settings.name("backend")));
        }
        Ok(Self { settings })
    }

    /// Replaces the addresses of the setting `listen` by one.
    #[must_use]
    pub fn with_listen(mut self, address: SocketAddr) -> Self {
        self.settings.listen.listen = vec![ListenEndpoint::Tcp(address)];
        self
    }

    /// Binds the addresses, and starts the threads beside the server, such as those of the stream store. `routes` adds
    /// the program's routes to those of the server.
    ///
    /// # Errors
    /// [`ServeError`]: a setting is invalid, or an address cannot be bound.
    pub fn bind(
        self,
        routes: impl FnOnce(Router) -> Result<Router, ServeError>,
    ) -> Result<WholeServer, ServeError> {
        let settings = self.settings;
        let started = settings.log_filter().map(|filter| log::start_shared(filter, settings.log_format));
        started
            .and_then(|started| started.map_err(|why| format!("{}: {why}", settings.name("log_format"))))
            .map_err(ServeError::Setting)?;
        let access = access_policy(&settings).map_err(ServeError::Setting)?;
        let certificates = settings.certificates().map_err(ServeError::Setting)?;
        let tls = certificates.map(TlsConfig::new).transpose();
        let tls = tls
            .map_err(|error| ServeError::Setting(format!("{}: {error}", settings.name("tls.certificate"))))?;
        raise_descriptor_limit();
        let hub = build_hub(&settings, access, None).map_err(ServeError::Setting)?;
        let router = routes(hub.mount(Router::new()))?;
        let server = assemble(&settings, &hub, router, tls.as_ref())
            .engine(EngineConfig::default().with_backend(BackendChoice::Poll))
            .threads(1)
            .bind()
            .map_err(|error| ServeError::System(explain(&error)))?;
        let hub = hub.start(&server)?;
        let (stop, addresses) = (server.stop_handle(), server.addresses().to_vec());
        Ok(WholeServer { embedded: server.embed()?, hub, stop, addresses })
    }
}

/// Why some settings are not possible.
const LOOP: &str = "the server runs in the program's event loop";

/// A bound server, in parts.
#[derive(Debug)]
#[non_exhaustive]
pub struct WholeServer {
    /// The server. It must be dropped before the hub.
    pub embedded: EmbeddedServer,
    /// The hub, whose [`shut_down`](RunningHub::shut_down) waits for its threads.
    pub hub: RunningHub,
    /// Stops the server.
    pub stop: StopHandle,
    /// The bound addresses.
    pub addresses: Vec<SocketAddr>,
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::thread;

    use sinews_server::Response;

    use super::*;

    #[test]
    fn embedded_server_has_the_routes_of_both_and_ends() {
        let directory = tempfile::tempdir().unwrap();
        let streams = directory.path().display().to_string();
        let config = serde_json::json!({
            "log": "off", "listen": "127.0.0.1:1", "history": ["chat.>=2"],
            "streams": { "directory": streams, "durable_topics": ["orders"] },
            "namespace": { "a.>": { "history": 1 } },
            "pusher": { "app": [{ "id": "1", "key": "k", "secret": "s", "name": "del\u{7f}" }] },
        });
        let config = ServerConfig::from_json(&config.to_string()).unwrap();
        let mut server = config
            .with_listen(([127, 0, 0, 1], 0).into())
            .bind(|router| Ok(router.get("/own", |_| Response::text("own\n"))))
            .unwrap();
        let (address, stop) = (server.addresses[0], server.stop.clone());
        let client = thread::spawn(move || {
            let answers = ["/own", "/healthz", "/streams", "/nowhere"].map(|path| {
                let mut stream = TcpStream::connect(address).unwrap();
                write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    .unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                answer[9..12].to_owned()
            });
            stop.stop();
            answers
        });
        while server.embedded.turn().unwrap() {
            thread::yield_now();
        }
        assert_eq!(client.join().unwrap(), ["200", "200", "200", "404"]);
        drop(server);
        // A directory that is still open would be locked.
        let config = serde_json::json!({ "log": "off", "streams": { "directory": streams } });
        let config = ServerConfig::from_json(&config.to_string()).unwrap();
        drop(config.with_listen(([127, 0, 0, 1], 0).into()).bind(Ok).unwrap());
    }

    #[test]
    fn errors_name_the_setting_or_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sinews.toml");
        let of_file = |text: &str| {
            std::fs::write(&path, text).unwrap();
            ServerConfig::from_file(&path).unwrap_err().to_string()
        };
        let of_json = |text: &str| ServerConfig::from_json(text).unwrap_err().to_string();
        let place = path.display();
        assert_eq!(
            of_file("\nthreads = 2"),
            format!("{place}:2: threads: 2 threads are not possible: {LOOP}")
        );
        assert_eq!(
            of_json("{\"backend\":\"uring\"}"),
            format!("config: backend: uring is not possible: {LOOP}")
        );
        assert_eq!(of_json("{\"a\":{\"b\":null}}"), "config: a.b is null");
        assert_eq!(of_json("{\"a\":[null]}"), "config: a is null");
        assert!(of_json("{\"namespace\":{\"a\":{\"histroy\":1}}}").starts_with("config: "));
        assert!(of_json("[").starts_with("config: "));
        let missing = "{\"auth\":{\"secret_file\":\"/nowhere/secret\"}}";
        let error = ServerConfig::from_json(missing).unwrap().bind(Ok).unwrap_err();
        assert!(error.to_string().starts_with("config: auth.secret_file: /nowhere/secret: "), "{error}");
        let system = "{\"log\":\"off\",\"listen\":\"192.0.2.1:1\"}";
        let error = ServerConfig::from_json(system).unwrap().bind(Ok).unwrap_err();
        assert!(matches!(&error, ServeError::System(text) if text.contains("192.0.2.1:1")), "{error}");
    }
}
