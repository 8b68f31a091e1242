use std::num::NonZeroU64;
use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use parking_lot::Mutex;
use sinews_server::{
    BoundServer, KeyError, KeyReplication, KeySnapshot, KeyWrite, KeyWritten, LoggedChange, Prepared, Router,
    Server,
};
use sinews_stream::record::{RecordBuilder, ValueKind};
use sinews_stream::{Fsync, StreamsConfig};
use tempfile::TempDir;

use super::*;
use crate::model::problem::{code, problem};
use crate::topics::shared_keys::{KeyWriteOutcome, LoadingKeys};

/// The owners of all topics: this claim.
#[derive(Debug, Default)]
struct OneClaim(Mutex<Option<Claim>>, AtomicUsize);

impl SharedKeys for OneClaim {
    fn write(
        &self,
        _: &str,
        write: KeyWrite,
        write_here: &mut dyn FnMut(&KeyWrite) -> Result<KeyWritten, KeyError>,
    ) -> KeyWriteOutcome {
        KeyWriteOutcome::Done(write_here(&write).map_err(|error| problem(code::STORE, error.to_string())))
    }

    fn check_ready(&self, _: &str) -> Result<(), Problem> {
        Ok(())
    }

    fn loading(&self, _: &str) -> Option<LoadingKeys> {
        None
    }

    fn inherit(&self, _: String, _: Claim) {}

    fn claim(&self, _: &str) -> Option<Claim> {
        *self.0.lock()
    }

    fn wake(&self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

impl KeyReplication for OneClaim {
    fn changed(&self, _: &Arc<str>) {}

    fn emptied(&self, _: &Arc<str>) {}
}

/// A server with replicas in a directory, without the thread.
struct Node {
    _server: BoundServer,
    publisher: Publisher,
    owners: Arc<OneClaim>,
    replicas: Arc<KeyReplicas>,
    streams: Streams,
}

impl Node {
    fn start(directory: &TempDir) -> Self {
        let owners = Arc::new(OneClaim::default());
        let server = Server::new(Router::new())
            .keyed_topics(|_| Prepared::text(""))
            .key_replication(Arc::clone(&owners) as Arc<dyn KeyReplication>)
            .threads(1)
            .listen(([127, 0, 0, 1], 0).into())
            .bind()
            .unwrap();
        let publisher = server.publisher();
        let config = StreamConfig::default().with_fsync(Fsync::Never);
        let replicas =
            Arc::new(KeyReplicas::new(PatternSet::from(vec![">".to_owned()]), &config, Arc::default()));
        replicas.attach(publisher.clone(), Arc::downgrade(&owners) as Weak<dyn SharedKeys>);
        let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
        replicas.load(&streams);
        Self { _server: server, publisher, owners, replicas, streams }
    }

    /// Starts again with the directory.
    fn restart(self, directory: &TempDir) -> Self {
        self.streams.close();
        Self::start(directory)
    }

    fn own(&self, term: u32, epoch: u64) -> Claim {
        let claim = Claim { term, epoch, owner: 7 };
        *self.owners.0.lock() = Some(claim);
        self.publisher.own_keyed_topic("t", epoch).unwrap();
        claim
    }

    fn set(&self, key: &str, value: impl Into<Bytes>) {
        self.publisher.write_key("t", &KeyWrite::set(key, value)).unwrap();
    }

    fn store(&self) {
        self.replicas.changed(&"t".into());
        while self.replicas.store_changes(Instant::now()) {}
        assert!(self.replicas.fault("t").is_none());
    }

    fn keys(&self) -> Vec<(String, u64)> {
        let keys = self.publisher.shared_keyed_topic("t").unwrap().keys;
        keys.into_iter().filter(|key| key.value.is_some()).map(|key| (key.key, key.version)).collect()
    }

    fn partition(&self) -> Partition {
        single_partition(&self.streams.find("*.replicas.t").unwrap().unwrap()).unwrap()
    }
}

/// A key of the program.
fn stored_key(key: &str, version: u64, value: Bytes) -> KeySnapshot {
    KeySnapshot { key: key.to_owned(), version, value: Some(value), ..KeySnapshot::default() }
}

fn named<const N: usize>(keys: [(&str, u64); N]) -> Vec<(String, u64)> {
    keys.map(|(key, version)| (key.to_owned(), version)).into()
}

#[test]
fn replica_is_read_back_with_its_claim_and_sequence() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory);
    let claim = node.own(3, 900);
    node.set("a", "1");
    node.set("b", "2");
    node.store();
    assert!(node.replicas.is_stored("t", Position { epoch: 900, sequence: 2 }));
    assert!(!node.replicas.is_stored("t", Position { epoch: 900, sequence: 3 }));
    assert!(!node.replicas.is_stored("t", Position { epoch: 901, sequence: 1 }), "another epoch");
    let write = KeyWrite::set("a", "3").with_client(NonZeroU64::MAX);
    node.publisher.write_key("t", &write).unwrap();
    node.publisher.write_key("t", &KeyWrite::delete("b")).unwrap();
    node.store();
    let node = node.restart(&directory);
    assert_eq!(node.replicas.take_restored(), [("t".to_owned(), claim)]);
    assert_eq!(node.keys(), named([("a", 3)]));
    let keys = node.publisher.shared_keyed_topic("t").unwrap().keys;
    assert_eq!(keys[0].client, Some(NonZeroU64::MAX), "it counts toward the share of its client");
    assert_eq!(node.publisher.keyed_position("t"), Some(Position { epoch: 900, sequence: 4 }));
    assert_eq!(node.publisher.shared_keyed_topic("t").unwrap().forgotten, 4, "the removal is not known");
}

