//! Presence: subscriber counts, and the connections that get them.

use sinews_server::{Response, Router, Server, TopicRule};
use sinews_testkit::{Frame, Reply};

use crate::support::{Ear, Heard, Peer, Running, post, scripted};

/// `+name` subscribes, `-name` unsubscribes.
fn world(threads: usize) -> (Running, Ear) {
    let (route, ear) = scripted(|heard, cx| {
        let Heard::Message(_, payload) = heard else { return };
        let (command, name) = std::str::from_utf8(payload).unwrap().split_at(1);
        match command {
            "+" => cx.subscribe(name).unwrap(),
            _ => assert!(cx.unsubscribe(name)),
        }
        cx.send_text("done").unwrap();
    });
    let router = Router::new().websocket("/", route).post("/subscribers/{topic}", |request| {
        Response::text({
            let topic = request.param("topic").unwrap().into_owned();
            request.topics().subscribers(&topic).to_string()
        })
    });
    let rule = TopicRule::new("told.*").with_presence(true);
    (Running::server(Server::new(router).threads(threads).topic_rule(rule)), ear)
}

fn ask(peer: &mut Peer, command: &str) {
    peer.send(&Frame::text(command)).expect(&Reply::text("done"));
}

/// Returns the next reported change of any connection.
fn change(ear: &Ear) -> (String, usize, usize) {
    loop {
        if let Heard::Subscription(change) = ear.next() {
            return (change.topic().to_owned(), change.before(), change.after());
        }
    }
}

#[test]
fn subscribers_are_counted_over_all_threads() {
    let (server, _ear) = world(3);
    let count = |topic: &str| {
        server
            .connect()
            .send(post(&format!("/subscribers/{topic}"), ""))
            .answer()
            .text()
            .parse::<usize>()
            .unwrap()
    };
    let mut peers: Vec<Peer> = (0..12).map(|_| server.websocket("/")).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        ask(peer, "+a.b");
        assert_eq!((count("a.b"), count("a.c"), count("a.*")), (number + 1, 0, 0));
    }
    ask(&mut peers[0], "+a.*");
    assert_eq!((count("a.b"), count("a.c")), (13, 1));
    while let Some(mut peer) = peers.pop() {
        peer.send(&Frame::close(1000, ""));
        while peer.next().is_some() {}
        assert_eq!(count("a.b"), peers.len() + usize::from(!peers.is_empty()));
    }
}

#[test]
fn each_change_is_reported_to_the_connection_that_makes_it() {
    let (server, ear) = world(1);
    let told = |before, after| ("told.a".to_owned(), before, after);
    let (mut one, mut other) = (server.websocket("/"), server.websocket("/"));
    ask(&mut one, "+told.a");
    assert_eq!(change(&ear), told(0, 1));
    ask(&mut one, "+told.a");
    // Not for a repeated subscription, a pattern, or a topic without a rule.
    ask(&mut one, "+told.*");
    ask(&mut one, "+quiet.a");
    ask(&mut other, "+told.a");
    assert_eq!(change(&ear), told(1, 2));
    ask(&mut one, "-told.a");
    assert_eq!(change(&ear), told(2, 1));
    other.send(&Frame::close(1000, ""));
    assert_eq!(change(&ear), told(1, 0));
    assert!(matches!(ear.next(), Heard::Close(_)), "reported before the end");
}

#[test]
fn each_count_is_reported_once_over_all_threads() {
    let (server, ear) = world(3);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut peer = server.websocket("/");
                for _ in 0..50 {
                    ask(&mut peer, "+told.a");
                    ask(&mut peer, "-told.a");
                }
                ask(&mut peer, "+told.a");
                peer.send(&Frame::close(1000, ""));
                while peer.next().is_some() {}
            });
        }
    });
    // Each number is left upwards as often as it is reached downwards.
    let mut balance = [0_i32; 9];
    for _ in 0..8 * 102 {
        let (_, before, after) = change(&ear);
        assert_eq!(before.abs_diff(after), 1);
        balance[before.min(after)] += if after > before { 1 } else { -1 };
    }
    assert_eq!(balance, [0; 9]);
}

/// Changes a subscription whenever a change is reported.
#[test]
fn endless_changes_do_not_delay_other_connections() {
    let (route, _ear) = scripted(|heard, cx| match heard {
        Heard::Open => cx.subscribe("told.0").unwrap(),
        Heard::Subscription(change) if change.after() == 1 => assert!(cx.unsubscribe("told.0")),
        Heard::Subscription(_) => cx.subscribe("told.0").unwrap(),
        _ => {}
    });
    let rule = TopicRule::new("told.*").with_presence(true);
    let server =
        Running::server(Server::new(Router::new().websocket("/", route)).threads(1).topic_rule(rule));
    let mut restless = server.websocket("/");
    for _ in 0..100 {
        restless.sync();
    }
}
