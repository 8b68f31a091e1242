//! Rules of the Pusher protocol with clients on sockets. Each test names the numbers of its rules;
//! dev/conformance/PUSHER.md has the table.

#[path = "../support/mod.rs"]
mod support;

mod any_json;
mod api;
#[path = "../cluster/broker.rs"]
#[allow(dead_code, reason = "each test uses a part")]
mod broker;
mod channels;
mod client;
mod cluster;
mod connection;
mod dashboard;
mod durable;
mod events;
mod faults;
mod load;
mod memory_broker;
#[path = "../../../../fuzz/src/pusher/model.rs"]
#[allow(dead_code, reason = "the fuzz target uses the rest")]
mod model;
mod presence;
mod recovery;
#[path = "../support/test_broker.rs"]
mod test_broker;
mod topics;
mod users;
mod webhooks;

/// The table names tests that exist, and every test with the number of a rule.
#[test]
fn pusher_table_names_tests() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = std::fs::read_to_string(root.join("dev/conformance/PUSHER.md")).unwrap();
    let mut named = std::collections::BTreeSet::new();
    for link in table.split("[`").skip(1) {
        let (test, rest) = link.split_once("`](../../").unwrap();
        let (path, _) = rest.split_once(')').unwrap();
        let source = std::fs::read_to_string(root.join(path)).unwrap();
        assert!(source.contains(&format!("fn {test}()")), "{path} has no test {test}");
        named.insert(test.to_owned());
    }
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pusher");
    for entry in std::fs::read_dir(tests).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for test in source.split("\nfn pusher_").skip(1) {
            let name = format!("pusher_{}", test.split('(').next().unwrap());
            assert!(
                named.contains(&name) || name == "pusher_table_names_tests",
                "{name} is not in the table"
            );
        }
    }
}
