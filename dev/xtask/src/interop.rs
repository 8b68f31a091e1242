//! placeholder
use crate::Outcome;
use crate::count::Count;
use clap::Args;
#[derive(Args)]
pub(crate) struct Options {}
pub(crate) fn run(_: &Options) -> Outcome {
    Ok(Count::default())
}
