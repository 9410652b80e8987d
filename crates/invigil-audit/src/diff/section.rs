//! The sections of a surface as plain maps from names to what is known of them, and what their comparison hangs on.

use std::collections::{BTreeMap, BTreeSet};

use invigil_schema::OsText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Side;
use crate::health::word;
use crate::{ClaimKind, Outcome, SdkStatus};

/// A section of the surface.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Files and directories.
    FilesystemPaths,
    /// Addresses.
    NetworkEndpoints,
    /// Programs.
    ProcessExecs,
    /// Tools.
    Tools,
    /// What a tool gate decided.
    PolicyDecisions,
    /// What Invigil refused.
    Denials,
}

impl Section {
    /// All of them, in the order of the surface.
    pub const ALL: [Section; 6] = [
        Section::FilesystemPaths,
        Section::NetworkEndpoints,
        Section::ProcessExecs,
        Section::Tools,
        Section::PolicyDecisions,
        Section::Denials,
    ];

    /// The name in the surface.
    pub fn as_str(self) -> &'static str {
        match self {
            Section::FilesystemPaths => "filesystem_paths",
            Section::NetworkEndpoints => "network_endpoints",
            Section::ProcessExecs => "process_execs",
            Section::Tools => "tools",
            Section::PolicyDecisions => "policy_decisions",
            Section::Denials => "denials",
        }
    }
}

/// What is known of one entry.
pub(super) type Facets = BTreeSet<String>;

/// The entries of one section. Reads count only if both sides have recorded them, or neither has.
pub(super) fn items(section: Section, side: Side<'_>, other: Side<'_>) -> BTreeMap<OsText, Facets> {
    let surface = side.surface;
    match section {
        Section::FilesystemPaths => {
            let alike = side.health.kernel.reads == other.health.kernel.reads;
            let entries = surface.filesystem_paths.iter().map(|entry| {
                let access = entry
                    .access
                    .iter()
                    .filter(|(access, _)| alike || !access.is_read());
                let facets: Facets = access.map(|(access, how)| with(access, how)).collect();
                (entry.path.clone(), facets)
            });
            entries.filter(|(_, facets)| !facets.is_empty()).collect()
        }
        Section::NetworkEndpoints => {
            let entries = surface.network_endpoints.iter().map(|entry| {
                let facets = entry.operations.iter().map(|(op, how)| with(op, how));
                (entry.endpoint.clone(), facets.collect())
            });
            entries.collect()
        }
        Section::ProcessExecs => {
            let entries = surface.process_execs.iter().map(|entry| {
                let outcome = [with(&"exec", &entry.outcome)].into_iter();
                let digests = entry.sha256.iter().map(|digest| format!("sha256:{digest}"));
                let requested = entry.requested.iter();
                let requested = requested.map(|name| format!("as:{}", name.to_string_lossy()));
                let facets = outcome.chain(digests).chain(requested);
                (entry.executable.clone(), facets.collect())
            });
            entries.collect()
        }
        Section::Tools => {
            let entries = surface.tools.iter().map(|entry| {
                let by = entry
                    .reported_by
                    .iter()
                    .map(|by| format!("reported_by:{}", word(by)));
                (entry.tool.as_str().into(), by.collect())
            });
            entries.collect()
        }
        Section::PolicyDecisions => {
            let decisions = surface.policy_decisions.iter();
            decisions
                .map(|decision| (decision.as_str().into(), Facets::new()))
                .collect()
        }
        Section::Denials => {
            let mut entries: BTreeMap<OsText, Facets> = BTreeMap::new();
            for denial in &surface.denials {
                let facet = format!("{} by {}", denial.what, denial.rule);
                entries
                    .entry(denial.target.clone())
                    .or_default()
                    .insert(facet);
            }
            entries
        }
    }
}

fn with<T: Serialize>(what: &T, how: &Outcome) -> String {
    format!("{}:{}", word(what), word(how))
}

/// Why it cannot be said that `side` has nothing else in a section. Empty if it can.
pub(super) fn comparable(section: Section, side: Side<'_>, other: Side<'_>) -> BTreeSet<String> {
    use ClaimKind::{NoOtherFileChanged, NoOtherFileRead, NoOtherNetwork, NoOtherProgram};
    let health = side.health;
    let claims = |kinds: &[ClaimKind]| {
        let claims = kinds.iter().filter_map(|&kind| health.claim(kind));
        claims.flat_map(|claim| claim.reasons.clone()).collect()
    };
    match section {
        Section::FilesystemPaths => {
            let (own, others) = (health.kernel.reads, other.health.kernel.reads);
            if own || others {
                claims(&[NoOtherFileChanged, NoOtherFileRead])
            } else {
                claims(&[NoOtherFileChanged])
            }
        }
        Section::NetworkEndpoints => claims(&[NoOtherNetwork]),
        Section::ProcessExecs => claims(&[NoOtherProgram]),
        Section::Denials => claims(&[NoOtherFileChanged, NoOtherNetwork, NoOtherProgram]),
        Section::Tools => match health.sdk_layer {
            SdkStatus::Partial => one("sdk_rejected: lines of the framework could not count"),
            SdkStatus::Absent | SdkStatus::SelfReported => BTreeSet::new(),
        },
        Section::PolicyDecisions => match health.policy.flagged.is_empty() {
            true => BTreeSet::new(),
            false => one("policy_flagged: lines of the gate's log could not count"),
        },
    }
}

fn one(text: &str) -> BTreeSet<String> {
    BTreeSet::from([text.to_owned()])
}
