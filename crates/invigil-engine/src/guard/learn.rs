//! From journals to a policy under which the same runs would have passed.

use std::net::{IpAddr, SocketAddr};

use invigil_audit::Fact;
use invigil_journal::{RunRef, StoreError};
use invigil_policy::{Observations, Places};
use invigil_schema::{
    Address, CallResult, Errno, Event, FileOp, FileOpKind, NetOp, NetOpKind, OpenFlag, Origin,
    OsText,
};

use crate::evidence::each;

/// A connection that is not waited for.
const EINPROGRESS: Errno = Errno(115);
const ENXIO: Errno = Errno(6);
const ENODEV: Errno = Errno(19);

/// Why nothing can be learned.
#[derive(Debug, thiserror::Error)]
pub enum LearnError {
    /// The journal.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nobody saw what the run did.
    #[error("nothing can be learned from {0}: it was not observed; see `invigil show {0}`")]
    Unseen(String),
}

/// Writes a policy from what these runs did. Reads are only restricted if every run recorded them.
pub fn learn(runs: &[RunRef], places: &Places) -> Result<String, LearnError> {
    let mut observed = Observations {
        reads: Some(Default::default()),
        ..Observations::default()
    };
    for run in runs {
        let mut seen = false;
        each(run, |fact| seen |= take(&mut observed, fact))?;
        if !seen {
            return Err(LearnError::Unseen(run.run_id().to_string()));
        }
    }
    let note = match observed.reads {
        Some(_) => "",
        None => {
            "# What was read was not recorded, so that reading is not restricted but for secrets: make the run again\n\
             # with `--reads on` to learn that too.\n"
        }
    };
    Ok(format!(
        "{note}{}",
        invigil_policy::learn(&observed, places)
    ))
}

/// Takes a fact over; whether it says that the run was observed.
fn take(observed: &mut Observations, fact: &Fact<'_>) -> bool {
    match (fact.origin, fact.event) {
        (_, Event::ObserverStarted(started)) if !started.reads => observed.reads = None,
        (Origin::Kernel, Event::ProcessExec(exec)) => {
            observed.programs.insert(exec.executable.clone());
            // A script is a program of its own.
            observed
                .programs
                .extend(exec.requested.as_ref().and_then(real));
            return true;
        }
        (Origin::Kernel, Event::FileOp(op)) if op.result == CallResult::Ok || is_absent(op) => {
            file(observed, op);
        }
        (Origin::Kernel, Event::NetOp(op))
            if matches!(op.result, CallResult::Ok | CallResult::Failed(EINPROGRESS)) =>
        {
            net(observed, op);
        }
        (_, Event::SdkEvent(event)) => observed.tools.extend(event.tool.clone()),
        _ => {}
    }
    false
}

/// Whether a device was opened that leads nowhere, such as `/dev/tty` without a terminal. It was not refused, and must not
/// be the next time.
fn is_absent(op: &FileOp) -> bool {
    op.op == FileOpKind::Open && matches!(op.result, CallResult::Failed(ENXIO | ENODEV))
}

fn file(observed: &mut Observations, op: &FileOp) {
    let has = |flag| op.flags.contains(&flag);
    if !op.path.as_bytes().starts_with(b"/") || op.path.as_bytes().starts_with(b"/memfd:") {
        return;
    }
    match op.op {
        FileOpKind::Open if has(OpenFlag::Path) => {}
        FileOpKind::Open | FileOpKind::Create => {
            let created = op.op == FileOpKind::Create;
            if created
                || has(OpenFlag::Write)
                || has(OpenFlag::Truncate)
                || has(OpenFlag::Temporary)
            {
                observed.writes.insert(op.path.clone());
            }
            if let (Some(reads), true) = (&mut observed.reads, has(OpenFlag::Read)) {
                reads.insert(op.path.clone());
            }
        }
        kind => {
            observed.writes.insert(op.path.clone());
            let second = matches!(
                kind,
                FileOpKind::Rename | FileOpKind::Exchange | FileOpKind::Link
            );
            observed.writes.extend(op.to.clone().filter(|_| second));
        }
    }
}

fn net(observed: &mut Observations, op: &NetOp) {
    let addr: SocketAddr = match &op.address {
        Address::Inet { ip, port } => (*ip, *port).into(),
        Address::Inet6 { ip, port, .. } => (IpAddr::V6(*ip).to_canonical(), *port).into(),
        Address::Unix { path } => {
            observed.unix.insert(path.clone());
            return;
        }
        Address::Abstract { name } => {
            observed.unix_abstract.insert(name.clone());
            return;
        }
        Address::Unnamed | Address::Other { .. } => return,
    };
    match op.op {
        NetOpKind::Bind | NetOpKind::Listen => observed.binds.insert(addr),
        NetOpKind::Connect | NetOpKind::Send => observed.connects.insert((addr, None)),
    };
}

fn real(path: &OsText) -> Option<OsText> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
    Some(path.canonicalize().ok()?.into_os_string().into())
}
