//! What the daemon needs for tasks: where worktrees are made, which policies hold, who is asked, who writes contracts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use invigil_engine::contracts::Generator;
use invigil_engine::{Asking, Engine, Tasks, UserPolicy};
use invigil_journal::Store;
use invigil_policy::{Places, Source};
use invigil_schema::Mode;

use crate::commands::contract::ModelOptions;
use crate::commands::task::tasks;
use crate::error::CliError;
use crate::executor::engine;
use crate::policies::{gather, places, users_own};
use crate::ui;

/// The tasks of a store, as its daemon sees them.
pub(crate) struct Workshop {
    tasks: Tasks,
    engine: Engine,
    model: ModelOptions,
    profile: Option<String>,
    policies: Vec<PathBuf>,
    ask_timeout: Duration,
}

impl Workshop {
    /// Ends what an earlier daemon has left, too.
    pub(crate) fn new(
        store: &Store,
        model: ModelOptions,
        profile: Option<String>,
        policies: Vec<PathBuf>,
        ask_timeout: Duration,
    ) -> Result<Workshop, CliError> {
        let (tasks, engine) = (tasks(store)?, engine(store)?);
        match tasks.recover() {
            Ok(ended) => ended.iter().for_each(|task| {
                ui::warning(&format!(
                    "{task} has failed: the process that worked on it is gone"
                ));
            }),
            Err(error) => ui::warning(&format!("tasks cannot be recovered: {error}")),
        }
        // A model that cannot be used is said now, and not to the first client.
        match model.generator(&engine) {
            Ok(_) | Err(CliError::NoModel) => {}
            Err(error) => return Err(error),
        }
        Ok(Workshop {
            tasks,
            engine,
            model,
            profile,
            policies,
            ask_timeout,
        })
    }
}

impl invigil_server::Workshop for Workshop {
    fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    fn rules(&self, repository: &Path, mode: Mode) -> Result<(Vec<Source>, Places), String> {
        let places = places(repository);
        let usual = match mode {
            Mode::Strict => "strict",
            Mode::Guard | Mode::Observe => "coding",
        };
        let base = self.profile.as_deref().unwrap_or(usual);
        let sources = gather(Some(base), &self.policies, &places);
        Ok((sources.map_err(|error| error.to_string())?, places))
    }

    fn asking(&self) -> Asking {
        let own = users_own(&places(&self.engine.cwd));
        // Nobody sits in front of it; whoever wants can answer with `invigil approvals`.
        Asking {
            timeout: self.ask_timeout,
            policy: Some(UserPolicy::new(own, |_, _| {
                Err("a task adds no rules".to_owned())
            })),
            ..Asking::default()
        }
    }

    fn model(&self) -> Option<(Generator, u32)> {
        let model = self.model.generator(&self.engine).ok()?;
        Some((model, self.model.attempts))
    }
}
