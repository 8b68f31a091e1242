//! Signals, and settings that change while the server runs.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use sinews_hub::{ConfigHandle, Handover};
use sinews_server::{StopHandle, TlsConfig, redact_urls};

use super::notify::{ServiceState, notify};
use super::options::access_policy;
use crate::log::SetFilter;
use crate::settings::{ServeArgs, ServeSettings};

/// Reloads the configuration.
pub(super) struct Reloader {
    pub(super) args: ServeArgs,
    /// Settings at the start, updated with reloaded values.
    pub(super) settings: ServeSettings,
    pub(super) live: ConfigHandle,
    pub(super) tls: Option<TlsConfig>,
    pub(super) log: SetFilter,
    /// Whether a thread watches the app directory.
    pub(super) watches_apps: bool,
    /// Hashes of the files whose content needs a restart, at the start.
    pub(super) restart_hashes: BTreeMap<&'static str, u64>,
}

/// Watches signals and the app directory, and reloads, each on a thread. `signals` has SIGHUP.
///
/// # Errors
/// A signal handler or a thread cannot be started.
pub(super) fn watch(
    mut signals: Signals,
    stop: StopHandle,
    reloader: Reloader,
    handover: Handover,
) -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGUSR2] {
        signals.add_signal(signal)?;
    }
    let reloader = Arc::new(Mutex::new(reloader));
    watch_apps(&reloader)?;
    let (reload, reloads) = sync_channel(RELOADS_MAX);
    // A file may be slow, or a FIFO without a writer: other signals do not wait for it.
    thread::Builder::new().name("reload".to_owned()).spawn(move || {
        for () in reloads {
            reload_all(&reloader);
        }
    })?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut stopping = false;
        for signal in signals.forever() {
            if signal == SIGHUP {
                if reload.try_send(()).is_err() {
                    tracing::warn!(
                        "SIGHUP: the reload before this one still reads files; another one follows it"
                    );
                }
            } else if signal == SIGUSR2 {
                handover.start();
            } else if std::mem::replace(&mut stopping, true) {
                stop.stop_now();
                break;
            } else {
                handover.abandon();
                if !handover.has_successor() {
                    // After a handover, the notification would stop the successor.
                    notify(ServiceState::Stopping);
                }
                stop.stop();
                tracing::info!("stopping; a second signal stops at once");
            }
        }
    })?;
    Ok(())
}

/// Reloads that wait: one reads all that changes until it starts.
const RELOADS_MAX: usize = 1;

/// Reloads everything, and notifies the service manager.
fn reload_all(reloader: &Arc<Mutex<Reloader>>) {
    notify(ServiceState::Reloading);
    lock(reloader).run();
    if let Err(error) = watch_apps(reloader) {
        tracing::error!("thread of pusher.apps_directory: {error}");
    }
    notify(ServiceState::Ready);
}

fn lock(reloader: &Mutex<Reloader>) -> MutexGuard<'_, Reloader> {
    reloader.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Interval between two looks at the app directory. A look costs a system call for each file: 10,000 files cost about
/// five percent of a processor.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Time without a change before the files are read, so that an app that is half written, or that moves from one file to
/// another, is no error.
const SETTLE_TIME: Duration = Duration::from_millis(200);

/// Maximum number of these times, for a directory that changes all the time.
const SETTLE_LOOKS: usize = 3;

/// Starts the thread that watches the app directory, if there is a directory and no thread.
fn watch_apps(reloader: &Arc<Mutex<Reloader>>) -> io::Result<()> {
    let mut guard = lock(reloader);
    if guard.watches_apps || guard.settings.pusher.directory().is_none() {
        return Ok(());
    }
    let watched = Arc::clone(reloader);
    thread::Builder::new().name("apps".to_owned()).spawn(move || {
        while look_at_apps(&watched) {
            thread::sleep(LOOK_INTERVAL);
        }
    })?;
    guard.watches_apps = true;
    Ok(())
}

/// Reads the app directory again if it has changed. Returns whether there still is a directory.
fn look_at_apps(reloader: &Mutex<Reloader>) -> bool {
    let directory = {
        let mut guard = lock(reloader);
        let directory = guard.settings.pusher.directory().cloned();
        guard.watches_apps = directory.is_some();
        directory
    };
    let Some(directory) = directory else { return false };
    // Without the lock, for which a reload by signal would wait: the directory may be slow.
    let mut state = directory.current_state();
    if directory.has_state(state) {
        return true;
    }
    for _ in 0..SETTLE_LOOKS {
        thread::sleep(SETTLE_TIME);
        if std::mem::replace(&mut state, directory.current_state()) == state {
            break;
        }
    }
    lock(reloader).reload_apps();
    true
}

