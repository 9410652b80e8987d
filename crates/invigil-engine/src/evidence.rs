//! Evidence: the views over a run's journal, packed with it, checked against it, compared with those of another run.

use std::path::Path;

use invigil_audit::{
    DiffDoc, Evidence, Fact, HealthDoc, Ignore, Side, Summary, SummaryDoc, SurfaceDoc, View, diff,
};
use invigil_journal::archive::{
    self, ArchiveError, Derived, Expected, Member, PackError, Packed, Packing, Verified, ViewError,
    Views,
};
use invigil_journal::{Error, Reader, Record, RunRef, StoreError};
use invigil_schema::{Event, Origin, RunId};
use serde::Serialize;
use serde_json::{Value, json};

/// What each line of `events.ndjson` names as its schema.
const LIFECYCLE_SCHEMA: &str = "invigil.run.event.v1";

/// Everything that goes into an archive besides the journal, folded from it record by record.
#[derive(Default)]
struct Members {
    views: Evidence,
    run_id: Option<RunId>,
    lifecycle: u64,
}

impl Views for Members {
    fn record(&mut self, record: Record<'_>, out: &mut Derived) -> Result<(), ViewError> {
        let envelope = record.envelope()?;
        let event = envelope.event();
        self.fold(&Fact::of(&envelope, &event));
        if let Some(layer) = layer(envelope.origin, &event) {
            out.write(layer, record.line())?;
            out.write(layer, b"\n")?;
        }
        if let Some(line) = self.lifecycle(envelope.origin, &event) {
            out.write(Member::Events, format!("{line}\n").as_bytes())?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Derived) -> Result<(), ViewError> {
        let (surface, health, correlation) = self.views.document();
        out.write(Member::CapabilitySurface, &document(&surface)?)?;
        out.write(Member::CorrelationReport, &document(&correlation)?)?;
        out.write(Member::ObservationHealth, &document(&health)?)
    }
}

impl Members {
    fn fold(&mut self, fact: &Fact<'_>) {
        self.views.take(fact);
        if let Event::JournalOpened(opened) = fact.event {
            self.run_id = Some(opened.run_id.clone());
        }
    }

    /// The run's life in a few lines, for those who want no more.
    fn lifecycle(&mut self, origin: Origin, event: &Event) -> Option<Value> {
        if origin != Origin::Runtime {
            return None;
        }
        let mut line = match event {
            Event::RunStarted(started) => json!({
                "agent_shim": started.agent_shim,
                "command": started.command,
                "env_keys": started.env_keys,
                "window_elapsed_ms": 0,
            }),
            Event::RunFinished(finished) => json!({
                "exit_code": finished.exit_code,
                "signal": finished.signal,
                "success": finished.success,
                "window_elapsed_ms": finished.window_elapsed_ms,
            }),
            Event::RunFailed(failed) => {
                json!({ "failure": failed.failure, "reason": failed.reason })
            }
            _ => return None,
        };
        line["schema"] = LIFECYCLE_SCHEMA.into();
        line["run_id"] = json!(self.run_id);
        line["seq"] = self.lifecycle.into();
        line["type"] = event.kind().into();
        self.lifecycle += 1;
        Some(line)
    }
}

/// The layer that a record belongs to: what was seen, what was decided, what was said.
fn layer(origin: Origin, event: &Event) -> Option<Member> {
    match (origin, event) {
        (_, Event::PolicyLoaded(_) | Event::PolicyEnforced(_)) => Some(Member::PolicyLayer),
        (_, Event::PolicyDecision(_) | Event::PolicyFlagged(_) | Event::AccessDenied(_)) => {
            Some(Member::PolicyLayer)
        }
        (
            _,
            Event::ApprovalRequested(_) | Event::ApprovalAnswered(_) | Event::ApprovalRefused(_),
        ) => Some(Member::PolicyLayer),
        (_, Event::ToolAsked(_) | Event::ToolAnswered(_)) => Some(Member::PolicyLayer),
        (_, Event::ObserverStarted(_) | Event::ObserverFinished(_) | Event::ObserverNote(_)) => {
            Some(Member::KernelLayer)
        }
        (Origin::Kernel, _) => Some(Member::KernelLayer),
        (Origin::Sdk, _) => Some(Member::SdkLayer),
        (Origin::Runtime | Origin::Client | Origin::User, _) => None,
    }
}

/// As people read it, and always in the same bytes.
fn document(document: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec_pretty(document)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Why evidence could not be packed or compared.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// The run.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The archive could not be made.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The archive is not what was packed.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

/// Packs a run into one file. The same journal gives the same bytes.
pub fn export(run: &RunRef, target: &Path, overwrite: bool) -> Result<Packed, EvidenceError> {
    let packing = Packing {
        overwrite,
        ..Packing::default()
    };
    Ok(archive::pack(
        run.storage(),
        target,
        &mut Members::default(),
        &packing,
    )?)
}

/// Checks an archive in every respect, the views against the journal too.
pub fn verify_archive(path: &Path, expected: &Expected) -> Result<Verified, ArchiveError> {
    archive::verify(path, expected, Some(&mut Members::default()))
}

/// What a run did and how well it was seen, ready to be compared.
#[derive(Debug)]
pub struct Comparable {
    /// What it did.
    pub surface: SurfaceDoc,
    /// How well it was seen.
    pub health: HealthDoc,
    identity: String,
}

impl Comparable {
    /// Of a run.
    pub fn of_run(run: &RunRef) -> Result<Comparable, EvidenceError> {
        let mut members = Members::default();
        let head = each(run, |fact| members.fold(fact))?;
        Ok(Comparable::new(&members, head))
    }

    /// Of an archive, which is checked first.
    pub fn of_archive(path: &Path) -> Result<Comparable, EvidenceError> {
        let mut members = Members::default();
        let verified = archive::verify(path, &Expected::default(), Some(&mut members))?;
        let head = verified.manifest.head.hash.to_string();
        Ok(Comparable::new(&members, head))
    }

    fn new(members: &Members, identity: String) -> Self {
        let (surface, health, _) = members.views.document();
        Comparable {
            surface,
            health,
            identity,
        }
    }

    /// What has changed from this one to another.
    pub fn diff(&self, after: &Comparable, ignore: &Ignore) -> DiffDoc {
        diff(self.side(), after.side(), ignore)
    }

    fn side(&self) -> Side<'_> {
        Side {
            surface: &self.surface,
            health: &self.health,
            identity: Some(&self.identity),
        }
    }
}

/// What a person wants to know of a run.
pub fn summary(run: &RunRef) -> Result<SummaryDoc, StoreError> {
    let mut summary = Summary::default();
    each(run, |fact| summary.take(fact))?;
    Ok(summary.document())
}

/// Hands every record of a run to a fold; the hash of the last one.
pub(crate) fn each(run: &RunRef, take: impl FnMut(&Fact<'_>)) -> Result<String, StoreError> {
    each_of_first(run, u64::MAX, take)
}

/// The same with the first `count` records alone.
pub(crate) fn each_of_first(
    run: &RunRef,
    count: u64,
    mut take: impl FnMut(&Fact<'_>),
) -> Result<String, StoreError> {
    let mut read = || -> Result<String, Error> {
        let mut reader = Reader::open(run.storage())?;
        while reader.head().map_or(0, |head| head.seq + 1) < count
            && let Some(record) = reader.next()?
        {
            let envelope = record.envelope()?;
            let event = envelope.event();
            take(&Fact::of(&envelope, &event));
        }
        Ok(reader
            .head()
            .map(|head| head.hash.to_string())
            .unwrap_or_default())
    };
    read().map_err(|error| run.error(error))
}
