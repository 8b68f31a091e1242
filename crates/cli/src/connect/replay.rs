//! Replay of a recording: its sent messages, at their recorded times.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::args::Speed;
use super::end::End;
use super::entry::{Direction, Entry, Kind};
use super::input::Input;
use super::talk::ANSWER_WAIT;

/// Capacity of the command queue.
const WAITING_MAX: usize = 64;

/// A parsed recording.
pub(crate) struct Recording {
    entries: Vec<Entry>,
}

impl Recording {
    /// # Errors
    /// Returns an error if the file cannot be read or a line is invalid.
    pub(crate) fn read(path: &Path) -> Result<Self, End> {
        let name = path.display();
        let file = File::open(path).map_err(|error| End::io(name, &error))?;
        let mut entries = Vec::new();
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(|error| End::io(path.display(), &error))?;
            if line.trim().is_empty() {
                continue;
            }
            let fault = |why: String| End::trouble(format!("{}:{}: {why}", path.display(), number + 1));
            let entry: Entry = serde_json::from_str(&line).map_err(|error| fault(error.to_string()))?;
            if !(entry.at_ms.is_finite() && entry.at_ms >= 0.0) {
                return Err(fault("at_ms is not a valid time".to_owned()));
            }
            if entry.direction == Direction::Out {
                entry.command().map_err(fault)?;
            }
            entries.push(entry);
        }
        Ok(Self { entries })
    }

    /// Returns the recorded answers.
    pub(crate) fn answers(&self) -> VecDeque<Entry> {
        let came = |entry: &&Entry| entry.direction == Direction::In && entry.is_data();
        self.entries.iter().filter(came).cloned().collect()
    }

    /// Replays as input. With `received`, each message waits for the answers recorded before it.
    pub(crate) fn play(self, speed: Speed, received: Option<watch::Receiver<u64>>) -> mpsc::Receiver<Input> {
        let (sender, input) = mpsc::channel(WAITING_MAX);
        tokio::spawn(async move { self.send(speed, received, sender).await });
        input
    }

    async fn send(
        self,
        speed: Speed,
        mut received: Option<watch::Receiver<u64>>,
        sender: mpsc::Sender<Input>,
    ) {
        let began = Instant::now();
        // Recorded times start with the first connection.
        let opened =
            self.entries.iter().find(|entry| entry.kind == Kind::Open).map_or(0.0, |entry| entry.at_ms);
        let mut answers = 0;
        for entry in self.entries {
            if entry.direction != Direction::Out {
                answers += u64::from(entry.direction == Direction::In && entry.is_data());
                continue;
            }
            let at =
                Duration::try_from_secs_f64((entry.at_ms - opened).max(0.0) / 1e3).unwrap_or(Duration::MAX);
            if let Some(at) = began.checked_add(speed.scale(at)) {
                sleep_until(at).await;
            }
            if let Some(received) = &mut received {
                // If the answers are missing, the comparison reports it.
                let _ = timeout(ANSWER_WAIT, received.wait_for(|count| *count >= answers)).await;
            }
            let input = entry.command().map_or_else(Input::Trouble, Input::Command);
            if sender.send(input).await.is_err() {
                return;
            }
        }
        let _ = sender.send(Input::End).await;
    }
}
