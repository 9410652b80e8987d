//! What two runs have not in common, and whether the evidence is good enough to say so.
//!
//! That something is missing from a surface is a claim of absence. It counts only where that side's health allows the
//! claim; where it does not, the answer is that the runs cannot be compared, never that they are the same.

mod ignore;
mod sarif;
mod section;

use std::collections::{BTreeMap, BTreeSet};

use invigil_schema::OsText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use ignore::{Ignore, IgnoreError};
pub use sarif::sarif;
pub use section::Section;
use section::{Facets, comparable, items};

use crate::health::word;
use crate::{HealthDoc, SurfaceDoc};

/// One of the two runs.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// What it touched.
    pub surface: &'a SurfaceDoc,
    /// How well that is known.
    pub health: &'a HealthDoc,
    /// What tells this run from every other, such as the hash of its journal's head. A run is the same as itself,
    /// however little is known of it.
    pub identity: Option<&'a str>,
}

/// The difference between two runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffDoc {
    /// Names this form: [`DiffDoc::SCHEMA`].
    pub schema: String,
    /// The answer.
    pub verdict: Verdict,
    /// Section by section.
    pub sections: Vec<SectionDiff>,
    /// How the health differs. This alone makes runs no different.
    pub health: Vec<HealthChange>,
    /// How many entries were left out by ignore rules.
    pub ignored: u64,
}

impl DiffDoc {
    /// The value of `schema`.
    pub const SCHEMA: &'static str = "invigil.view.diff.v1";

    /// Every difference in one flat list, for a table.
    pub fn rows(&self) -> Vec<DiffRow<'_>> {
        let mut rows = Vec::new();
        for diff in &self.sections {
            let row = |change, name, detail, sure| DiffRow {
                section: diff.section,
                change,
                name,
                detail,
                sure,
            };
            rows.extend(diff.added.iter().map(|item| {
                let detail = join(&item.facets, "");
                row(ChangeKind::Added, &item.name, detail, diff.added_sure)
            }));
            rows.extend(diff.removed.iter().map(|item| {
                let detail = join(&item.facets, "");
                row(ChangeKind::Removed, &item.name, detail, diff.removed_sure)
            }));
            rows.extend(diff.changed.iter().map(|item| {
                let detail = [join(&item.removed, "-"), join(&item.added, "+")].join(" ");
                let sure = diff.added_sure && diff.removed_sure;
                let detail = detail.trim().to_owned();
                row(ChangeKind::Changed, &item.name, detail, sure)
            }));
        }
        rows
    }
}

fn join(facets: &BTreeSet<String>, sign: &str) -> String {
    let signed: Vec<String> = facets
        .iter()
        .map(|facet| format!("{sign}{facet}"))
        .collect();
    signed.join(" ")
}

/// The answer of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing differs, and both sides are known well enough to say so.
    Same,
    /// Something differs for sure.
    Different,
    /// Nothing differs for sure, and something may.
    NotComparable,
}

/// The difference in one section of the surface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SectionDiff {
    /// Which.
    pub section: Section,
    /// The answer for this section.
    pub verdict: Verdict,
    /// Only in the second run.
    pub added: Vec<Item>,
    /// Whether the first run is known well enough to say that it does not have them.
    pub added_sure: bool,
    /// Only in the first run.
    pub removed: Vec<Item>,
    /// Whether the second run is known well enough to say that it does not have them.
    pub removed_sure: bool,
    /// In both, but not alike.
    pub changed: Vec<Changed>,
    /// Why it cannot be compared for sure, each as `before: …` or `after: …`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reasons: BTreeSet<String>,
}

/// Something that one run has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Item {
    /// Its name.
    pub name: OsText,
    /// What is known of it, such as `write:succeeded`.
    pub facets: BTreeSet<String>,
}

/// Something that both runs have, but not alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// Its name.
    pub name: OsText,
    /// What is known of it in the second run only.
    pub added: BTreeSet<String>,
    /// What is known of it in the first run only.
    pub removed: BTreeSet<String>,
}

/// One member of the health documents that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthChange {
    /// Its name.
    pub member: String,
    /// Its value in the first run.
    pub before: String,
    /// Its value in the second run.
    pub after: String,
}

/// One line of a table of differences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffRow<'a> {
    /// Where.
    pub section: Section,
    /// What.
    pub change: ChangeKind,
    /// The name.
    pub name: &'a OsText,
    /// What is known of it, for people; after a change with `-` and `+`.
    pub detail: String,
    /// Whether the other side is known well enough.
    pub sure: bool,
}

