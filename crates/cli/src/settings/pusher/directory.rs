//! A directory whose files each have one table's keys. The files may change while the server runs.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::file::{ConfigFile, ConfigSource, FileSection};
use crate::config::key::Table;

/// Maximum entries in a directory, hidden and ignored entries included: each costs a system call a second.
const ENTRIES_MAX: usize = 20_000;

/// Maximum file size in bytes: an app with all keys has about 4 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// File suffix, without the dot.
const SUFFIX: &str = "toml";

/// The names, sizes, times and inodes of a directory's files, or the error from reading the directory, as a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectoryState(u64);

/// An app directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppDirectory {
    path: PathBuf,
    /// The state before the files were read.
    state: DirectoryState,
}

impl AppDirectory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, state: DirectoryState::default() }
    }

    /// Lists the files, and reads each with one list element's keys. The directory's state is that of this call, also
    /// after an error.
    ///
    /// # Errors
    /// The directory cannot be read. Each file has its own error.
    pub(super) fn read(
        &mut self,
        schema: &'static Table,
    ) -> Result<impl Iterator<Item = Result<FileSection, String>> + use<>, String> {
        let listed = list(&self.path);
        self.state = state(&listed);
        let files = listed.map_err(|error| format!("{}: {error}", self.path.display()))?;
        Ok(files.into_iter().map(move |path| {
            let text = read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            ConfigFile::parse_element(&text, &ConfigSource::File(path), schema)
        }))
    }

    /// The state at this moment.
    pub(crate) fn current_state(&self) -> DirectoryState {
        state(&list(&self.path))
    }

    /// Whether the files were read in this state.
    pub(crate) fn has_state(&self, state: DirectoryState) -> bool {
        self.state == state
    }
}

/// Returns a listed directory's state.
fn state(listed: &io::Result<Vec<PathBuf>>) -> DirectoryState {
    let mut hasher = DefaultHasher::new();
    match listed {
        Ok(files) => files.iter().for_each(|path| hash(path, &mut hasher)),
        Err(error) => error.to_string().hash(&mut hasher),
    }
    DirectoryState(hasher.finish())
}

