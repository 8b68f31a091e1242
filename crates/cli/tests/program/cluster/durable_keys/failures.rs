//! Durable keys over three nodes at the broker that `cargo xtask brokers` has started, while clients write at each node,
//! and nodes and the broker fail.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::super::real::broker::{control, unused_name, url};
use super::{DurableNodes, keys, put, until};
use crate::support::{Running, TIMEOUT, parsed};

/// Keys of each writer.
const KEYS: u64 = 5;

/// Writes that a writer completes while a fault lasts.
const WRITES: u64 = 20;

/// The values that a key may have: the last one that was acknowledged, and those after it whose write has failed. `None`:
/// the key does not exist.
type PossibleValues = BTreeMap<String, Vec<Option<u64>>>;

fn start() -> DurableNodes {
    DurableNodes::start(url(&format!("prefix={}", unused_name("durable"))), 3)
}

/// Sends a request on a new connection; the server may end meanwhile.
fn try_request(address: SocketAddr, head: &str, body: &str) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let len = body.len();
    write!(
        stream,
        "{head}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\
         Connection: close\r\n\r\n{body}"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    if !text.contains("\r\n\r\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(parsed(&text))
}

/// Writes and deletes keys of its own, one after the other, and notes what was acknowledged.
fn write_until(
    is_over: &AtomicBool,
    acknowledged: &AtomicU64,
    (topic, name): (&str, &str),
    node: SocketAddr,
) -> PossibleValues {
    let mut possible = PossibleValues::new();
    for number in 0.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let key = format!("{name}{}", number % KEYS);
        let path = format!("/topics/{topic}/keys/{key}");
        // The key of every sixth write is removed.
        let value = (number % 6 != 5).then_some(number);
        let outcome = match value {
            Some(number) => try_request(node, &format!("PUT {path} HTTP/1.1"), &number.to_string()),
            None => try_request(node, &format!("DELETE {path} HTTP/1.1"), ""),
        };
        let values = possible.entry(key).or_insert_with(|| vec![None]);
        match outcome {
            Ok((200, _)) => {
                *values = vec![value];
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            // The write may have been applied.
            Ok((503, _)) => {
                values.push(value);
                thread::park_timeout(Duration::from_millis(20));
            }
            Ok((status, body)) => panic!("status {status}: {body}"),
            // The node is killed.
            Err(_) => {
                values.push(value);
                break;
            }
        }
    }
    possible
}

/// Writes at all nodes while `fault` runs, and until each writer in `survivors` has gone on afterwards. Returns what the
/// keys of the writers may be.
fn write_during(
    nodes: &mut DurableNodes,
    (topic, survivors): (&str, &[usize]),
    fault: impl FnOnce(&mut DurableNodes, &dyn Fn(&str)),
) -> PossibleValues {
    let is_over = AtomicBool::new(false);
    let counts = [(); 3].map(|()| AtomicU64::new(0));
    let addresses: Vec<SocketAddr> = (0..3).map(|at| nodes.node(at).address).collect();
    let wait_for_writes = |what: &str| {
        let before: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        for at in survivors {
            until(what, || counts[*at].load(Ordering::SeqCst) >= before[*at] + WRITES);
        }
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (addresses.iter().zip(&counts).zip(["a", "b", "c"]))
            .map(|((node, count), name)| {
                let is_over = &is_over;
                scope.spawn(move || write_until(is_over, count, (topic, name), *node))
            })
            .collect();
        wait_for_writes("writes are acknowledged before the fault");
        fault(nodes, &wait_for_writes);
        wait_for_writes("writes are acknowledged after the fault");
        is_over.store(true, Ordering::SeqCst);
        writers.into_iter().flat_map(|writer| writer.join().expect("the writer has not failed")).collect()
    })
}

/// The keys of a node with their versions.
fn versions(node: &Running, topic: &str) -> Option<Vec<(String, u64, Value)>> {
    let (status, page) = parsed(&node.get(&format!("/topics/{topic}/keys")));
    let keys = page["keys"].as_array().filter(|_| status == 200)?;
    let version = |key: &Value| key["version"].as_u64().unwrap();
    Some(
        keys.iter()
            .map(|key| (key["key"].as_str().unwrap().to_owned(), version(key), key["data"].clone()))
            .collect(),
    )
}

/// Waits until all nodes have the same keys, after a last write at each of them. Each key has a value that it may have.
fn agree(nodes: &DurableNodes, topic: &str, possible: &PossibleValues) {
    let marks: Vec<Value> =
        (0..3).map(|at| nodes.put_when_owned(at, &format!("{topic}/keys/mark{at}"), "0")).collect();
    let last = marks.iter().map(|mark| mark["seq"].as_u64().unwrap()).max().unwrap();
    let mut agreed = Vec::new();
    until("all nodes have the same keys", || {
        let all: Vec<_> = (0..3).map(|at| versions(nodes.node(at), topic)).collect();
        let Some(first) = all[0].clone() else { return false };
        let has_last = first.iter().any(|(_, version, _)| *version >= last);
        agreed = first;
        has_last && all.iter().all(|other| other.as_ref() == Some(&agreed))
    });
    for (key, values) in possible {
        let found = agreed.iter().find(|(known, ..)| known == key).and_then(|(.., value)| value.as_u64());
        assert!(values.contains(&found), "{key} is {found:?}, and may be {values:?}");
    }
}