impl Reloader {
    /// Reloads everything, and logs the result.
    fn run(&mut self) {
        match self.try_run() {
            Ok(restart) if restart.is_empty() => {
                tracing::info!("the configuration has been read again: {}", self.reloaded());
            }
            Ok(restart) => tracing::warn!(
                "the configuration has been read again ({}), but some changes take effect only by SIGUSR2 (handover to a successor \
                 process): this needs a restart: {}",
                self.reloaded(),
                restart.join(", ")
            ),
            Err(problem) => {
                tracing::error!(
                    "the configuration is invalid and was not applied: {}",
                    redact_urls(&problem)
                );
            }
        }
    }

    /// Lists the files that a reload reads. Flags and variables cannot change.
    fn reloaded(&self) -> String {
        let config = self.args.config.iter().map(|path| format!("--config {}", path.display()));
        let files: Vec<String> = config.chain(self.settings.files.reloaded()).collect();
        if files.is_empty() {
            return "no setting names a file that can be reloaded".to_owned();
        }
        files.join(", ")
    }

    /// Reloads. Returns the settings that need a restart.
    fn try_run(&mut self) -> Result<Vec<&'static str>, String> {
        let new = ServeSettings::load(&self.args)?;
        let (filter, policy) = (new.log_filter()?, access_policy(&new)?);
        let certificates = new.certificates()?;
        let mut restart = self.settings.needs_restart(&new);
        let hashes = new.files.restart_hashes();
        let is_changed = |key: &&'static str| self.restart_hashes.get(key) != hashes.get(key);
        let changed = hashes.keys().copied().filter(is_changed).filter(|key| !restart.contains(key));
        let changed: Vec<_> = changed.collect();
        restart.extend(changed);
        if let (Some(tls), Some(certificates)) = (&self.tls, certificates) {
            tls.replace(certificates).map_err(|error| error.to_string())?;
        }
        if new.log != self.settings.log {
            (self.log)(filter)?;
            self.settings.log = new.log;
        }
        self.live.replace(policy);
        self.settings.pusher = new.pusher;
        self.settings.files = new.files;
        Ok(restart)
    }

    /// Reads the app directory again, and logs the result. The other settings are those in force.
    fn reload_apps(&mut self) {
        let mut new = self.settings.pusher.clone();
        let read = new.read_directory("pusher.apps_directory");
        let applied = read.and_then(|()| {
            let apps = new.apps()?;
            self.live.replace_pusher(&apps).map_err(|error| error.to_string())
        });
        match applied {
            Ok(()) => {
                tracing::info!(apps = new.len(), "the apps have been read again");
                self.settings.pusher = new;
            }
            Err(problem) => {
                tracing::error!("the apps are invalid and were not applied: {}", redact_urls(&problem));
                self.settings.pusher.note_state(&new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::serve::options::build_hub;
    use crate::settings::tests::settings;

    #[test]
    fn faulty_directory_is_reported_once_and_the_former_apps_remain() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        let app = |id: &str| format!("id = \"{id}\"\nkey = \"key-{id}\"\nsecret = \"s\"\n");
        write("a.toml", &app("1"));
        let flag = format!("--pusher-apps-directory={}", directory.path().display());
        let mut settings = settings(&[&flag], "").unwrap();
        settings.pusher.read_directory("").unwrap();
        let hub = build_hub(&settings, access_policy(&settings).unwrap(), None).unwrap();
        let (args, live) = (ServeArgs::default(), hub.config());
        let log: SetFilter = Box::new(|_| Ok(()));
        let restart_hashes = BTreeMap::new();
        let mut reloader =
            Reloader { args, settings, live, tls: None, log, watches_apps: false, restart_hashes };
        let is_current = |reloader: &Reloader| {
            let directory = reloader.settings.pusher.directory().unwrap();
            directory.has_state(directory.current_state())
        };
        assert!(is_current(&reloader));
        for (text, apps) in [("no = 1".to_owned(), 1), (app("1"), 1), (app("a b"), 1), (app("2"), 2)] {
            write("b.toml", &text);
            assert!(!is_current(&reloader), "{text}");
            reloader.reload_apps();
            assert!(is_current(&reloader), "{text}: read once");
            assert_eq!(reloader.settings.pusher.len(), apps, "{text}");
        }
    }
}
