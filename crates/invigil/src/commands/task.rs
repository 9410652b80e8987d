//! `invigil task`: an agent works in a worktree of its own, the checks decide, and a person approves.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use invigil_engine::{
    Asking, Attended, Output, TaskSpec, TaskView, Tasks, UserPolicy, Voice, shell_agent,
};
use invigil_journal::Store;
use invigil_schema::{Event, ExitCode, Mode, TaskId, TaskState};

use super::contract::{ModelOptions, told};
use crate::error::CliError;
use crate::executor::{cancel_on_signals, engine};
use crate::judge::{self, PROVES_NOTHING, show_contract};
use crate::policies::{PolicyOptions, places, users_own};
use crate::proposal::{self, style};
use crate::terminal::{Ask, Terminal};
use crate::ui::{self, BOLD, DIM};

/// Let an agent do something, have it checked, and approve it
#[derive(Debug, clap::Args)]
pub(crate) struct Task {
    #[command(subcommand)]
    command: TaskCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TaskCommand {
    Start(Box<Start>),
    List(List),
    Show(Show),
    Confirm(Confirm),
    Respond(Respond),
    Approve(Approve),
    Cancel(Cancel),
}

/// Begin a task and work on it until it needs approval, or is over
///
/// Exit 0: it needs approval, its contract must be confirmed, or it is done; 120: it has failed; 130: it was cancelled.
#[derive(Debug, clap::Args)]
struct Start {
    /// The repository [default: here]
    #[arg(long, value_name = "DIR")]
    repo: Option<PathBuf>,

    /// What is wanted
    #[arg(long, value_name = "TEXT")]
    intent: String,

    /// What "done" means
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "derive",
        conflicts_with = "derive"
    )]
    contract: Option<PathBuf>,

    /// Ask a model for a contract, which you then confirm
    #[arg(long)]
    derive: bool,

    #[command(flatten)]
    model: ModelOptions,

    /// The agent: a shell command, with the intent on its stdin, or in the place of {intent}
    #[arg(long, value_name = "CMD")]
    agent: String,

    /// How often red checks go back to the agent
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_rounds: u32,

    /// How long the agent may work in each round
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,

    #[command(flatten)]
    policy: PolicyOptions,

    /// Call the task this [default: task_ and a number that grows with time]
    #[arg(long, value_name = "ID")]
    task_id: Option<TaskId>,

    #[command(flatten)]
    how: How,
}

/// What can be said whenever an agent works.
#[derive(Debug, clap::Args)]
struct How {
    /// Where to ask what the policy leaves to a person [default: terminal, or never if there is none]
    #[arg(long, value_enum)]
    ask: Option<Ask>,

    /// The task as one JSON object on stdout at the end
    #[arg(long)]
    json: bool,
}

/// List tasks, newest first
#[derive(Debug, clap::Args)]
struct List {
    /// One JSON object a line on stdout
    #[arg(long)]
    json: bool,
}

/// Show a task: its diff, its checks before and after, what the agent did and what was refused
#[derive(Debug, clap::Args)]
struct Show {
    /// Its id, the beginning of it, or `last`
    task: String,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// Agree with the contract that was proposed, and let the agent work
#[derive(Debug, clap::Args)]
struct Confirm {
    /// Its id, the beginning of it, or `last`
    task: String,

    /// Agree with this one instead
    #[arg(long, value_name = "FILE")]
    contract: Option<PathBuf>,

    #[command(flatten)]
    how: How,
}

/// Send the work back to the agent, with what you want instead
#[derive(Debug, clap::Args)]
struct Respond {
    /// Its id, the beginning of it, or `last`
    task: String,

    /// What you want
    text: String,

    #[command(flatten)]
    how: How,
}

/// Look at what the agent has done, and have it on a branch
#[derive(Debug, clap::Args)]
struct Approve {
    /// Its id, the beginning of it, or `last`
    task: String,

    /// The digest that `invigil task show` printed, or its first 12 digits; asked for where there is no terminal
    #[arg(long, value_name = "HEX")]
    digest: Option<String>,

    /// The task as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

/// End a task: its processes die and its worktree is removed
#[derive(Debug, clap::Args)]
struct Cancel {
    /// Its id, the beginning of it, or `last`
    task: String,