#[test]
fn incomplete_keys_of_another_claim_are_ignored_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory);
    let claim = node.own(1, 900);
    node.set("a", "1");
    node.set("b", "2");
    node.store();
    // The process ends in the middle of another claim's keys.
    let key = |key: &str| stored_key(key, 9, "x".into());
    append(&node.partition(), encode(&[key("a"), key("c")], 2, None).unwrap()).unwrap();
    let node = node.restart(&directory);
    assert_eq!(node.replicas.take_restored(), [("t".to_owned(), claim)]);
    assert_eq!(node.keys(), named([("a", 1), ("b", 2)]));
    // The next claim is another generation, and nothing is left of the earlier ones.
    let claim = node.own(2, 901);
    node.publisher.write_key("t", &KeyWrite::delete("b")).unwrap();
    node.store();
    assert_eq!(load::read(&node.partition()).unwrap().leftovers().count(), 0);
    let node = node.restart(&directory);
    assert_eq!(node.replicas.take_restored(), [("t".to_owned(), claim)]);
    assert_eq!(node.keys(), named([("a", 1)]), "no deleted key returns");
}

#[test]
fn large_topic_takes_several_batches() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory);
    node.own(1, 900);
    for number in 0..60 {
        node.set(&format!("k{number}"), vec![b'x'; 50_000]);
    }
    // All keys at once, and then as changes.
    node.store();
    for number in 0..60 {
        node.set(&format!("k{number}"), vec![b'y'; 50_000]);
    }
    node.store();
    let before = node.keys();
    let node = node.restart(&directory);
    assert_eq!((node.keys(), before.len()), (before, 60));
}

/// Appends a record that is not a replica's record.
fn append_damage(partition: &Partition) {
    let mut records = RecordBuilder::new();
    records.push(1, b"?", b"", ValueKind::Text).unwrap();
    append(partition, records.finish().unwrap()).unwrap();
}

/// Creates a stream before the node starts.
fn create(directory: &TempDir, name: &str) -> (Streams, Partition) {
    let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
    let stream = streams.create(name, &StreamConfig::default().with_fsync(Fsync::Never)).unwrap();
    let partition = single_partition(&stream).unwrap();
    (streams, partition)
}

#[test]
fn replica_without_its_state_has_a_fault() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, partition) = create(&directory, "*.replicas.t");
    append_damage(&partition);
    streams.close();
    let node = Node::start(&directory);
    assert!(node.replicas.take_restored().is_empty());
    assert!(node.replicas.is_unreadable("t"));
    let fault = node.replicas.fault("t").unwrap();
    assert!(fault.text.contains("is damaged"), "{}", fault.text);
}

#[test]
fn incomplete_generations_do_not_add_up() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory);
    let claim = node.own(1, 900);
    node.set("a", "1");
    node.store();
    // A process that has ended five times in the middle of another claim's keys.
    for generation in 2..7 {
        let keys: Vec<KeySnapshot> =
            (1..=10_000).map(|number| stored_key(&format!("k{number}"), number, "x".into())).collect();
        append(&node.partition(), encode(&keys, generation, None).unwrap()).unwrap();
    }
    let node = node.restart(&directory);
    assert_eq!(node.replicas.take_restored(), [("t".to_owned(), claim)]);
    assert_eq!(node.keys(), named([("a", 1)]));
    assert_eq!(
        load::read(&node.partition()).unwrap().leftovers().count(),
        0,
        "they are removed at the start"
    );
}