/// Conditions at all nodes: one of the writes succeeds.
fn conditions_hold(nodes: &DurableNodes, topic: &str, round: &str) {
    let path = format!("{topic}/keys/lock{round}");
    nodes.put_when_owned(0, &format!("{topic}/keys/first"), "0");
    let statuses = thread::scope(|scope| {
        let puts: Vec<_> = (0..3)
            .map(|at| (nodes.node(at), &path))
            .map(|(node, path)| scope.spawn(move || put(node, path, "1", "\r\nIf-None-Match: *")))
            .collect();
        puts.into_iter().map(|put| put.join().unwrap()).collect::<Vec<_>>()
    });
    let accepted: Vec<_> = statuses.iter().filter(|(status, _)| *status == 200).collect();
    assert_eq!(accepted.len(), 1, "one node takes the lock: {statuses:?}");
    assert_eq!(statuses.iter().filter(|(status, _)| *status == 412).count(), 2, "{statuses:?}");
    // By version: the first write replaces it.
    let version = format!("\r\nIf-Match: \"{}-{}\"", accepted[0].1["epoch"], accepted[0].1["seq"]);
    let statuses: Vec<u16> = (0..3).map(|at| put(nodes.node(at), &path, "2", &version).0).collect();
    assert_eq!(statuses, [200, 412, 412]);
}

/// The owner is killed and restarted, and all nodes are killed, and shut down, and started in another order.
pub(crate) fn nodes_fail() {
    let mut nodes = start();
    let topic = "t.nodes";
    conditions_hold(&nodes, topic, "1");
    let owner = nodes.owner();
    let survivors = [(owner + 1) % 3, (owner + 2) % 3];
    let mut possible = write_during(&mut nodes, (topic, &survivors), |nodes, wait_for_writes| {
        nodes.kill(owner);
        wait_for_writes("another node owns the topic");
        nodes.start_node(owner);
        nodes.wait_until_known();
    });
    agree(&nodes, topic, &possible);
    conditions_hold(&nodes, topic, "2");

    // A node misses the last writes. Their owner remains, so only the position tells the copies apart.
    let owner = nodes.owner();
    let [behind, other] = [(owner + 1) % 3, (owner + 2) % 3];
    nodes.kill(behind);
    for (at, key) in [(owner, "missed"), (other, "last")] {
        nodes.put_when_owned(at, &format!("{topic}/keys/{key}"), "7");
        possible.insert(key.to_owned(), vec![Some(7)]);
    }
    // The last write is acknowledged, and at once all processes are gone.
    [owner, other].into_iter().for_each(|at| nodes.kill(at));
    for at in [behind, other, owner] {
        nodes.start_node(at);
        thread::park_timeout(Duration::from_millis(300));
    }
    agree(&nodes, topic, &possible);
    conditions_hold(&nodes, topic, "3");

    // Nodes shut down one after the other, with a write between: the last one has the latest keys.
    for at in [1, 2, 0] {
        let key = format!("before{at}");
        nodes.put_when_owned(at, &format!("{topic}/keys/{key}"), "8");
        possible.insert(key, vec![Some(8)]);
        let mut node = nodes.nodes[at].take().unwrap();
        node.signal("TERM");
        assert!(node.child.wait().unwrap().success());
    }
    for at in [1, 0, 2] {
        nodes.start_node(at);
    }
    agree(&nodes, topic, &possible);
    conditions_hold(&nodes, topic, "4");
}

/// Waits until all nodes have noticed the outage, and checks the answers: the owner accepts writes, and other nodes reject
/// them. Returns the owner.
fn check_outage(nodes: &DurableNodes, topic: &str, key: &str) -> usize {
    for node in nodes.nodes.iter().flatten() {
        until("the outage is noticed", || !node.is_ready());
    }
    let answers: Vec<(u16, Value)> =
        (0..3).map(|at| put(nodes.node(at), &format!("{topic}/keys/{key}"), "9", "")).collect();
    let owner = answers.iter().position(|(status, _)| *status == 200).expect("the owner accepts writes");
    for (at, (status, body)) in answers.iter().enumerate() {
        let is_documented = if at == owner {
            body["cluster"] == false
        } else {
            *status == 503 && body.to_string().contains("broker")
        };
        assert!(is_documented, "node {at}, owner {owner}: {status} {body}");
        assert!(keys(nodes.node(at), topic).is_some(), "the replica can be read");
    }
    owner
}

/// The broker is killed and restarted, and frozen and resumed. Then the owner is killed during an outage.
pub(crate) fn broker_fails() {
    let mut nodes = start();
    let topic = "t.broker";
    nodes.put_when_owned(0, &format!("{topic}/keys/first"), "0");
    let mut possible = write_during(&mut nodes, (topic, &[0, 1, 2]), |nodes, wait_for_writes| {
        for (down, up) in [("kill", "up"), ("stop", "cont")] {
            control(down);
            check_outage(nodes, topic, down);
            control(up);
            for node in nodes.nodes.iter().flatten() {
                until("it is ready again", || node.is_ready());
            }
            wait_for_writes("writes are acknowledged after the outage");
        }
    });
    possible.extend(["kill", "stop"].map(|key| (key.to_owned(), vec![Some(9)])));
    agree(&nodes, topic, &possible);
    conditions_hold(&nodes, topic, "1");

    control("kill");
    let owner = check_outage(&nodes, topic, "outage");
    possible.insert("outage".to_owned(), vec![Some(9)]);
    nodes.kill(owner);
    nodes.start_node(owner);
    control("up");
    agree(&nodes, topic, &possible);
    conditions_hold(&nodes, topic, "2");
}