/// Returns the paths of the files with the suffix, in order; hidden files are ignored.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (count, entry) in (1..).zip(fs::read_dir(directory)?) {
        if count > ENTRIES_MAX {
            return Err(io::Error::other(format!("more than {ENTRIES_MAX} entries")));
        }
        let name = entry?.file_name();
        let path = directory.join(&name);
        if path.extension() == Some(OsStr::new(SUFFIX)) && !name.as_encoded_bytes().starts_with(b".") {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Adds a file to the state. Links are followed. The inode's change time also changes with permissions, and if a copy
/// has the former modification time.
fn hash(path: &Path, hasher: &mut DefaultHasher) {
    let of = |found: Metadata| {
        let modified = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
        (found.dev(), found.ino(), found.mode(), found.len(), modified)
    };
    (path, fs::metadata(path).map(of).map_err(|error| error.kind())).hash(hasher);
}

fn read(path: &Path) -> io::Result<String> {
    // A pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("this is not a file"));
    }
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "the file exceeds the limit of {FILE_BYTES_MAX} bytes for an app"
        )));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;
    use crate::settings::ServeSettings;
    use crate::settings::pusher::PusherSettings;
    use crate::settings::tests::settings;

    const KEY: &str = "pusher.apps_directory";

    fn app(id: &str) -> String {
        format!("id = \"{id}\"\nkey = \"key-{id}\"\nsecret = \"hidden\"\n")
    }

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn has_changed(apps: &PusherSettings) -> bool {
        let directory = apps.directory().unwrap();
        !directory.has_state(directory.current_state())
    }

    fn write(directory: &Path, name: &str, text: &str) {
        fs::write(directory.join(name), text).unwrap();
    }

    /// Returns the settings with this directory, and a configuration file's text; the directory is read.
    fn read_with(directory: &Path, file: &str) -> (PusherSettings, Result<(), String>) {
        let flag = format!("--pusher-apps-directory={}", directory.display());
        let ServeSettings { mut pusher, .. } = settings(&[&flag], file).unwrap();
        let read = pusher.read_directory(KEY);
        (pusher, read)
    }

    #[test]
    fn each_file_is_an_app_and_other_files_are_ignored() {
        let directory = directory();
        let at = directory.path();
        write(at, "b.toml", &app("2"));
        write(at, "a.toml", &app("1"));
        for ignored in [".a.toml", ".#a.toml", "a.toml~", "a.toml.swp", "#a.toml#", "4913", "README"] {
            write(at, ignored, "no = TOML");
        }
        fs::create_dir(at.join("toml")).unwrap();
        let (apps, read) = read_with(at, "[[pusher.app]]\nid = \"3\"\nkey = \"c\"\nsecret = \"d\"\n");
        read.unwrap();
        assert_eq!(apps.len(), 3);
        assert!(!apps.apps().unwrap().is_empty());
        let locations: Vec<_> = apps.all().map(|app| app.location.rsplit('/').next().unwrap()).collect();
        assert_eq!(locations, ["sinews.toml:1", "a.toml:1", "b.toml:1"]);
        assert!(!format!("{apps:?}").contains("hidden"), "secrets are not shown");
        assert!(!has_changed(&apps));
    }

    #[test]
    fn invalid_files_are_reported_with_their_path_and_line() {
        let directory = directory();
        let (at, path) = (directory.path(), directory.path().join("a.toml"));
        let long = format!("{}#{}", app("1"), "x".repeat(FILE_BYTES_MAX as usize));
        for (text, expected) in [
            ("id = \"1\"\nids = \"1\"", ":2: unknown key ids; did you mean id?".to_owned()),
            ("id = \"1\"\nzzzzzzzzz = 1", ":2: unknown key zzzzzzzzz".to_owned()),
            ("\nclient_events = \"yes\"", ":2: client_events must be true or false, not \"yes\"".to_owned()),
            ("secret = 5", ":1: secret must be a string".to_owned()),
            ("id = \"1", ":1: ".to_owned()),
            ("", ":1: pusher.app needs an id".to_owned()),
            (
                "\n[[pusher.app]]\nid = \"1\"",
                ":2: the file has the keys of one table, without the header [[pusher.app]]".to_owned(),
            ),
            (&long, format!(": the file exceeds the limit of {FILE_BYTES_MAX} bytes for an app")),
        ] {
            write(at, "a.toml", text);
            let fault = read_with(at, "").1.unwrap_err();
            assert!(fault.starts_with(&format!("{}{expected}", path.display())), "{fault}");
            assert_eq!(fault.lines().count(), 1, "{fault}");
        }
        write(at, "a.toml", &app("a b"));
        let fault = read_with(at, "").0.apps().unwrap_err();
        let expected = format!("{}:1: pusher.app: app \"a b\": the id has", path.display());
        assert!(fault.starts_with(&expected), "{fault}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(read_with(at, "").1.unwrap_err(), format!("{}: this is not a file", path.display()));
        let missing = read_with(&at.join("none"), "").1.unwrap_err();
        assert!(missing.starts_with(&format!("{KEY}: {}/none: ", at.display())), "{missing}");
    }

    #[test]
    fn ids_and_keys_of_two_files_are_an_error_that_names_both() {
        let directory = directory();
        let at = directory.path();
        write(at, "a.toml", &app("1"));
        write(at, "b.toml", &app("2").replace("key-2", "key-1"));
        let fault = read_with(at, "").1.unwrap_err();
        let (a, b) = (at.join("a.toml"), at.join("b.toml"));
        let (a, b) = (a.display(), b.display());
        assert_eq!(fault, format!("{b}:1: pusher.app: the key \"key-1\" is also that of the app at {a}:1"));
        fs::remove_file(at.join("b.toml")).unwrap();
        let fault = read_with(at, &format!("\n[[pusher.app]]\n{}", app("1"))).1.unwrap_err();
        assert_eq!(
            fault,
            format!("{a}:1: pusher.app: the id \"1\" is also that of the app at sinews.toml:2")
        );
    }

    #[test]
    fn overlapping_topics_of_two_files_are_an_error_that_names_both() {
        let directory = directory();
        let at = directory.path();
        let (a, b) = (at.join("a.toml"), at.join("b.toml"));
        let (a, b) = (a.display(), b.display());
        for (topics_a, topics_b, expected) in [
            (
                "chat",
                "chat",
                format!(
                    "{b}:1: pusher.app: topics = \"chat\" overlaps topics = \"chat\" of the app at {a}:1"
                ),
            ),
            (
                "chat",
                "chat.eu.x",
                format!(
                    "{b}:1: pusher.app: topics = \"chat.eu.x\" overlaps topics = \"chat\" of the app at {a}:1"
                ),
            ),
            (
                "chat.eu",
                "chat",
                format!(
                    "{a}:1: pusher.app: topics = \"chat.eu\" overlaps topics = \"chat\" of the app at {b}:1"
                ),
            ),
        ] {
            write(at, "a.toml", &format!("{}topics = {topics_a:?}\n", app("1")));
            write(at, "b.toml", &format!("{}topics = {topics_b:?}\n", app("2")));
            assert_eq!(read_with(at, "").1.unwrap_err(), expected);
        }
        write(at, "b.toml", &format!("{}topics = \"chat.eux\"\n", app("2")));
        read_with(at, "").1.unwrap();
    }

    #[test]
    fn every_change_of_the_files_is_noticed_once() {
        let directory = directory();
        let at = directory.path();
        let (mut apps, read) = read_with(at, "");
        read.unwrap();
        let mut changed = |what: &str, is_valid: bool| {
            assert!(has_changed(&apps), "{what}");
            assert_eq!(apps.read_directory(KEY).is_ok(), is_valid, "{what}");
            assert!(!has_changed(&apps), "{what}: noticed once");
            apps.len()
        };
        write(at, "a.toml", &app("1"));
        assert_eq!(changed("a new file", true), 1);
        write(at, "a.toml", "faulty");
        changed("a faulty file", false);
        write(at, "a.toml", &app("3"));
        changed("another size", true);
        let path = at.join("a.toml");
        let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        File::options().append(true).open(&path).unwrap().set_times(times).unwrap();
        changed("another time", true);
        write(at, ".next", &app("4"));
        File::options().append(true).open(at.join(".next")).unwrap().set_times(times).unwrap();
        fs::rename(at.join(".next"), &path).unwrap();
        changed("a renamed file of the same size and time", true);
        fs::rename(&path, at.join("b.toml")).unwrap();
        changed("another name", true);
        fs::remove_file(at.join("b.toml")).unwrap();
        assert_eq!(changed("a removed file", true), 0);
    }

    #[test]
    fn number_of_entries_is_limited() {
        let directory = directory();
        let at = directory.path();
        for number in 0..ENTRIES_MAX {
            write(at, &format!(".{number}"), "");
        }
        read_with(at, "").1.unwrap();
        write(at, "a.toml", &app("1"));
        let fault = read_with(at, "").1.unwrap_err();
        assert_eq!(fault, format!("{KEY}: {}: more than {ENTRIES_MAX} entries", at.display()));
    }

    /// As Kubernetes mounts a secret: links to files in a directory, which is a link that is replaced.
    #[test]
    fn replaced_links_are_noticed() {
        let directory = directory();
        let at = directory.path();
        for version in ["..1", "..2"] {
            fs::create_dir(at.join(version)).unwrap();
            write(&at.join(version), "a.toml", &app(&version[2..]));
        }
        symlink("..1", at.join("..data")).unwrap();
        symlink("..data/a.toml", at.join("a.toml")).unwrap();
        let (mut apps, read) = read_with(at, "");
        read.unwrap();
        assert!(!has_changed(&apps));
        symlink("..2", at.join("..next")).unwrap();
        fs::rename(at.join("..next"), at.join("..data")).unwrap();
        assert!(has_changed(&apps));
        apps.read_directory(KEY).unwrap();
        assert_eq!(apps.all().next().unwrap().keys.id.as_deref(), Some("2"));
        let (_, read) = read_with(&at.join("..data"), "");
        read.unwrap();
        fs::remove_file(at.join("..data")).unwrap();
        assert!(has_changed(&apps) && apps.read_directory(KEY).is_err() && !has_changed(&apps));
    }
}
