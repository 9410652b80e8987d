//! `coder.*`, but for subscriptions: tasks, as the engine knows them.
//!
//! A task is led by the agent that began it, or by a person. Only a person approves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use invigil_engine::{TaskError, TaskSpec, TaskView, Voice, shell_agent};
use invigil_policy::{Layer, Policy, Source};
use invigil_schema::{Contract, Mode, OsText, TaskId, TaskState, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use super::session::name;
use crate::person::person;
use crate::rpc::{Answer, RpcError};
use crate::session::Session;
use crate::tasks::{Bench, Step};

/// A list has at most so many tasks.
const LISTED: usize = 1_000;
/// So much of a patch at once.
const PATCH_BYTES: usize = 1 << 20;
/// Nobody repairs more often than this.
const MOST_ROUNDS: u32 = 100;
/// An agent has at most so long in each round: a week.
const LONGEST_SECS: u64 = 7 * 24 * 3_600;

/// The tasks of this daemon, if it has any.
pub(super) fn bench(session: &Session) -> Answer<&Arc<Bench>> {
    let bench = session.daemon.bench.as_ref();
    bench.ok_or_else(|| RpcError::not_now("this daemon has no tasks"))
}

/// Does something with tasks on a blocking thread.
pub(super) async fn with<T: Send + 'static>(
    bench: &Arc<Bench>,
    work: impl FnOnce(&Bench) -> Result<T, TaskError> + Send + 'static,
) -> Answer<T> {
    let bench = Arc::clone(bench);
    let worked = tokio::task::spawn_blocking(move || work(&bench)).await;
    worked.map_err(RpcError::internal)?.map_err(refused)
}

/// What an error of the engine is to a client.
fn refused(error: TaskError) -> RpcError {
    let why = error.to_string();
    match error {
        TaskError::NotFound(_) | TaskError::Ambiguous { .. } | TaskError::Id(_) => not_found(),
        TaskError::Contract(problems) => {
            let field = problems.first().map_or_else(String::new, |problem| {
                let check = problem.check.map(|check| format!(".checks[{check}]"));
                let field = problem.field.map(|field| format!(".{field}"));
                check.unwrap_or_default() + &field.unwrap_or_default()
            });
            let words: Vec<_> = problems.iter().map(ToString::to_string).collect();
            RpcError::params(&format!("contract{field}"), words.join("; "))
        }
        TaskError::NoAgent => RpcError::params("agent", why),
        TaskError::Unguarded => RpcError::params("mode", why),
        TaskError::NoRepository(_) | TaskError::NoCommits(_) | TaskError::Inside(_) => {
            RpcError::params("repo", why)
        }
        TaskError::Policy(error) => RpcError::params("policy", error.report()),
        TaskError::State { .. } => RpcError::not_now(why).because("state"),
        TaskError::Busy(_) | TaskError::StillThere(_) => RpcError::not_now(why).because("busy"),
        TaskError::Changed(_) => RpcError::not_now(why).because("changed"),
        TaskError::Digest { .. } => RpcError::not_now(why).because("digest"),
        TaskError::Git(_)
        | TaskError::TooLarge
        | TaskError::WorktreeGone(_)
        | TaskError::Directory { .. }
        | TaskError::Agent(_) => RpcError::not_now(why),
        TaskError::Store(_) | TaskError::Journal(_) | TaskError::Blob(_) => {
            RpcError::unrecorded(why)
        }
        TaskError::Random(_) => RpcError::internal(why),
    }
}

fn not_found() -> RpcError {
    RpcError::not_found("task")
}

/// What a session may know of tasks.
pub(super) struct Sight {
    /// Sees all.
    operator: bool,
    /// So does a person, who may lead as well.
    person: Result<u32, String>,
    agent: Option<String>,
}

impl Sight {
    pub(super) async fn of(session: &Arc<Session>) -> Sight {
        let person = person(session).await;
        let identity = session.identity().clone();
        Sight {
            operator: identity.operator,
            person,
            agent: identity.agent,
        }
    }

    fn sees(&self, view: &TaskView) -> bool {
        self.operator || self.person.is_ok() || self.owns(view)
    }