#[test]
fn rewrites_do_not_delay_batches_of_other_topics() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory);
    node.own(1, 900);
    node.set("a", "1");
    node.store();
    node.set("a", "2");
    for topic in ["t1", "t2", "z"] {
        node.publisher.own_keyed_topic(topic, 900).unwrap();
        node.publisher.write_key(topic, &KeyWrite::set("k", "1")).unwrap();
    }
    ["t", "t1", "t2", "z"].into_iter().for_each(|topic| node.replicas.changed(&topic.into()));
    let is_stored = |topic: &str| {
        let position = node.publisher.keyed_position(topic).unwrap();
        node.replicas.is_stored(topic, position)
    };
    let before = node.owners.1.load(Ordering::SeqCst);
    assert!(node.replicas.store_changes(Instant::now()));
    assert_eq!(["t", "t1", "t2", "z"].map(is_stored), [true, true, false, false]);
    assert_eq!(node.owners.1.load(Ordering::SeqCst) - before, 2, "the first batch ends before the rewrite");
    while node.replicas.store_changes(Instant::now()) {}
    assert_eq!(["t", "t1", "t2", "z"].map(is_stored), [true; 4]);
}

#[test]
fn damaged_replica_is_behind_all_others() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory);
    node.own(5, 900);
    node.set("a", "1");
    node.store();
    append_damage(&node.partition());
    let node = node.restart(&directory);
    let restored = node.replicas.take_restored();
    assert_eq!(restored, [("t".to_owned(), Claim { term: 0, epoch: 900, owner: 7 })]);
    assert_eq!(node.keys(), named([("a", 1)]));
    // Until the keys are whole again for certain.
    let mut node = node;
    for (epoch, term) in [(901, 0), (902, 2)] {
        node.own(2, epoch);
        node.store();
        node = node.restart(&directory);
        assert_eq!(node.replicas.take_restored()[0].1.term, term);
    }
}

#[test]
fn keys_of_a_server_without_a_cluster_are_taken_along() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
    let stream = streams.create("*.keys.t", &StreamConfig::default().with_fsync(Fsync::Never)).unwrap();
    let epoch = stream.created();
    let value = Bytes::from("\"data\":1");
    for change in [LoggedChange::set("a", &value), LoggedChange::set("b", &value), LoggedChange::removal("a")]
    {
        append(&single_partition(&stream).unwrap(), durable_keys::encode(&change).unwrap()).unwrap();
    }
    // The first start in a cluster has ended before the replica was complete.
    let replica = streams.create("*.replicas.t", &StreamConfig::default().with_fsync(Fsync::Never)).unwrap();
    let key = stored_key("b", 2, value);
    append(&single_partition(&replica).unwrap(), encode(&[key], 1, None).unwrap()).unwrap();
    streams.close();
    let node = Node::start(&directory);
    let claim = Claim { term: 1, epoch, owner: 0 };
    assert_eq!(node.replicas.take_restored(), [("t".to_owned(), claim)]);
    assert_eq!((node.keys(), node.publisher.keyed_position("t").unwrap().sequence), (named([("b", 2)]), 3));
    node.own(2, epoch + 1);
    node.set("c", "1");
    node.store();
    // From now on the replica counts.
    let node = node.restart(&directory);
    assert_eq!(node.keys(), named([("b", 2), ("c", 4)]));
}

#[test]
fn directory_has_an_id_and_remembers_the_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory);
    let id = node.replicas.node().unwrap();
    assert_eq!(node.replicas.members(), [id]);
    node.replicas.set_members(vec![1, id, u64::MAX]);
    node.replicas.store_changes(Instant::now());
    let node = node.restart(&directory);
    assert_eq!((node.replicas.node(), node.replicas.members()), (Some(id), vec![1, id, u64::MAX]));
    let other = tempfile::tempdir().unwrap();
    assert_ne!(Node::start(&other).replicas.node(), Some(id));
}

#[test]
fn thread_stores_all_batches_before_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(&directory);
    node.own(1, 900);
    node.set("k0", "1");
    node.store();
    for number in 0..60 {
        node.set(&format!("k{number}"), vec![b'x'; 50_000]);
    }
    node.replicas.changed(&"t".into());
    let owners = Arc::downgrade(&node.owners) as Weak<dyn SharedKeys>;
    node.replicas.start(node.publisher.clone(), owners).unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    let replicas = Arc::clone(&node.replicas);
    // The thread wakes itself after each of several batches, while this one waits.
    let finishing = thread::spawn(move || {
        replicas.finish();
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(30)).expect("the thread ends");
    finishing.join().unwrap();
    assert!(node.replicas.is_stored("t", node.publisher.keyed_position("t").unwrap()));
}
