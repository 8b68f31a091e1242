//! Rules of the Pusher protocol with clients on sockets. Each test names the numbers of its rules;
//! dev/conformance/PUSHER.md has the table.

mod any_json;
mod api;
mod channels;
mod client;
mod cluster;
mod connection;
mod dashboard;
mod durable;
mod events;
mod faults;
mod load;
#[path = "../../../../fuzz/src/pusher/model.rs"]
#[expect(dead_code, reason = "the fuzz target uses the rest")]
mod model;
mod presence;
mod recovery;
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
        let forms = [format!("fn {test}()"), format!("\n    {test} => ")];
        assert!(forms.iter().any(|form| source.contains(form)), "{path} has no test {test}");
        named.insert(test.to_owned());
    }
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loopback/pusher");
    for entry in std::fs::read_dir(tests).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for test in source.split("\nfn pusher_").skip(1) {
            let name = format!("pusher_{}", test.split('(').next().unwrap());
            assert!(named.contains(&name), "{name} is not in the table");
        }
    }
}