    fn owns(&self, view: &TaskView) -> bool {
        self.agent.is_some() && self.agent == view.agent_id
    }
}

/// The task, if this session may know of it; otherwise it is as if there were none.
pub(super) async fn seen(session: &Arc<Session>, task_id: &str) -> Answer<(Sight, TaskView)> {
    let sight = Sight::of(session).await;
    let Some(bench) = &session.daemon.bench else {
        return Err(not_found());
    };
    let task_id = TaskId::new(task_id).map_err(|_| not_found())?;
    let look = |task_id: TaskId| with(bench, move |bench| bench.workshop.tasks().view(&task_id));
    let view = look(task_id.clone()).await.ok();
    let mut view = view.filter(|view| sight.sees(view)).ok_or_else(not_found)?;
    // The step that has brought it there may still be about to let go of it.
    if view.state.waits() && bench.rest(&task_id).await {
        view = look(task_id).await?;
    }
    Ok((sight, view))
}

/// The task, if this session leads it, and with which voice it speaks.
async fn led(session: &Arc<Session>, task_id: &str) -> Answer<(TaskView, Voice)> {
    let (sight, view) = seen(session, task_id).await?;
    match sight.person.clone() {
        Ok(_) => Ok((view, Voice::Person)),
        Err(_) if sight.owns(&view) => Ok((view, Voice::Client)),
        Err(why) => Err(RpcError::forbidden(why)),
    }
}

/// Parameters of `coder.start`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartParams {
    /// The repository: an absolute path.
    repo: String,
    /// What is wanted.
    intent: String,
    /// The agent: a shell command, with the intent on its stdin, or in the place of `{intent}`.
    agent: String,
    /// What "done" means. It counts as confirmed.
    #[serde(default)]
    contract: Option<Contract>,
    /// Asks the daemon's model for a contract, which is then to be confirmed.
    #[serde(default)]
    derive: bool,
    /// How often red checks go back to the agent; once if nothing is said.
    #[serde(default)]
    max_rounds: Option<u32>,
    /// Seconds that the agent may work in each round.
    #[serde(default)]
    timeout_secs: Option<u64>,
    /// `guard` or `strict`; the first if nothing is said.
    #[serde(default)]
    mode: Option<Mode>,
    /// The text of a policy file, stacked as a project's file is: it only tightens.
    #[serde(default)]
    policy: Option<String>,
    /// The agent that it is for.
    #[serde(default)]
    agent_id: Option<String>,
}

impl StartParams {
    /// Everything that can be said without looking at the disk.
    fn check(&self, session: &Session) -> Answer<()> {
        let limits = &session.daemon.config.limits;
        for (field, text, most) in [
            ("repo", &self.repo, limits.string_bytes),
            ("intent", &self.intent, limits.string_bytes),
            ("agent", &self.agent, limits.string_bytes),
        ] {
            plain(field, text, most)?;
        }
        if let Some(policy) = &self.policy {
            plain("policy", policy, limits.turn_bytes)?;
        }
        if !Path::new(&self.repo).is_absolute() {
            return Err(RpcError::params("repo", "it must be an absolute path"));
        }
        if self.mode == Some(Mode::Observe) {
            return Err(refused(TaskError::Unguarded));
        }
        check_contract(session, self.contract.as_ref())?;
        match (&self.contract, self.derive) {
            (None, false) => {
                let why = "say what \"done\" means, or have it derived";
                return Err(RpcError::params("contract", why));
            }
            (Some(_), true) => {
                let why = "there is a contract already: one or the other";
                return Err(RpcError::params("derive", why));
            }
            _ => {}
        }
        between(
            "max_rounds",
            self.max_rounds.map(u64::from),
            0,
            MOST_ROUNDS.into(),
        )?;
        between("timeout_secs", self.timeout_secs, 1, LONGEST_SECS)?;
        let mut agent_id = self.agent_id.iter();
        agent_id.try_for_each(|agent| name("agent_id", agent))
    }

