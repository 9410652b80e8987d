//! What limits a run: a policy, made into bounds for the sandbox, and a gate that decides on the rest.
//!
//! See `docs/enforcement.md` for who enforces what, and which races there are.

mod bounds;
mod enforced;
mod exec;
mod gate;
mod hosts;
mod judge;
mod learn;
mod links;
mod programs;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use invigil_journal::{BlobError, Store, StoreError};
use invigil_policy::{Layer, Places, Policy, PolicyError, Source};
use invigil_sandbox::{LaunchSpec, Reads, probe};
use invigil_schema::{
    AccessDenied, Digest, Mode, ObserverStarted, OsText, PolicyEnforced, PolicyLoaded,
    PolicyPlaces, PolicySource, Tier,
};
use sha2::{Digest as _, Sha256};

use bounds::Bounded;
pub(crate) use enforced::enforced as enforced_by;
pub(crate) use gate::{PolicyGate, Told};
use hosts::Hosts;
pub(crate) use judge::{decide, decide_again};
pub use learn::{LearnError, learn};
use links::Links;
use programs::Denied;

use crate::approvals::Desk;
use crate::control::Control;

/// The rules of a run: its mode, the policy files in the order in which they stack, and what they say together.
#[derive(Debug, Clone)]
pub struct Rules {
    mode: Mode,
    sources: Vec<Source>,
    places: Places,
    policy: Arc<Policy>,
}

impl Rules {
    /// Reads policy files and checks them. In the mode `strict` what no rule allows is denied.
    pub fn load(mode: Mode, sources: Vec<Source>, places: Places) -> Result<Rules, PolicyError> {
        let policy = Policy::load(&sources, &places)?;
        let policy = match mode {
            Mode::Strict => policy.strict(),
            Mode::Observe | Mode::Guard => policy,
        };
        Ok(Rules {
            mode,
            sources,
            places,
            policy: Arc::new(policy),
        })
    }

    /// The same and more, which can only make them stricter. What variables stand for stays.
    pub(crate) fn narrowed(&self, mode: Mode, more: Vec<Source>) -> Result<Rules, PolicyError> {
        let sources = self.sources.iter().cloned().chain(more).collect();
        Rules::load(self.mode.max(mode), sources, self.places.clone())
    }

    /// What the policy means for the run.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// What the evidence says of the policy, without what depends on the machine.
    pub(crate) fn event(&self, denied: &Denied, env_withheld: Vec<OsText>) -> PolicyLoaded {
        let text = |path: &std::path::Path| OsText::from(path.as_os_str().to_owned());
        let source = |source: &Source| PolicySource {
            name: source.name.clone(),
            layer: layer(source.layer).to_owned(),
            sha256: digest(source.text.as_bytes()),
        };
        let places = &self.places;
        PolicyLoaded {
            mode: self.mode,
            sources: self.sources.iter().map(source).collect(),
            places: PolicyPlaces {
                home: text(&places.home),
                workspace: text(&places.workspace),
                tmp: text(&places.tmp),
                path: places.path.iter().map(|path| text(path)).collect(),
            },
            denied_programs: denied.recorded(),
            env_withheld,
        }
    }

    /// Keeps the texts, so that every decision can be made again.
    pub(crate) fn keep(&self, store: &Store) -> Result<(), KeepError> {
        let blobs = store.blobs()?;
        for source in &self.sources {
            blobs.put(source.text.as_bytes())?;
        }
        Ok(())
    }
}

/// Rules, made ready for one run.
pub(crate) struct Guard {
    rules: Arc<Rules>,
    bounded: Bounded,
    denied: Arc<Denied>,
    links: Arc<Links>,
    withheld: Vec<OsText>,
    told: Arc<Told>,
    warnings: Mutex<Vec<String>>,
}

