//! What is in an archive: the members that there can be, and the manifest that lists the ones that are there.

use std::fmt;

use invigil_schema::{Digest, RunId};
use serde::{Deserialize, Serialize};

use super::ArchiveError;
use super::form::{self, Kind};
use crate::chain::Head;

/// The name of the first member.
pub(crate) const MANIFEST: &str = "manifest.json";
/// The schema that every manifest names.
pub const MANIFEST_SCHEMA: &str = "invigil.archive.manifest.v1";
/// The version of the archive format.
const FORMAT: u32 = 1;

/// A member of an archive, besides the manifest. They are ordered as they stand in it: by the bytes of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    /// `capability-surface.json`
    CapabilitySurface,
    /// `contract.json`, where there is one.
    Contract,
    /// `correlation-report.json`
    CorrelationReport,
    /// `diff.patch`, where there is one.
    DiffPatch,
    /// `events.ndjson`: the lifecycle.
    Events,
    /// `journal.ndjson`: the whole chain.
    Journal,
    /// `layers/kernel.ndjson`
    KernelLayer,
    /// `layers/policy.ndjson`
    PolicyLayer,
    /// `layers/sdk.ndjson`
    SdkLayer,
    /// `observation-health.json`
    ObservationHealth,
}

impl Member {
    /// All of them, in order.
    pub const ALL: [Member; 10] = [
        Member::CapabilitySurface,
        Member::Contract,
        Member::CorrelationReport,
        Member::DiffPatch,
        Member::Events,
        Member::Journal,
        Member::KernelLayer,
        Member::PolicyLayer,
        Member::SdkLayer,
        Member::ObservationHealth,
    ];

    /// The name in the archive.
    pub fn path(self) -> &'static str {
        match self {
            Member::CapabilitySurface => "capability-surface.json",
            Member::Contract => "contract.json",
            Member::CorrelationReport => "correlation-report.json",
            Member::DiffPatch => "diff.patch",
            Member::Events => "events.ndjson",
            Member::Journal => "journal.ndjson",
            Member::KernelLayer => "layers/kernel.ndjson",
            Member::PolicyLayer => "layers/policy.ndjson",
            Member::SdkLayer => "layers/sdk.ndjson",
            Member::ObservationHealth => "observation-health.json",
        }
    }

    /// The member of this very name.
    pub fn from_path(path: &str) -> Option<Member> {
        Member::ALL.into_iter().find(|member| member.path() == path)
    }

    /// Whether it may be absent: it is attached, and not computed from the journal.
    pub fn is_optional(self) -> bool {
        matches!(self, Member::Contract | Member::DiffPatch)
    }

    /// Whether it is computed from the journal.
    pub fn is_derived(self) -> bool {
        !self.is_optional() && self != Member::Journal
    }

    pub(crate) fn kind(self) -> Kind {
        match self.path().rsplit_once('.') {
            Some((_, "json")) => Kind::Document,
            Some((_, "ndjson")) => Kind::Lines,
            _ => Kind::Opaque,
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.path())
    }
}

/// What `manifest.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always [`MANIFEST_SCHEMA`].
    pub schema: String,
    /// The version of the archive format.
    pub format: u32,
    /// The run.
    pub run_id: RunId,
    /// The last record of the journal inside.
    pub head: ManifestHead,
    /// Every other member, in order.
    pub members: Vec<Entry>,
}

/// The last record of the journal in an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestHead {
    /// Its sequence number.
    pub seq: u64,
    /// Its hash.
    pub hash: Digest,
}

impl From<Head> for ManifestHead {
    fn from(Head { seq, hash }: Head) -> Self {
        ManifestHead { seq, hash }
    }
}

/// One member as the manifest lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name.
    pub path: String,
    /// The digest of its bytes.
    pub sha256: Digest,
    /// How many there are.
    pub size: u64,
}

/// What is looked at before anything else, so that another version is called that and nothing worse.
#[derive(Deserialize)]
struct Version {
    schema: String,
    format: u32,
}

impl Manifest {
    pub(crate) fn new(run_id: RunId, head: Head, members: Vec<Entry>) -> Self {
        Manifest {
            schema: MANIFEST_SCHEMA.to_owned(),
            format: FORMAT,
            run_id,
            head: head.into(),
            members,
        }
    }

    /// The one spelling of it.
    pub(crate) fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads one, and refuses every other spelling of the same.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, ArchiveError> {
        form::check(MANIFEST, 1, bytes)?;
        let wrong = |error: serde_json::Error| ArchiveError::Manifest(error.to_string());
        let version: Version = serde_json::from_slice(bytes).map_err(wrong)?;
        if version.schema != MANIFEST_SCHEMA || version.format != FORMAT {
            return Err(ArchiveError::Foreign(format!(
                "its schema is {:?}, format {}",
                version.schema, version.format
            )));
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(wrong)?;
        manifest.check_members()?;
        if manifest.encode().map_err(wrong)? != bytes {
            let what = "it is not written as Invigil writes it".to_owned();
            return Err(ArchiveError::Manifest(what));
        }
        Ok(manifest)
    }

    /// Every member that must be there is, none that must not be, none twice, all in order.
    fn check_members(&self) -> Result<(), ArchiveError> {
        let mut last: Option<Member> = None;
        let mut seen = Vec::new();
        for entry in &self.members {
            let Some(member) = Member::from_path(&entry.path) else {
                return Err(ArchiveError::ExtraMember(entry.path.clone()));
            };
            if seen.contains(&member) {
                return Err(ArchiveError::DuplicateMember(entry.path.clone()));
            }
            if let Some(before) = last.filter(|before| *before > member) {
                return Err(ArchiveError::OutOfOrder {
                    expected: member.path().to_owned(),
                    found: before.path().to_owned(),
                });
            }
            seen.push(member);
            last = Some(member);
        }
        let missing = |member: &Member| !member.is_optional() && !seen.contains(member);
        match Member::ALL.into_iter().find(missing) {
            Some(member) => Err(ArchiveError::MissingMember(member.path().to_owned())),
            None => Ok(()),
        }
    }

    /// The entry of a member, if it is there.
    pub fn entry(&self, member: Member) -> Option<&Entry> {
        self.members
            .iter()
            .find(|entry| entry.path == member.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_members_is_the_order_of_their_names() {
        assert!(
            Member::ALL
                .windows(2)
                .all(|pair| pair[0] < pair[1] && pair[0].path() < pair[1].path())
        );
        for member in Member::ALL {
            assert_eq!(Member::from_path(member.path()), Some(member));
        }
    }
}