    /// What the engine is told. Blocks.
    fn spec(self, bench: &Bench, agent_id: String) -> Answer<TaskSpec> {
        let repository = PathBuf::from(&self.repo);
        if !repository.is_dir() {
            return Err(RpcError::params("repo", "there is no such directory"));
        }
        let mode = self.mode.unwrap_or(Mode::Guard);
        let rules = bench.workshop.rules(&repository, mode);
        let (mut sources, places) = rules.map_err(|why| RpcError::params("repo", why))?;
        sources.extend(self.policy.map(|text| Source {
            name: "the policy of coder.start".to_owned(),
            text,
            layer: Layer::Project,
        }));
        Policy::load(&sources, &places).map_err(|error| refused(error.into()))?;
        Ok(TaskSpec {
            task_id: None,
            repository,
            intent: self.intent,
            contract: self.contract,
            agent_id: Some(agent_id),
            agent: shell_agent(&self.agent),
            mode,
            sources,
            places,
            max_rounds: self.max_rounds.unwrap_or(1),
            timeout: self.timeout_secs.map(Duration::from_secs),
        })
    }
}

/// A text that says something, is not too long, and can be an argument of a program.
fn plain(field: &str, text: &str, most: usize) -> Answer<()> {
    let why = match text {
        text if text.trim().is_empty() => "it is blank".to_owned(),
        text if text.len() > most => format!("it has more than {most} bytes"),
        text if text.contains('\0') => "it has a NUL in it".to_owned(),
        _ => return Ok(()),
    };
    Err(RpcError::params(field, why))
}

fn between(field: &str, number: Option<u64>, least: u64, most: u64) -> Answer<()> {
    match number {
        Some(number) if !(least..=most).contains(&number) => {
            let why = format!("it must be between {least} and {most}");
            Err(RpcError::params(field, why))
        }
        _ => Ok(()),
    }
}

fn check_contract(session: &Session, contract: Option<&Contract>) -> Answer<()> {
    let most = session.daemon.config.limits.turn_bytes;
    let bytes = contract.map_or(0, |contract| {
        serde_json::to_vec(contract).map_or(0, |json| json.len())
    });
    match bytes > most {
        true => {
            let why = format!("the contract has {bytes} bytes, at most {most} are taken");
            Err(RpcError::limit("turn_bytes", why))
        }
        false => Ok(()),
    }
}

/// Room to work on one more task, while the daemon is there.
fn seat(session: &Session) -> Answer<(&Arc<Bench>, OwnedSemaphorePermit)> {
    if session.daemon.going_down.is_fired() {
        return Err(RpcError::going_down());
    }
    let bench = bench(session)?;
    let seat = bench.seat().ok_or_else(|| {
        let most = session.daemon.config.limits.tasks;
        RpcError::limit("tasks", format!("{most} tasks are worked on already"))
    })?;
    Ok((bench, seat))
}

pub(crate) async fn start(session: Arc<Session>, params: StartParams) -> Answer<TaskView> {
    params.check(&session)?;
    let (bench, seat) = seat(&session)?;
    let step = match params.derive {
        true => match bench.workshop.model() {
            Some((model, attempts)) => Step::Derive(Box::new(model), attempts),
            None => {
                let why = "this daemon has no model: see `invigil serve --help`";
                return Err(RpcError::params("derive", why));
            }
        },
        false => Step::Work,
    };
    let agent_id = session.speak_for(params.agent_id.as_deref())?;
    let spec = {
        let bench = Arc::clone(bench);
        tokio::task::spawn_blocking(move || params.spec(&bench, agent_id))
    };
    let spec = spec.await.map_err(RpcError::internal)??;
    let known = {
        let session = Arc::clone(&session);
        tokio::task::spawn_blocking(move || session.daemon.hosts.add(session.peer))
    };
    known.await.map_err(RpcError::internal)?;
    let view = with(bench, move |bench| bench.workshop.tasks().start(&spec)).await?;
    session.daemon.metrics.tasks_total.add(1);
    // How it goes on is in its events.
    drop(bench.begin(&view, step, seat).map_err(refused)?);
    Ok(view)
}

/// Parameters of `coder.confirm_contract`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Confirm {
    /// The task.
    task_id: String,
    /// Another contract, in the place of the one that was proposed.
    #[serde(default)]
    contract: Option<Contract>,
}