    /// The task as one JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Task {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let tasks = tasks(store)?;
        for task in tasks.recover()? {
            ui::warning(&format!(
                "{task} has failed: the process that worked on it is gone"
            ));
        }
        match self.command {
            TaskCommand::Start(start) => start.execute(store, &tasks),
            TaskCommand::List(list) => list.execute(&tasks),
            TaskCommand::Show(show) => show.execute(&tasks),
            TaskCommand::Confirm(confirm) => confirm.execute(&tasks),
            TaskCommand::Respond(respond) => respond.execute(&tasks),
            TaskCommand::Approve(approve) => approve.execute(&tasks),
            TaskCommand::Cancel(cancel) => cancel.execute(&tasks),
        }
    }
}

/// The tasks of this store, with their worktrees in the cache folder of the user.
pub(crate) fn tasks(store: &Store) -> Result<Tasks, CliError> {
    let engine = engine(store)?;
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    let cache = cache.unwrap_or_else(|| places(&engine.cwd).home.join(".cache"));
    Ok(Tasks::new(engine, cache.join("invigil/tasks")))
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

impl Start {
    fn execute(self, store: &Store, tasks: &Tasks) -> Result<u8, CliError> {
        let engine = engine(store)?;
        let contract = self.contract.as_deref().map(judge::contract).transpose()?;
        let model = self.derive.then(|| self.model.generator(&engine));
        let model = model.transpose()?;
        let repository = engine.cwd.join(self.repo.as_deref().unwrap_or(&engine.cwd));
        let places = places(&repository);
        let (mode, sources) = self.policy.sources(Mode::Guard, &places)?;
        let spec = TaskSpec {
            task_id: self.task_id.clone(),
            repository: repository.clone(),
            intent: self.intent.clone(),
            contract,
            agent_id: None,
            agent: shell_agent(&self.agent),
            mode,
            sources,
            places,
            max_rounds: self.max_rounds,
            timeout: self.timeout,
        };
        let mut view = tasks.start(&spec)?;
        ui::say(format_args!(
            "{BOLD}{}{BOLD:#} {DIM}works in {}{DIM:#}",
            view.task_id,
            shown(&view)
        ));
        for note in &view.notes {
            ui::warning(&ui::harmless(note));
        }
        if let Some(mut model) = model {
            ui::say(format_args!("asking the model for a contract"));
            let cancel = cancel_on_signals()?;
            let mut ask = |prompt: &str| told(model.generate(prompt, &cancel));
            view = tasks.derive(&view.task_id, self.model.attempts, &cancel, &mut ask)?;
            let Some(contract) = view.contract.as_ref() else {
                return self.how.result(&view);
            };
            ui::say(format_args!("proposed contract:"));
            show_contract(contract);
            match proposal::key("Agree? [y]es, [n]o")? {
                Some('y') => view = tasks.confirm(&view.task_id, None, Voice::Person)?,
                Some(_) => {
                    view = tasks.cancel(&view.task_id)?;
                    return self.how.result(&view);
                }
                None => {
                    let id = &view.task_id;
                    ui::say(format_args!("to agree: invigil task confirm {id}"));
                    return self.how.result(&view);
                }
            }
        }
        let id = view.task_id;
        self.how.attend(tasks, |attended| tasks.work(&id, attended))
    }
}

fn shown(view: &TaskView) -> String {
    crate::describe::text(&view.worktree)
}

impl How {
    /// Lets an agent work, tells how it goes, and asks the person at the end.
    fn attend(
        &self,
        tasks: &Tasks,
        work: impl FnOnce(Attended<'_>) -> Result<TaskView, invigil_engine::TaskError>,
    ) -> Result<u8, CliError> {
        let ask = self.ask.unwrap_or(match io::stdin().is_terminal() {
            true => Ask::Terminal,
            false => Ask::Never,
        });
        let terminal = Arc::new(Terminal::new(ask).map_err(CliError::Signals)?);
        let cancel = cancel_on_signals()?;
        let own = users_own(&places(&env::current_dir().map_err(CliError::NoCwd)?));
        let worked = work(Attended {
            cancel: &cancel,
            asking: Asking {
                somebody: ask != Ask::Never,
                audience: Some(terminal.clone()),
                // Nothing is added to it, and no agent may write it.
                policy: Some(UserPolicy::new(own, |_, _| {
                    Err("a task adds no rules".to_owned())
                })),
                ..Asking::default()
            },
            output: Output::Stderr,
            listen: &mut progress(),
        });
        terminal.finish();
        let view = worked?;
        if view.state == TaskState::NeedsApproval && !self.json {
            return ask_approval(tasks, &view);
        }
        self.result(&view)
    }

    fn result(&self, view: &TaskView) -> Result<u8, CliError> {
        result(view, self.json)
    }
}

/// Tells how it goes: which round, which check, how long.
fn progress() -> impl FnMut(&Event) {
    let mut green = true;
    move |event| match event {
        Event::TaskChanged(changed) if changed.state == TaskState::Running => {
            if changed.round == 1 && green {
                ui::warning(PROVES_NOTHING);
            }
            ui::say(format_args!(
                "{BOLD}round {}: the agent works{BOLD:#}",
                changed.round
            ));
        }
        Event::TaskRan(ran) => {
            let time = ui::duration(Duration::from_millis(ran.duration_ms));
            ui::say(format_args!(
                "{DIM}the agent ended after {time}, {} processes, {} refusals: invigil show {}{DIM:#}",
                ran.processes,
                ran.refused.len(),
                ran.run
            ));
        }
        event => {
            if let Event::CheckCompleted(completed) = event {
                green &= completed.result.passed;
            }
            judge::tell(event);
        }
    }
}

/// Shows everything and takes one key.
fn ask_approval(tasks: &Tasks, view: &TaskView) -> Result<u8, CliError> {
    proposal::print(tasks, view)?;
    let Some(proposed) = &view.proposed else {
        return result(view, false);
    };
    let prompt = "[a]pprove, [c]ancel the task, any other key: decide later";
    match proposal::key(prompt)? {
        Some('a') => {
            let digest = proposed.digest.to_string();
            result(&tasks.approve(&view.task_id, &digest, uid())?, false)
        }
        Some('c') => result(&tasks.cancel(&view.task_id)?, false),
        _ => {
            let (id, digest) = (&view.task_id, proposed.digest);
            ui::say(format_args!(
                "to approve: invigil task approve {id} --digest {digest}"
            ));
            Ok(0)
        }
    }
}

/// What came of it, and the exit code.
fn result(view: &TaskView, as_json: bool) -> Result<u8, CliError> {
    if as_json {
        let text = serde_json::to_string(view).map_err(io::Error::from)?;
        writeln!(io::stdout().lock(), "{text}")?;
    } else {
        let (style, verdict) = (
            style(view.state),
            view.verdict.as_deref().unwrap_or_default(),
        );
        ui::say(format_args!(
            "{style}{}{style:#} {}: {}",
            view.state.as_str(),
            view.task_id,
            ui::harmless(verdict)
        ));
    }
    Ok(match view.state {
        TaskState::Failed => ExitCode::ContractNotMet.into(),
        TaskState::Abandoned => ExitCode::of_signal(2),
        _ => ExitCode::Success.into(),
    })
}

impl List {
    fn execute(self, tasks: &Tasks) -> Result<u8, CliError> {
        let views = tasks.list()?;
        let mut out = anstream::stdout().lock();
        if self.json {
            for view in &views {
                let text = serde_json::to_string(view).map_err(io::Error::from)?;
                writeln!(out, "{text}")?;
            }
            return Ok(0);
        }
        if views.is_empty() {
            ui::say(format_args!("no tasks yet: invigil task start --help"));
        }
        for view in &views {
            let style = style(view.state);
            writeln!(
                out,
                "{}  {style}{:17}{style:#}  {}",
                view.task_id,
                view.state.as_str(),
                ui::shorten(&ui::harmless(&view.intent), 60)
            )?;
        }
        Ok(0)
    }
}

impl Show {
    fn execute(self, tasks: &Tasks) -> Result<u8, CliError> {
        let view = tasks.get(&self.task)?;
        match self.json {
            true => {
                let text = serde_json::to_string(&view).map_err(io::Error::from)?;
                writeln!(io::stdout().lock(), "{text}")?;
            }
            false => proposal::print(tasks, &view)?,
        }
        Ok(0)
    }
}

impl Confirm {
    fn execute(self, tasks: &Tasks) -> Result<u8, CliError> {
        let contract = self.contract.as_deref().map(judge::contract).transpose()?;
        let id = tasks.get(&self.task)?.task_id;
        tasks.confirm(&id, contract.as_ref(), Voice::Person)?;
        self.how.attend(tasks, |attended| tasks.work(&id, attended))
    }
}

impl Respond {
    fn execute(self, tasks: &Tasks) -> Result<u8, CliError> {
        let id = tasks.get(&self.task)?.task_id;
        let text = &self.text;
        self.how.attend(tasks, |attended| {
            tasks.respond(&id, text, (Voice::Person, uid()), attended)
        })
    }
}

impl Approve {
    fn execute(self, tasks: &Tasks) -> Result<u8, CliError> {
        let view = tasks.get(&self.task)?;
        match &self.digest {
            Some(digest) => {
                let view = tasks.approve(&view.task_id, digest, uid())?;
                result(&view, self.json)
            }
            None if view.state != TaskState::NeedsApproval => {
                // Says how it stands.
                result(&tasks.approve(&view.task_id, "", uid())?, self.json)
            }
            None if io::stdin().is_terminal() => ask_approval(tasks, &view),
            None => Err(CliError::NoDigest(view.task_id)),
        }
    }
}

impl Cancel {
    fn execute(self, tasks: &Tasks) -> Result<u8, CliError> {
        let id = tasks.get(&self.task)?.task_id;
        result(&tasks.cancel(&id)?, self.json)?;
        Ok(0)
    }
}