impl Guard {
    /// Resolves everything that can be resolved before anything runs. `own` is what the run itself writes to.
    pub(crate) fn new(
        rules: &Arc<Rules>,
        env: &mut BTreeMap<OsString, OsString>,
        own: &[PathBuf],
    ) -> Guard {
        let (policy, path) = (rules.policy(), &rules.places().path);
        let bounded = Bounded::new(policy, path, own);
        Guard {
            denied: Arc::new(Denied::find(policy, &bounded.bounds.denied_programs, path)),
            links: Arc::new(Links::find(policy, &bounded.bounds.refused_files)),
            withheld: bounded.withhold(env),
            rules: Arc::clone(rules),
            bounded,
            told: Arc::default(),
            warnings: Mutex::default(),
        }
    }

    /// The same for another launch: what was decided in one is no business of the other.
    pub(crate) fn again(&self) -> Guard {
        Guard {
            rules: Arc::clone(&self.rules),
            bounded: self.bounded.clone(),
            denied: Arc::clone(&self.denied),
            links: Arc::clone(&self.links),
            withheld: self.withheld.clone(),
            told: Arc::default(),
            warnings: Mutex::default(),
        }
    }

    /// What the strict mode would need and this machine does not have, or a run in this tier.
    pub(crate) fn missing(&self, tier: Option<Tier>) -> Vec<String> {
        match (self.rules.mode, tier) {
            (Mode::Strict, Some(tier)) if tier < self.least_tier() => {
                let (least, tier) = (self.least_tier().as_str(), tier.as_str());
                vec![format!(
                    "the {least} tier, and the {tier} tier was asked for"
                )]
            }
            (Mode::Strict, _) => enforced::missing(&self.bounded.bounds, &probe::probe_all()),
            (Mode::Observe | Mode::Guard, _) => Vec::new(),
        }
    }

    /// The least tier that will do.
    pub(crate) fn least_tier(&self) -> Tier {
        match self.rules.mode {
            Mode::Strict => Tier::Notify,
            Mode::Observe | Mode::Guard => Tier::ContractOnly,
        }
    }

    pub(crate) fn budget(&self) -> &invigil_policy::Budget {
        &self.bounded.bounds.budget
    }

    /// Keeps the texts of the policy, and says what is in force.
    pub(crate) fn keep(&self, store: &Store) -> Result<PolicyLoaded, KeepError> {
        self.rules.keep(store)?;
        Ok(self.rules.event(&self.denied, self.withheld.clone()))
    }

    /// Holds a launch to the policy.
    pub(crate) fn hold(&self, spec: &mut LaunchSpec) {
        if self.bounded.bounds.reads {
            spec.reads = spec.reads.max(Reads::Judged);
        }
        // In a lesser tier nothing can be carried out on behalf.
        spec.exact = spec.tier == Tier::Notify;
        spec.confine = Some(self.bounded.confinement.clone());
        spec.limits = self.bounded.limits;
    }

    pub(crate) fn gate(
        &self,
        desk: Option<&Desk>,
        control: &Control,
        reports: OsText,
        refused: impl Fn(AccessDenied) + Send + Sync + 'static,
    ) -> io::Result<PolicyGate> {
        let bounds = &self.bounded.bounds;
        let hosts = match bounds.names {
            true => Some(Hosts::start(&self.rules, bounds, refused)?),
            false => None,
        };
        Ok(PolicyGate {
            hosts,
            rules: Arc::clone(&self.rules),
            denied: Arc::clone(&self.denied),
            links: Arc::clone(&self.links),
            desk: desk.cloned(),
            control: control.clone(),
            reports,
            told: Arc::clone(&self.told),
        })
    }

    /// What is enforced by whom, now that the observer has started.
    pub(crate) fn enforced(&self, started: &ObserverStarted) -> PolicyEnforced {
        let enforced = enforced::enforced(&self.bounded.bounds, started);
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        *warnings = enforced::warnings(&enforced);
        enforced
    }

    /// What a person should know before they rely on the policy.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.clone()
    }

    /// The last process that did not get its program, and by which rule.
    pub(crate) fn refused(&self) -> Option<(u32, String)> {
        self.told.refused()
    }
}

/// Why the texts of a policy could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The medium.
    #[error(transparent)]
    Blob(#[from] BlobError),
}

fn layer(layer: Layer) -> &'static str {
    match layer {
        Layer::Builtin => "builtin",
        Layer::User => "user",
        Layer::Project => "project",
        Layer::CommandLine => "command_line",
    }
}

fn digest(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}