pub(crate) async fn confirm_contract(session: Arc<Session>, params: Confirm) -> Answer<TaskView> {
    let (view, voice) = led(&session, &params.task_id).await?;
    check_contract(&session, params.contract.as_ref())?;
    let (bench, seat) = seat(&session)?;
    let confirmed = with(bench, move |bench| {
        let tasks = bench.workshop.tasks();
        tasks.confirm(&view.task_id, params.contract.as_ref(), voice)
    });
    let view = confirmed.await?;
    drop(bench.begin(&view, Step::Work, seat).map_err(refused)?);
    Ok(view)
}

/// Parameters of `coder.respond`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Respond {
    /// The task.
    task_id: String,
    /// What is wanted instead of what was proposed.
    text: String,
}

pub(crate) async fn respond(session: Arc<Session>, params: Respond) -> Answer<TaskView> {
    let (view, voice) = led(&session, &params.task_id).await?;
    let most = session.daemon.config.limits.string_bytes;
    plain("text", &params.text, most)?;
    if view.state != TaskState::NeedsApproval {
        return Err(refused(TaskError::State {
            task_id: view.task_id,
            state: view.state,
            wanted: "only what waits for approval can be sent back",
        }));
    }
    let (bench, seat) = seat(&session)?;
    let step = Step::Respond {
        text: params.text,
        voice,
        uid: uid(),
    };
    let begun = bench.begin(&view, step, seat).map_err(refused)?;
    begun.await.map_err(RpcError::internal)?.map_err(refused)?;
    with(bench, move |bench| {
        bench.workshop.tasks().view(&view.task_id)
    })
    .await
}

/// The user whose daemon this is; nobody else can reach it.
fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Parameters of `coder.approve_merge`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Approve {
    /// The task.
    task_id: String,
    /// The digest of what was shown, or its first 12 digits or more.
    digest: String,
}

pub(crate) async fn approve_merge(session: Arc<Session>, params: Approve) -> Answer<TaskView> {
    // Who may approve nothing learns nothing about what there is to be approved.
    person(&session).await.map_err(RpcError::forbidden)?;
    let (_, view) = seen(&session, &params.task_id).await?;
    act(&session, move |bench| {
        let tasks = bench.workshop.tasks();
        tasks.approve(&view.task_id, &params.digest, uid())
    })
    .await
}

/// Parameters of `coder.cancel`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    /// The task.
    task_id: String,
}

pub(crate) async fn cancel(session: Arc<Session>, params: Cancel) -> Answer<TaskView> {
    let (view, _) = led(&session, &params.task_id).await?;
    act(&session, move |bench| {
        bench.workshop.tasks().cancel(&view.task_id)
    })
    .await
}

/// Changes a task that nobody works on, and tells those who follow it.
async fn act(
    session: &Session,
    change: impl FnOnce(&Bench) -> Result<TaskView, TaskError> + Send + 'static,
) -> Answer<TaskView> {
    with(bench(session)?, move |bench| {
        let view = change(bench)?;
        bench.changed(&view);
        Ok(view)
    })
    .await
}

/// Parameters of `coder.list`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    /// Only of this agent.
    #[serde(default)]
    agent_id: Option<String>,
    /// Only those that stand like this.
    #[serde(default)]
    state: Option<TaskState>,
    /// At most so many.
    #[serde(default)]
    limit: Option<usize>,
    /// Where the last page ended.
    #[serde(default)]
    cursor: Option<String>,
}

/// A task in short.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Row {
    /// The task.
    task_id: TaskId,
    /// Whose it is, if a client of the daemon began it.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    /// How it stands.
    state: TaskState,
    /// Whether a process works on it.
    live: bool,
    /// When it was begun.
    started_at: Timestamp,
    /// What is wanted.
    intent: String,
    /// The repository.
    repository: OsText,
    /// The round of the agent's work; 0 before the first.
    round: u32,
    /// What came of it, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    /// Where the work is.
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<String>,
    /// The last record.
    seq: u64,
}

impl From<TaskView> for Row {
    fn from(view: TaskView) -> Row {
        Row {
            task_id: view.task_id,
            agent_id: view.agent_id,
            state: view.state,
            live: view.live,
            started_at: view.started_at,
            intent: view.intent,
            repository: view.repository,
            round: view.round,
            verdict: view.verdict,
            branch: view.branch,
            seq: view.seq,
        }
    }
}

