use super::args::ConnectArgs;
use super::end::End;
pub(crate) async fn probe(_: &ConnectArgs, _: &str) -> Result<End, End> {
    todo!()
}
pub(crate) async fn inspect(_: &ConnectArgs, _: &str) -> Result<End, End> {
    todo!()
}
