//! Replays a recording: its sent messages, at their recorded times.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::args::Speed;
use super::conversation::ANSWER_WAIT;
use super::end::RunEnd;
use super::entry::{Direction, EntryKind, RecordEntry};
use super::input::InputEvent;

/// Command queue capacity.
const WAITING_MAX: usize = 64;

/// A parsed recording.
pub(crate) struct Recording {
    entries: Vec<RecordEntry>,
}

impl Recording {
    /// # Errors
    /// Returns an error if the file cannot be read or a line is invalid.
    pub(crate) fn read(path: &Path) -> Result<Self, RunEnd> {
        let name = path.display();
        let file = File::open(path).map_err(|error| RunEnd::io(name, &error))?;
        let mut entries = Vec::new();
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(|error| RunEnd::io(path.display(), &error))?;
            if line.trim().is_empty() {
                continue;
            }
            let fault = |why: String| RunEnd::failed(format!("{}:{}: {why}", path.display(), number + 1));
            let entry: RecordEntry = serde_json::from_str(&line).map_err(|error| fault(error.to_string()))?;
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
    pub(crate) fn answers(&self) -> VecDeque<RecordEntry> {
        let is_answer = |entry: &&RecordEntry| entry.direction == Direction::In && entry.is_data();
        self.entries.iter().filter(is_answer).cloned().collect()
    }

    /// Replays as input. With `received`, each message waits for the answers recorded before it.
    pub(crate) fn play(
        self,
        speed: Speed,
        received: Option<watch::Receiver<u64>>,
    ) -> mpsc::Receiver<InputEvent> {
        let (sender, input) = mpsc::channel(WAITING_MAX);
        tokio::spawn(async move { self.send(speed, received, sender).await });
        input
    }

    async fn send(
        self,
        speed: Speed,
        mut received: Option<watch::Receiver<u64>>,
        sender: mpsc::Sender<InputEvent>,
    ) {
        let began = Instant::now();
        // Recorded times start with the first connection.
        let opened =
            self.entries.iter().find(|entry| entry.kind == EntryKind::Open).map_or(0.0, |entry| entry.at_ms);
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
            let input = entry.command().map_or_else(InputEvent::Failed, InputEvent::Command);
            if sender.send(input).await.is_err() {
                return;
            }
        }
        let _ = sender.send(InputEvent::End).await;
    }
}