/// Tasks, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listed {
    /// The tasks.
    tasks: Vec<Row>,
    /// Where the next page begins, if there may be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<TaskId>,
}

pub(crate) async fn list(session: Arc<Session>, params: List) -> Answer<Listed> {
    let sight = Sight::of(&session).await;
    let limit = params.limit.unwrap_or(100).clamp(1, LISTED);
    let mut views = match &session.daemon.bench {
        Some(bench) => with(bench, |bench| bench.workshop.tasks().list()).await?,
        None => Vec::new(),
    };
    views.retain(|view| {
        let of = |agent: &String| view.agent_id.as_ref() == Some(agent);
        sight.sees(view)
            && params.agent_id.as_ref().is_none_or(of)
            && params.state.is_none_or(|state| state == view.state)
    });
    // A cursor that is nowhere is the end.
    let from = params.cursor.map_or(0, |cursor| {
        let last = views
            .iter()
            .position(|view| view.task_id.as_str() == cursor);
        last.map_or(views.len(), |last| last + 1)
    });
    let tasks: Vec<Row> = views
        .into_iter()
        .skip(from)
        .take(limit)
        .map(Row::from)
        .collect();
    let full = tasks.len() == limit;
    let cursor = tasks.last().map(|row| row.task_id.clone());
    Ok(Listed {
        cursor: cursor.filter(|_| full),
        tasks,
    })
}

/// Parameters of `coder.get`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Get {
    /// The task.
    task_id: String,
    /// Also the patch that waits for approval, from this byte on.
    #[serde(default)]
    patch_from: Option<u64>,
}

/// A task with everything that is known of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Got {
    #[serde(flatten)]
    task: TaskView,
    /// What waits for approval, or was approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Patch>,
}

/// A part of a patch.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Patch {
    /// Whole lines, if they are not too long.
    text: OsText,
    /// Where it begins.
    from: u64,
    /// Where to go on.
    next: u64,
    /// How many bytes there are.
    bytes: u64,
}

impl Patch {
    fn part(patch: &[u8], from: u64) -> Patch {
        let bytes = patch.len();
        let from = usize::try_from(from).unwrap_or(bytes).min(bytes);
        let mut end = bytes.min(from + PATCH_BYTES);
        if end < bytes
            && let Some(line) = patch[from..end].iter().rposition(|byte| *byte == b'\n')
        {
            end = from + line + 1;
        }
        Patch {
            text: patch[from..end].to_vec().into(),
            from: from as u64,
            next: end as u64,
            bytes: bytes as u64,
        }
    }
}

pub(crate) async fn get(session: Arc<Session>, params: Get) -> Answer<Got> {
    let (_, task) = seen(&session, &params.task_id).await?;
    let Some(from) = params.patch_from.filter(|_| task.proposed.is_some()) else {
        return Ok(Got { task, patch: None });
    };
    with(bench(&session)?, move |bench| {
        let patch = bench.workshop.tasks().patch(&task)?;
        let patch = Some(Patch::part(&patch, from));
        Ok(Got { task, patch })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_comes_in_parts_of_whole_lines() {
        let line = "x".repeat(1000) + "\n";
        let long = "y".repeat(3 * PATCH_BYTES);
        for patch in [String::new(), line.repeat(3000), line.repeat(1100) + &long] {
            let (mut all, mut from, mut parts) = (Vec::<u8>::new(), 0, 0);
            while from < patch.len() as u64 {
                let part = Patch::part(patch.as_bytes(), from);
                assert_eq!((part.from, part.bytes), (from, patch.len() as u64));
                assert!(part.next > from && part.text.as_bytes().len() <= PATCH_BYTES);
                all.extend(part.text.as_bytes());
                (from, parts) = (part.next, parts + 1);
            }
            assert!(all == patch.as_bytes() && parts <= 6);
            let behind = Patch::part(patch.as_bytes(), u64::MAX);
            assert_eq!(behind.next, patch.len() as u64);
        }
    }
}
