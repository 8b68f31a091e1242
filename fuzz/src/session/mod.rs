//! Two sessions that talk over a hostile link.

mod app;
mod world;

use crate::input::Input;

/// A client's and a server's session, joined by a link of which the input decides everything: how much
/// passes when, who waits for how long, what the applications send, and when the link breaks.
///
/// What is sent arrives once, in order and unchanged, or the connection ends and a beginning of it has
/// arrived; only what the overflow policy may drop is missing. Each end is told once how it ended. What
/// waits stays within its limit. When the link is friendly again, everything comes to an end.
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

/// Decisions behind these do not matter: a run stays short.
const STEPS_MAX: usize = 1000;
