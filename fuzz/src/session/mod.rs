//! Two sessions that communicate over a hostile link.

mod app;
mod world;

use crate::input::Input;

/// Fuzzes a client's and a server's session on a link. The input controls everything: the amount and time of
/// each transfer, the timers, the messages of the applications, and the failure of the link.
///
/// Messages arrive once, in order and unchanged, or the connection ends after a prefix of them; only messages
/// that the overflow policy may drop are missing. Each end reports its end once. Queues stay within their
/// limits. When the link works again, every operation completes.
pub fn session(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = world::World::read(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.settle();
    world.finish();
}

/// Decisions beyond this number are ignored, which limits a run.
const STEPS_MAX: usize = 1000;