/// What kind of difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Only in the second run.
    Added,
    /// Only in the first run.
    Removed,
    /// In both, but not alike.
    Changed,
}

/// Compares two runs.
pub fn diff(before: Side<'_>, after: Side<'_>, ignore: &Ignore) -> DiffDoc {
    let itself = before.identity.is_some()
        && before.identity == after.identity
        && before.surface == after.surface
        && before.health == after.health;
    let mut ignored = 0;
    let sections: Vec<SectionDiff> = Section::ALL
        .into_iter()
        .map(|section| {
            let mut keep = |side: Side<'_>, other: Side<'_>| {
                let mut all = items(section, side, other);
                let whole = all.len();
                all.retain(|name, _| !ignore.matches(section, name));
                ignored += (whole - all.len()) as u64;
                all
            };
            let (old, new) = (keep(before, after), keep(after, before));
            let mut compared = compare(section, &old, &new, before, after);
            if itself {
                compared.reasons.clear();
                compared.verdict = Verdict::Same;
            }
            compared
        })
        .collect();
    let any = |verdict| sections.iter().any(|section| section.verdict == verdict);
    let verdict = if any(Verdict::Different) {
        Verdict::Different
    } else if any(Verdict::NotComparable) {
        Verdict::NotComparable
    } else {
        Verdict::Same
    };
    DiffDoc {
        schema: DiffDoc::SCHEMA.to_owned(),
        verdict,
        sections,
        health: health_changes(before.health, after.health),
        ignored,
    }
}

fn compare(
    section: Section,
    old: &BTreeMap<OsText, Facets>,
    new: &BTreeMap<OsText, Facets>,
    before: Side<'_>,
    after: Side<'_>,
) -> SectionDiff {
    let only = |these: &BTreeMap<OsText, Facets>, those: &BTreeMap<OsText, Facets>| {
        let only = these.iter().filter(|(name, _)| !those.contains_key(*name));
        let item = |(name, facets): (&OsText, &Facets)| Item {
            name: name.clone(),
            facets: facets.clone(),
        };
        only.map(item).collect::<Vec<Item>>()
    };
    let (added, removed) = (only(new, old), only(old, new));
    let both = new.iter().filter_map(|(name, now)| {
        let was = old.get(name).filter(|was| *was != now)?;
        Some(Changed {
            name: name.clone(),
            added: now.difference(was).cloned().collect(),
            removed: was.difference(now).cloned().collect(),
        })
    });
    let changed: Vec<Changed> = both.collect();

    let (old_doubts, new_doubts) = (
        comparable(section, before, after),
        comparable(section, after, before),
    );
    let (added_sure, removed_sure) = (old_doubts.is_empty(), new_doubts.is_empty());
    let differs = (added_sure && !added.is_empty())
        || (removed_sure && !removed.is_empty())
        || (added_sure && removed_sure && !changed.is_empty());
    let verdict = match (differs, added_sure && removed_sure) {
        (true, _) => Verdict::Different,
        (false, true) => Verdict::Same,
        (false, false) => Verdict::NotComparable,
    };
    let old_doubts = old_doubts
        .into_iter()
        .map(|doubt| format!("before: {doubt}"));
    let new_doubts = new_doubts
        .into_iter()
        .map(|doubt| format!("after: {doubt}"));
    SectionDiff {
        section,
        verdict,
        added,
        added_sure,
        removed,
        removed_sure,
        changed,
        reasons: old_doubts.chain(new_doubts).collect(),
    }
}

fn health_changes(before: &HealthDoc, after: &HealthDoc) -> Vec<HealthChange> {
    let members = |health: &HealthDoc| {
        [
            ("kernel_layer", word(&health.kernel_layer)),
            ("policy_layer", word(&health.policy_layer)),
            ("sdk_layer", word(&health.sdk_layer)),
            ("cgroup_correlation", word(&health.cgroup_correlation)),
            ("network_coverage", word(&health.network_coverage)),
            ("kernel.tier", word(&health.kernel.tier)),
            ("kernel.reads", health.kernel.reads.to_string()),
        ]
    };
    let pairs = members(before).into_iter().zip(members(after));
    let changes = pairs.filter(|(before, after)| before != after);
    changes
        .map(|((member, before), (_, after))| HealthChange {
            member: member.to_owned(),
            before,
            after,
        })
        .collect()
}
